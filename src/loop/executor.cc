#include "loop/executor.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include <pthread.h>

#include "loop/signal_mask.h"

namespace byteps {

struct Executor::State {
  std::mutex mutex;  // guards what follows
  std::condition_variable posted;
  std::condition_variable settled;  // nothing waits or runs, or a thread has ended
  std::deque<Job> waiting;
  std::size_t running = 0;
  std::size_t live = 0;  // threads that have not ended
  bool closed = false;

  void serve() {
    std::unique_lock lock(mutex);
    for (;;) {
      posted.wait(lock, [this] { return closed || !waiting.empty(); });
      if (closed) break;
      ++running;
      {
        const Job job = std::exchange(waiting.front(), nullptr);
        waiting.pop_front();
        lock.unlock();
        try {
          job();
        } catch (const std::bad_alloc&) {
          // The job is lost, and whoever misses its answer has a time limit.
        }
      }
      lock.lock();
      --running;
      settled.notify_all();
    }
    --live;
    settled.notify_all();
  }
};

Executor::Executor(std::string thread_name, std::size_t waiting_max, std::size_t threads_max)
    : thread_name_(thread_name.substr(0, 15)),
      waiting_max_(waiting_max),
      threads_max_(threads_max),
      state_(std::make_shared<State>()) {}

Executor::~Executor() {
  std::deque<Job> dropped;  // what they own ends without the lock
  std::unique_lock lock(state_->mutex);
  state_->closed = true;
  dropped.swap(state_->waiting);
  state_->posted.notify_all();
  const bool all_ended = state_->settled.wait_for(lock, std::chrono::nanoseconds(kLeaveNs),
                                                  [this] { return state_->live == 0; });
  lock.unlock();
  for (std::thread& thread : threads_) all_ended ? thread.join() : thread.detach();
}

Status Executor::post(Job job) {
  const std::lock_guard lock(state_->mutex);
  if (state_->waiting.size() >= waiting_max_) return {Code::kAgain, "too many jobs wait"};
  state_->waiting.push_back(std::move(job));
  if (threads_.size() < threads_max_ &&
      state_->waiting.size() > threads_.size() - state_->running) {
    try {
      threads_.emplace_back([state = state_, name = thread_name_] {
        block_outside_signals();
        pthread_setname_np(pthread_self(), name.c_str());
        state->serve();
      });
      ++state_->live;
    } catch (const std::system_error& failure) {
      if (threads_.empty()) {
        state_->waiting.pop_back();
        return {Code::kSystem, std::string("cannot start a thread: ") + failure.what()};
      }
    }
  }
  state_->posted.notify_one();
  return Status::ok();
}

bool Executor::settle(TimeNs at_most_ns) {
  std::unique_lock lock(state_->mutex);
  return state_->settled.wait_for(lock, std::chrono::nanoseconds(at_most_ns), [this] {
    return state_->waiting.empty() && state_->running == 0;
  });
}

}  // namespace byteps
