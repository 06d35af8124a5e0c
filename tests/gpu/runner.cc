// The thread that does the work of all streams.
//
// It sleeps until there is something to do. Each turn looks at the head of every stream that has work: what it
// depends on must be done, a copy must be the first in its lane, then it takes its time. The effect comes somewhere
// within.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <limits>
#include <utility>

#include <pthread.h>
#include <sys/prctl.h>

#include "tests/gpu/engine.h"
#include "tests/gpu/thread_state.h"

namespace fake_gpu {

namespace {

constexpr TimeNs kNever = std::numeric_limits<TimeNs>::max();

TimeNs now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::chrono::steady_clock::time_point moment(TimeNs at) {
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(at));
}

}  // namespace

void Engine::wake() {
  has_news_ = true;
  if (!is_running_) {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the process's own threads
    is_stopping_ = false;
    is_running_ = true;
    thread_ = std::thread([this] { run(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  work_.notify_one();
}

void Engine::stop(Lock& lock) {
  if (!is_running_) return;
  is_stopping_ = true;
  work_.notify_one();
  changed_.notify_all();
  lock.unlock();
  thread_.join();
  lock.lock();
  is_running_ = false;
}

void Engine::run() {
  const Unseen unseen;
  prctl(PR_SET_NAME, "fake-gpu");
  prctl(PR_SET_TIMERSLACK, 1'000UL);  // ns
  Lock lock(mutex_);
  while (!is_stopping_) {
    has_news_ = false;
    bool progressed = false;
    const TimeNs next = advance_all(lock, &progressed);
    if (progressed) {
      changed_.notify_all();
    } else if (!has_news_ && !is_stopping_) {
      const auto has_reason = [&] { return has_news_ || is_stopping_; };
      if (next == kNever) {
        work_.wait(lock, has_reason);
      } else {
        work_.wait_until(lock, moment(next), has_reason);
      }
    }
  }
}

// Returns when there will be more to do; kNever: when something new comes.
TimeNs Engine::advance_all(Lock& lock, bool* progressed) {
  const TimeNs now = now_ns();
  TimeNs next = kNever;
  const std::vector<StreamRef> streams = busy_;  // effects run without the lock
  for (const StreamRef& stream : streams) *progressed |= advance(stream, now, &next, lock);
  std::erase_if(busy_, [](const StreamRef& stream) { return stream->queue.empty(); });
  return next;
}

bool Engine::advance(const StreamRef& stream, TimeNs now, TimeNs* next, Lock& lock) {
  if (stream->queue.empty() || stream->context->lost != kSuccess) return false;
  const std::shared_ptr<Work> work = stream->queue.front();
  bool progressed = false;
  if (!work->is_started) {
    if (!start(stream, *work, now)) {
      constexpr TimeNs kAskAgainNs = 100'000;
      if (work->may_start) *next = std::min(*next, now + kAskAgainNs);
      return false;
    }
    progressed = true;  // who computes a kernel waits for that
  }
  if (!work->is_done && now >= work->effect_ns) {
    do_effect(stream, work, lock);
    if (stream->queue.empty() || stream->queue.front() != work) return true;  // the context is gone
    now = now_ns();
  }
  if (work->is_done && now >= work->end_ns && !work->is_held) {
    complete(stream, now);
    return true;
  }
  if (!work->is_done) *next = std::min(*next, work->effect_ns);
  if (work->is_done && !work->is_held) *next = std::min(*next, work->end_ns);
  return progressed;
}

// True when the operation has begun.
bool Engine::start(const StreamRef& stream, Work& work, TimeNs now) {
  const auto is_done = [](const Dependency& one) { return one.stream->done >= one.number; };
  if (!std::all_of(work.after.begin(), work.after.end(), is_done) || work.hangs) return false;
  if (work.may_start && !work.may_start()) return false;
  if (work.lane != nullptr) {
    if (!work.is_queued) work.lane->queue.push_back(&work);
    work.is_queued = true;
    if (work.lane->queue.front() != &work) return false;
  }
  work.is_started = true;
  work.end_ns = now + work.duration_ns;
  work.effect_ns = work.end_ns;
  if (!work.is_late && work.duration_ns > 0) {
    work.effect_ns = now + std::uniform_int_distribution<TimeNs>(0, work.duration_ns)(random_);
  }
  const Strand::Turn turn(stream->strand);
  tsan_acquire(&work.tag);
  for (const Dependency& one : work.after) tsan_acquire(one.tag.get());
  return true;
}

void Engine::do_effect(const StreamRef& stream, const std::shared_ptr<Work>& work, Lock& lock) {
  if (work->effect || work->callback) {
    lock.unlock();
    {
      const Strand::Turn turn(stream->strand);
      if (work->effect) work->effect();
      if (work->callback) {
        bool& is_inside = thread_state(generation_).is_in_host_function;
        is_inside = true;
        {
          const Seen seen;
          work->callback();
        }
        is_inside = false;
      }
    }
    lock.lock();
  }
  work->is_done = true;
}

void Engine::complete(const StreamRef& stream, TimeNs now) {
  const std::shared_ptr<Work> work = std::move(stream->queue.front());
  stream->queue.pop_front();
  ++stream->done;
  if (work->lane != nullptr) work->lane->queue.pop_front();
  const Strand::Turn turn(stream->strand);
  tsan_acquire(&work->tag);  // of who has computed a kernel
  if (work->at_end) work->at_end();
  if (work->recording == nullptr) return;
  work->recording->done_ns = now;
  tsan_release(&work->recording->tag);
}

// ---- kernels that the calling thread computes. Where nothing is before them, the thread is not asked.

Code Engine::begin_kernel(Kernel kernel, const StreamRef& stream, Lock& lock,
                          std::shared_ptr<Work>* begun) {
  auto work = std::make_shared<Work>();
  if (!load_kernel(kernel, *stream, work.get())) return kInvalidValue;
  bool is_captured = false;
  if (const Code code = captured(*stream, &is_captured); code != kSuccess) return code;
  work->is_held = true;
  *begun = work;
  if (is_captured) return kSuccess;
  enqueue(stream, work);
  if (stream->queue.front() != work || !start(stream, *work, now_ns())) wake();
  changed_.wait(lock, [&] {
    return work->is_started || stream->context->lost != kSuccess || is_ending_ || is_stopping_;
  });
  tsan_acquire(stream->strand.tag().get());
  return is_ending_ ? Code{kDeinitialized} : stream->context->lost;
}

void Engine::end_kernel(const StreamRef& stream, Work& work) {
  tsan_release(&work.tag);
  work.is_held = false;
  const bool is_next = !stream->queue.empty() && stream->queue.front().get() == &work;
  if (work.duration_ns == 0 && is_next && stream->context->lost == kSuccess) {
    complete(stream, now_ns());
    changed_.notify_all();
    if (stream->queue.empty()) std::erase(busy_, stream);
  }
  if (!busy_.empty()) wake();
}

}  // namespace fake_gpu
