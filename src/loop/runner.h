// Runner: gives an Actor a thread. It blocks when there is nothing to do; only when it is told to spin, it looks again
// and again for so long after the last work, which costs a core and saves the time to wake up.
#pragma once

#include <atomic>
#include <string>
#include <thread>

#include "loop/actor.h"
#include "loop/clock.h"

namespace byteps {

// Turns the actor until it is finished() or stop() was called. The caller's thread.
void run_actor(Actor& actor, Waiter& waiter, Clock& clock, const std::atomic<bool>& stop,
               TimeNs spin_ns = 0);

// The same on a thread of its own. All references must outlive the Runner.
class Runner {
 public:
  Runner(std::string thread_name, Actor& actor, Waiter& waiter, Clock& clock, TimeNs spin_ns = 0);
  ~Runner();  // stop() and join
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  void stop();  // any thread; the current turn is finished first
  void join();  // waits until the actor is finished or stopped

 private:
  std::atomic<bool> stop_{false};
  Waiter& waiter_;
  std::thread thread_;
};

}  // namespace byteps
