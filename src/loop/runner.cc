#include "loop/runner.h"

#include <algorithm>
#include <csignal>
#include <thread>
#include <utility>

#include <pthread.h>

namespace byteps {

void run_actor(Actor& actor, Waiter& waiter, Clock& clock, const std::atomic<bool>& stop,
               TimeNs spin_ns) {
  TimeNs last_work_ns = clock.now();
  while (!stop.load(std::memory_order_acquire)) {
    const TimeNs now = clock.now();
    const std::size_t work = actor.turn(now);
    if (actor.finished()) return;
    if (work > 0) {
      last_work_ns = now;
      continue;
    }
    if (now - last_work_ns < spin_ns) {
      std::this_thread::yield();  // there may be fewer cores than threads that spin
      waiter.wait(0);
      continue;
    }
    const TimeNs deadline = actor.next_deadline();
    waiter.wait(deadline == kNever ? kNever : std::max<TimeNs>(0, deadline - clock.now()));
  }
}

Runner::Runner(std::string thread_name, Actor& actor, Waiter& waiter, Clock& clock, TimeNs spin_ns)
    : waiter_(waiter),
      thread_([this, name = std::move(thread_name), &actor, &waiter, &clock, spin_ns] {
        // Signals belong to the host process's own threads (Python's, the launcher's).
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, nullptr);
        pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
        run_actor(actor, waiter, clock, stop_, spin_ns);
      }) {}

Runner::~Runner() {
  stop();
  join();
}

void Runner::stop() {
  stop_.store(true, std::memory_order_release);
  waiter_.wake();
}

void Runner::join() {
  if (thread_.joinable()) thread_.join();
}

}  // namespace byteps
