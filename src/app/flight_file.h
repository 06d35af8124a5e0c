// FlightFile: a process's flight recorder, and the file it leaves when it ends badly, or however it ends where
// BYTEPS_FLIGHT_ALWAYS is 1. `bps why` reads such files;
// docs/flight.md is their reference.
//
// JSON lines. The first: who this is, when, its settings (never a key), how it ended and why, whom it knew. Then one
// line per event, oldest first, `t` in ns of the machine's monotonic clock; t + wall_zero_ns is the time of day.
// The name is byteps-flight-<role>-<rank or x>-<host>-<pid>.jsonl, mode 0600, written whole and then renamed.
//
// A process that sums, and that a worker's loss leaves without contributions of it, says in a second file,
// byteps-absences-<host>-<pid>, which sums these are: a line like the first one above, then one per frame and worker.
// That is a server, or a worker whose relay sums alone.
#pragma once

#include <memory>
#include <string>

#include "app/env.h"
#include "base/flight.h"
#include "base/time.h"
#include "loop/executor.h"
#include "net/transport.h"
#include "server/shelf_output.h"

namespace byteps {

class FlightFile {
 public:
  static constexpr std::size_t kEventsDefault = 10'000;
  static constexpr std::size_t kEventsMax = 1'000'000;
  // So many files stay in the default folder, the newest; nothing is removed from one that was chosen.
  static constexpr std::size_t kFilesKept = 64;
  // So long the end of a process waits for its file: the folder may be on a file system that does not answer.
  static constexpr TimeNs kEndNs = 2 * kSecond;

  // Looks at variables that begin with BYTEPS_FLIGHT only; whether they are well-formed, parse_environment() says.
  // Looks at the folder, too, which may block: not on a loop.
  FlightFile(Role role, Environment environment);
  ~FlightFile();  // leaves it, if it is always to be left; settle(), at most kEndNs
  FlightFile(const FlightFile&) = delete;
  FlightFile& operator=(const FlightFile&) = delete;

  // What it leaves behind is written by a thread of its own, because a loop calls it. So the path that leave_behind()
  // gives is that of a file that will be there soon: see settle(). "": the folder was found to be of no use.
  FlightRecorder& recorder();

  // A line for the file of absences, as bytes that end with a newline: which sums a lost worker is not in. It is
  // appended soon, not when the process ends: that may be killed. Any thread; never blocks.
  void record_absence(const std::string& line);
  // Makes such lines, as long as this file is there.
  AbsenceSink absence_sink();
  static constexpr std::size_t kAbsencesBytesMax = std::size_t{64} << 20;

  // Waits until all that was left behind is written, at most so long. Not on a loop.
  bool settle(TimeNs at_most_ns = kEndNs) { return executor_.settle(at_most_ns); }

 private:
  struct State;
  std::string leave(const FlightRecorder& recorder);

  const std::shared_ptr<State> state_;  // with the thread, which may outlive this object
  Executor executor_;
};

// As it stands in the file of absences.
std::string absence_line(Epoch epoch, const ShelfOutput::Absence& absence);

// ${TMPDIR:-/tmp}/byteps-<uid>/flight
std::string default_flight_folder();

}  // namespace byteps
