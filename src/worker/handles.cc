#include "worker/handles.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "loop/clock.h"
#include "loop/process_threads.h"

namespace byteps {

Status Handles::unknown(HandleId handle) {
  return {Code::kInvalidArgument, "handle " + std::to_string(handle.value) +
                                      " is unknown: never given, or already waited for"};
}

Result<HandleId> Handles::create(const Report& report) {
  const std::lock_guard lock(mutex_);
  if (slots_.size() >= kOperationsMax) {
    return Status(Code::kAgain, std::to_string(kOperationsMax) +
                                    " handles are in use: wait for some of them first");
  }
  if (report.queue != nullptr) {
    Status begun = report.queue->begin(kOperationsMax);
    if (!begun.is_ok()) return begun;
  }
  const HandleId handle(++last_handle_);
  slots_.insert(number_of(handle), Slot{.report = report, .failure = nullptr});
  ++pending_count_;
  note_progress();
  return handle;
}

void Handles::note_progress() {
  ++progress_;
  all_wait_ = false;
}

void Handles::complete(HandleId handle, Status result) {
  Completion one{handle, std::move(result)};
  complete({&one, 1});
}

void Handles::complete(std::span<Completion> completions) {
  bool waited_for = false;
  {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < completions.size(); ++i) {
      if (i + kAhead < completions.size())
        slots_.prefetch(number_of(completions[i + kAhead].handle));
      Completion& each = completions[i];
      if (finish(each.handle, std::move(each.result))) waited_for = true;
    }
  }
  if (waited_for) finished_.notify_all();
}

// Whether somebody waits for it.
bool Handles::finish(HandleId handle, Status&& result) {
  Slot* const slot = find(handle);
  CHECK(slot != nullptr) << handle << " is unknown";
  CHECK(!slot->finished) << handle << " was completed before";
  --pending_count_;
  waiters_ -= slot->waiters;
  note_progress();
  if (const Report report = slot->report; report.queue != nullptr) {
    slots_.erase(number_of(handle));
    report.queue->push({.handle = handle, .tag = report.tag, .result = std::move(result)});
    return false;
  }
  slot->finished = true;
  if (!result.is_ok()) slot->failure = std::make_unique<Status>(std::move(result));
  return slot->waiters > 0;
}

void Handles::discard(HandleId handle) {
  const std::lock_guard lock(mutex_);
  const Slot* const slot = find(handle);
  CHECK(slot != nullptr && !slot->finished) << handle << " is not pending";
  if (slot->report.queue != nullptr) slot->report.queue->forget();
  slots_.erase(number_of(handle));
  --pending_count_;
}

Result<bool> Handles::poll(HandleId handle) const {
  const std::lock_guard lock(mutex_);
  const Slot* const slot = find(handle);
  if (slot == nullptr) return unknown(handle);
  return slot->finished;
}

Status Handles::wait(HandleId handle, TimeNs timeout_ns) {
  std::unique_lock lock(mutex_);
  Slot* slot = find(handle);
  if (slot == nullptr) return unknown(handle);
  if (slot->report.queue != nullptr) {
    return {Code::kInvalidArgument, "handle " + std::to_string(handle.value) +
                                        " is reported to its queue: take it from there"};
  }
  if (!slot->finished && timeout_ns != 0) {
    slot = block(lock, handle, timeout_ns);
    if (slot == nullptr) return unknown(handle);
  }
  if (!slot->finished) return {Code::kAgain, "not finished yet"};
  Status result = slot->failure == nullptr ? Status::ok() : std::move(*slot->failure);
  slots_.erase(number_of(handle));
  return result;
}

// Null: another thread has used it up meanwhile.
Handles::Slot* Handles::block(std::unique_lock<std::mutex>& lock, HandleId handle,
                              TimeNs timeout_ns) {
  // Longer than any process lives, and far from where the library's clock arithmetic overflows.
  constexpr TimeNs kLongNs = TimeNs{3600} * 24 * 365 * kSecond;
  const bool patient = timeout_ns < 0 || timeout_ns == kNever;
  Slot* slot = find(handle);
  slot->was_waited_for = true;
  ++slot->waiters;
  ++waiters_;
  if (patient) patient_[kernel_thread()] = handle;
  const auto ready = [&] {
    slot = find(handle);  // others come and go meanwhile
    return slot == nullptr || slot->finished;
  };
  const TimeNs limit_ns = timeout_ns < 0 ? kLongNs : std::min(timeout_ns, kLongNs);
  const TimeNs spun_ns = spin(lock, std::min(limit_ns, spin_ns_), ready);
  if (patient) {
    finished_.wait(lock, ready);  // by the kernel's word, too, it is a wait without limit
  } else {
    finished_.wait_for(lock, std::chrono::nanoseconds(limit_ns - spun_ns), ready);
  }
  if (patient) patient_.erase(kernel_thread());
  if (slot == nullptr) return nullptr;
  --slot->waiters;
  if (!slot->finished) --waiters_;  // finish() has taken off the others
  return slot;
}

// Looks again and again, so that nobody has to wake this thread. Returns how long.
template <typename Ready>
TimeNs Handles::spin(std::unique_lock<std::mutex>& lock, TimeNs limit_ns, const Ready& ready) {
  if (limit_ns == 0) return 0;
  MonotonicClock clock;
  const TimeNs begin = clock.now();
  TimeNs spun_ns = 0;
  while (spun_ns < limit_ns && !ready()) {
    lock.unlock();
    std::this_thread::yield();  // there may be fewer cores than threads that spin
    spun_ns = clock.now() - begin;
    lock.lock();
  }
  return std::min(spun_ns, limit_ns);
}

std::uint64_t Handles::progress() const {
  const std::lock_guard lock(mutex_);
  return progress_;
}

bool Handles::all_wait(std::uint64_t seen, std::optional<std::uint64_t> inside) {
  const std::lock_guard lock(mutex_);
  all_wait_ = progress_ == seen && (!inside || waiters_ == *inside);
  return all_wait_;
}

bool Handles::is_blocked() {
  std::vector<pid_t> waiting;
  std::uint64_t seen = 0;
  {
    const std::lock_guard lock(mutex_);
    if (all_wait_) return true;
    for (const auto& [thread, handle] : patient_) {
      const Slot* const slot = find(handle);
      if (slot == nullptr || slot->finished) return false;  // it is about to go on
      waiting.push_back(thread);
    }
    seen = progress_;
  }
  // Without the lock: the kernel is asked about each thread.
  return !waiting.empty() && no_thread_beyond(waiting) && progress() == seen;
}

void Handles::keep_awaited(std::vector<HandleId>& pending) const {
  const std::lock_guard lock(mutex_);
  std::erase_if(pending, [this](HandleId handle) {
    const Slot* const slot = find(handle);
    return slot == nullptr || (!slot->was_waited_for && slot->report.queue == nullptr);
  });
}

std::size_t Handles::pending_count() const {
  const std::lock_guard lock(mutex_);
  return pending_count_;
}

}  // namespace byteps
