// Runner: gives an Actor a thread. It blocks when there is nothing to do; only when it is told to spin, it looks again
// and again for so long after the last work, which costs a core and saves the time to wake up.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "loop/actor.h"
#include "loop/clock.h"

namespace byteps {

// Turns the actor until it is finished() or stop() was called. The caller's thread. What a turn throws becomes
// Actor::failed(); a thousand such turns are the end of the process.
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
  // The same, at most so long. False: it still runs; perhaps it stands still for ever.
  bool join_within(TimeNs at_most_ns);

 private:
  std::atomic<bool> stop_{false};
  Waiter& waiter_;
  std::mutex mutex_;  // guards has_ended_
  std::condition_variable ended_;
  bool has_ended_ = false;
  std::thread thread_;  // last: it uses what is above
};

}  // namespace byteps
