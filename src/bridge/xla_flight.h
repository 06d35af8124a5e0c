// Flight: the exchanges of compiled programs that are under way, and two dangers that XLA adds to them. TensorFlow's
// graphs have the first of them as well.
//
// 1. When one operation of a program fails, XLA starts no more of the others. Ranks that have started them already
//    would wait for this one for ever. So a failure that all ranks get (they disagree about a tensor) is held back
//    until everything that does not depend on it has been started and has ended: nothing is under way, and nothing new
//    came for a while. What depends on the failed one starts on no rank.
// 2. Two uses of one name at the same time start in an order that differs between ranks, and would sum what does not
//    belong together. The layer above gives each use in a program a name of its own; what it cannot see, a jitted
//    function called twice within another, is refused here.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace byteps::bridge {

class Flight {
 public:
  // `quiet`: so long nothing new must have come before a failure is told.
  explicit Flight(std::chrono::milliseconds quiet) : quiet_(quiet) {}
  Flight(const Flight&) = delete;
  Flight& operator=(const Flight&) = delete;

  // An exchange is about to be submitted. False: one of this name is under way, and programs run one at a time.
  bool begin(const std::string& name);
  // It has ended, well or not, or was refused.
  void end(const std::string& name);

  // Calls `tell` when it is time (danger 1), on another thread.
  void fail_later(std::function<void()> tell);
  // The same for a promise.
  void fail_later(xla::ffi::Promise promise, xla::ffi::Error error);

  // Whether compiled programs run one after another in this process, so that two uses of a name under way are an error.
  void set_one_at_a_time(bool value);

 private:
  void fail_when_quiet();

  const std::chrono::milliseconds quiet_;
  std::mutex mutex_;  // guards what follows
  std::unordered_multiset<std::string> under_way_;
  uint64_t begun_ = 0;
  bool one_at_a_time_ = false;
  std::vector<std::function<void()>> failures_;  // a thread waits while there are any
  std::condition_variable never_;                // only waited for, with a timeout
};

// The one of this shared library.
Flight& flight();

}  // namespace byteps::bridge
