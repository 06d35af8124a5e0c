// Sleeper: a Waiter without input, for Actors that only look now and then.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "base/time.h"
#include "loop/actor.h"

namespace byteps {

class Sleeper final : public Waiter {
 public:
  void wait(TimeNs timeout_ns) override {
    constexpr TimeNs kLongNs = 3600 * kSecond;  // waking too early does no harm
    std::unique_lock lock(mutex_);
    woken_.wait_for(lock, std::chrono::nanoseconds(std::min(timeout_ns, kLongNs)),
                    [this] { return wake_; });
    wake_ = false;
  }
  void wake() override {
    {
      const std::lock_guard lock(mutex_);
      wake_ = true;
    }
    woken_.notify_one();
  }

 private:
  std::mutex mutex_;  // guards what follows
  std::condition_variable woken_;
  bool wake_ = false;
};

}  // namespace byteps
