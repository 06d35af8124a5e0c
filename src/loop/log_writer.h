// LogWriter: the lines of the log go to standard error from a thread of its own, because no write to it is sure to
// return: a pipe that nobody reads is full, a terminal is stopped (Ctrl-S), a file is on a file system over the
// network. A loop that waited there would stand still with all that it does for others.
//
// (Asking poll(2) for POLLOUT first is no promise: others write to the same pipe, and a file always says yes.)
//
// Lines keep their order. What is not taken in time is kept, up to kWaitingBytesMax; further lines are dropped, and
// counted in a line of their own once there is room.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "base/log.h"
#include "base/time.h"
#include "loop/executor.h"

namespace byteps {

class LogWriter {
 public:
  // The descriptor must stay open for as long as the process lives: the thread may outlive this object.
  explicit LogWriter(int descriptor = 2);
  // Waits until all lines are written, at most kEndNs.
  ~LogWriter();
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  // For Log. The writer must outlive all copies of it. Any thread; never blocks.
  Log::Sink sink();

  // Waits until all lines are written, at most so long; false when that was not enough.
  bool settle(TimeNs at_most_ns) { return executor_.settle(at_most_ns); }

  static constexpr std::size_t kWaitingBytesMax = std::size_t{1} << 20;
  static constexpr TimeNs kEndNs = kSecond;

 private:
  struct State;
  void write(std::string_view line);

  const std::shared_ptr<State> state_;
  Executor executor_;
};

}  // namespace byteps
