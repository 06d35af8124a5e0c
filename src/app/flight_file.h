// FlightFile: a process's flight recorder, and the file it leaves when it ends badly. `bps why` reads such files;
// docs/flight.md is their reference.
//
// JSON lines. The first: who this is, when, its settings (never a key), how it ended, whom it knew. Then one line per
// event, oldest first, `t` in nanoseconds of the machine's monotonic clock; t + wall_zero_ns is the time of day.
// The name is byteps-flight-<role>-<rank or x>-<host>-<pid>.jsonl, mode 0600, written whole and then renamed.
#pragma once

#include <optional>
#include <string>

#include "app/env.h"
#include "base/flight.h"
#include "base/time.h"
#include "loop/clock.h"
#include "net/transport.h"

namespace byteps {

class FlightFile {
 public:
  static constexpr std::size_t kEventsDefault = 10'000;
  static constexpr std::size_t kEventsMax = 1'000'000;
  // So many files stay in the default folder, the newest; nothing is removed from one that was chosen.
  static constexpr std::size_t kFilesKept = 64;

  // Looks at BYTEPS_FLIGHT_DIR and BYTEPS_FLIGHT_EVENTS only; whether they are well-formed, parse_environment() says.
  FlightFile(Role role, Environment environment);
  ~FlightFile();
  FlightFile(const FlightFile&) = delete;
  FlightFile& operator=(const FlightFile&) = delete;

  FlightRecorder& recorder() { return recorder_; }

 private:
  std::string write(const FlightRecorder& recorder);
  std::string header(const FlightRecorder::Facts& facts, std::size_t kept) const;
  std::string choose_path(const FlightRecorder::Facts& facts) const;

  // constant
  const Role role_;
  const Environment environment_;
  const bool chosen_;  // the folder, by BYTEPS_FLIGHT_DIR
  const std::string folder_;
  MonotonicClock clock_;
  const TimeNs wall_zero_ns_;  // the time of day at the clock's zero, when the process began

  // by the one who writes
  int spare_file_ = -1;  // a descriptor for the file, when the process has none left; -1: none
  std::string path_;
  bool warned_ = false;

  FlightRecorder recorder_;  // last: it ends before what its writer uses
};

// ${TMPDIR:-/tmp}/byteps-<uid>/flight
std::string default_flight_folder();

}  // namespace byteps
