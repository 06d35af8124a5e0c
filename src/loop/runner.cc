#include "loop/runner.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <new>
#include <thread>
#include <utility>

#include <pthread.h>

#include "loop/short_slices.h"
#include "loop/signal_mask.h"

namespace byteps {
namespace {

constexpr int kFailuresMax = 1000;
constexpr TimeNs kFailurePauseNs = kMillisecond;

// What is being handled, as a Status.
Status status_of_exception() {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return {Code::kSystem, "out of memory", {.kind = CauseKind::kNoMemory}};
  } catch (const std::exception& exception) {
    return {Code::kSystem, std::string("unexpected: ") + exception.what()};
  }
}

// False: the turn threw, and the actor has been told. Memory that is short now may be there in a moment; an actor that
// fails again and again, and cannot even end, is the end of the process.
bool turn(Actor& actor, TimeNs now, std::size_t& work, int& failure_count) {
  try {
    work = actor.turn(now);
    return true;
  } catch (...) {
    if (++failure_count > kFailuresMax) throw;
    try {
      actor.failed(status_of_exception());
    } catch (...) {  // once more in the next turn
    }
    return false;
  }
}

}  // namespace

void run_actor(Actor& actor, Waiter& waiter, Clock& clock, const std::atomic<bool>& stop,
               TimeNs spin_ns) {
  TimeNs last_work_ns = clock.now();
  int failure_count = 0;
  bool may_doze = false;  // there was work since it last did
  while (!stop.load(std::memory_order_acquire)) {
    const TimeNs now = clock.now();
    std::size_t work = 0;
    if (!turn(actor, now, work, failure_count)) {
      if (actor.finished()) return;
      waiter.wait(kFailurePauseNs);
      continue;
    }
    if (actor.finished()) return;
    if (work > 0) {
      last_work_ns = now;
      may_doze = true;
      continue;
    }
    if (now - last_work_ns < spin_ns) {
      std::this_thread::yield();  // there may be fewer cores than threads that spin
      waiter.wait(0);
      continue;
    }
    const TimeNs deadline = actor.next_deadline();
    const TimeNs timeout =
        deadline == kNever ? kNever : std::max<TimeNs>(0, deadline - clock.now());
    const TimeNs patience = std::exchange(may_doze, false) ? actor.patience() : 0;
    if (patience > 0) {
      waiter.doze(timeout, patience);
    } else {
      waiter.wait(timeout);
    }
  }
}

Runner::Runner(std::string thread_name, Actor& actor, Waiter& waiter, Clock& clock, TimeNs spin_ns)
    : waiter_(waiter),
      thread_([this, name = std::move(thread_name), &actor, &waiter, &clock, spin_ns] {
        block_outside_signals();
        ask_for_short_slices();
        pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
        run_actor(actor, waiter, clock, stop_, spin_ns);
        const std::lock_guard lock(mutex_);
        has_ended_ = true;
        ended_.notify_all();
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

bool Runner::join_within(TimeNs at_most_ns) {
  {
    std::unique_lock lock(mutex_);
    if (!ended_.wait_for(lock, std::chrono::nanoseconds(at_most_ns), [this] { return has_ended_; }))
      return false;
  }
  join();
  return true;
}

}  // namespace byteps
