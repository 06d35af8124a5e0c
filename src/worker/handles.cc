#include "worker/handles.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "loop/clock.h"

namespace byteps {

Status Handles::unknown(HandleId handle) {
  return {Code::kInvalidArgument, "handle " + std::to_string(handle.value) +
                                      " is unknown: never given, or already waited for"};
}

Result<HandleId> Handles::create(const Report& report) {
  const std::lock_guard lock(mutex_);
  if (slots_.size() >= kHandlesMax) {
    return Status(Code::kAgain,
                  std::to_string(kHandlesMax) + " handles are in use: wait for some of them first");
  }
  if (report.queue != nullptr) {
    Status begun = report.queue->begin(kHandlesMax);
    if (!begun.is_ok()) return begun;
  }
  const HandleId handle(++last_handle_);
  const ThreadId self = this_thread();
  slots_.insert(number_of(handle), Slot{.creator = self, .report = report, .failure = nullptr});
  ++pending_count_;
  note_creator(self);
  return handle;
}

void Handles::note_creator(ThreadId self) {
  if (callers_.size() >= kCallersMax && !callers_.contains(self)) {
    too_many_callers_ = true;
    return;
  }
  Caller& caller = callers_[self];
  caller.creates = true;
  caller.waits_for = HandleId();
  if (caller.heir == ThreadId()) caller.heir = self;
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
  // Longer than any process lives, and far from where the library's clock arithmetic overflows.
  constexpr TimeNs kLongNs = TimeNs{3600} * 24 * 365 * kSecond;
  std::unique_lock lock(mutex_);
  Slot* slot = find(handle);
  if (slot == nullptr) return unknown(handle);
  if (slot->report.queue != nullptr) {
    return {Code::kInvalidArgument, "handle " + std::to_string(handle.value) +
                                        " is reported to its queue: take it from there"};
  }
  if (!slot->finished && timeout_ns != 0) {
    ++slot->waiters;
    begin_wait(*slot, handle);
    const auto ready = [&] {
      slot = find(handle);  // others come and go meanwhile
      return slot == nullptr || slot->finished;
    };
    const TimeNs limit_ns = timeout_ns < 0 ? kLongNs : std::min(timeout_ns, kLongNs);
    const TimeNs spun_ns = spin(lock, std::min(limit_ns, spin_ns_), ready);
    finished_.wait_for(lock, std::chrono::nanoseconds(limit_ns - spun_ns), ready);
    end_wait(slot == nullptr || slot->finished);
    if (slot == nullptr) return unknown(handle);
    --slot->waiters;
  }
  if (!slot->finished) return {Code::kAgain, "not finished yet"};
  Status result = slot->failure == nullptr ? Status::ok() : std::move(*slot->failure);
  slots_.erase(number_of(handle));
  return result;
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

void Handles::begin_wait(const Slot& slot, HandleId handle) {
  const ThreadId self = this_thread();
  if (const auto creator = callers_.find(slot.creator); creator != callers_.end()) {
    creator->second.heir = self;
  }
  if (callers_.size() >= kCallersMax && !callers_.contains(self)) {
    too_many_callers_ = true;
    return;
  }
  Caller& caller = callers_[self];
  caller.waits_for = handle;
  caller.inside = 1;
  caller.waited = true;
}

void Handles::end_wait(bool finished) {
  const auto caller = callers_.find(this_thread());
  if (caller == callers_.end()) return;
  caller->second.inside = 0;
  if (finished) caller->second.waits_for = HandleId();
}

std::vector<HandleId> Handles::blocked_on() {
  const std::lock_guard lock(mutex_);
  std::vector<HandleId> handles;
  bool all = !too_many_callers_;
  for (const auto& [id, caller] : callers_) {
    if (!caller.creates) continue;
    const auto waiter = callers_.find(caller.heir);
    const Slot* const slot = waiter == callers_.end() ? nullptr : find(waiter->second.waits_for);
    all = all && slot != nullptr && !slot->finished &&
          (waiter->second.inside > 0 || waiter->second.waited);
    if (!all) break;
    handles.push_back(waiter->second.waits_for);
  }
  for (auto& [id, caller] : callers_) caller.waited = caller.inside > 0;
  if (!all) return {};
  std::sort(handles.begin(), handles.end());
  handles.erase(std::unique(handles.begin(), handles.end()), handles.end());
  return handles;
}

std::size_t Handles::pending_count() const {
  const std::lock_guard lock(mutex_);
  return pending_count_;
}

}  // namespace byteps
