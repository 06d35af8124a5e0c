// SignalWatch: turns SIGINT and SIGTERM into a stop flag and a wake-up, for executables (never
// inside a framework's process: there signals are the host's). The first signal asks for a clean
// end; a second one ends the process at once with 128 + its number.
#pragma once

#include <atomic>
#include <thread>

#include <pthread.h>
#include <signal.h>

#include "loop/actor.h"

namespace byteps {

class SignalWatch {
 public:
  // Blocks the signals in the calling thread; construct it before other threads start, so that they
  // inherit that. `stop` and `waiter` must outlive it.
  SignalWatch(std::atomic<bool>& stop, Waiter& waiter);
  ~SignalWatch();  // joins its thread, restores the signal mask
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  // The signal that came, or 0. Any thread.
  int received() const { return received_.load(std::memory_order_acquire); }

 private:
  void watch();

  std::atomic<bool>& stop_;
  Waiter& waiter_;
  sigset_t watched_{};
  sigset_t previous_{};
  std::atomic<int> received_{0};
  std::atomic<bool> done_{false};
  std::thread thread_;
};

}  // namespace byteps
