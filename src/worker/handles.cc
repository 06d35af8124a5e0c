#include "worker/handles.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

namespace byteps {

Status Handles::unknown(HandleId handle) {
  return {Code::kInvalidArgument, "handle " + std::to_string(handle.value) +
                                      " is unknown: never given, or already waited for"};
}

Result<HandleId> Handles::create() {
  const std::lock_guard lock(mutex_);
  if (slots_.size() >= kHandlesMax) {
    return Status(Code::kAgain,
                  std::to_string(kHandlesMax) + " handles are in use: wait for some of them first");
  }
  const HandleId handle(++last_handle_);
  const ThreadId self = this_thread();
  slots_[handle.value].creator = self;
  ++pending_count_;
  if (callers_.size() < kCallersMax || callers_.contains(self)) {
    Caller& caller = callers_[self];
    caller.creates = true;
    caller.waits_for = HandleId();
    if (caller.heir == ThreadId()) caller.heir = self;
  } else {
    too_many_callers_ = true;
  }
  return handle;
}

void Handles::complete(HandleId handle, Status result) {
  bool waited_for = false;
  {
    const std::lock_guard lock(mutex_);
    const auto found = slots_.find(handle.value);
    CHECK(found != slots_.end()) << handle << " is unknown";
    CHECK(!found->second.finished) << handle << " was completed before";
    found->second.finished = true;
    found->second.result = std::move(result);
    waited_for = found->second.waiters > 0;
    --pending_count_;
  }
  if (waited_for) finished_.notify_all();
}

void Handles::discard(HandleId handle) {
  const std::lock_guard lock(mutex_);
  const auto found = slots_.find(handle.value);
  CHECK(found != slots_.end() && !found->second.finished) << handle << " is not pending";
  slots_.erase(found);
  --pending_count_;
}

Result<bool> Handles::poll(HandleId handle) const {
  const std::lock_guard lock(mutex_);
  const auto found = slots_.find(handle.value);
  if (found == slots_.end()) return unknown(handle);
  return found->second.finished;
}

Status Handles::wait(HandleId handle, TimeNs timeout_ns) {
  // Longer than any process lives, and far from where the library's clock arithmetic overflows.
  constexpr TimeNs kLongNs = TimeNs{3600} * 24 * 365 * kSecond;
  std::unique_lock lock(mutex_);
  auto found = slots_.find(handle.value);
  if (found == slots_.end()) return unknown(handle);
  if (!found->second.finished && timeout_ns != 0) {
    ++found->second.waiters;
    begin_wait(found->second, handle);
    const auto ready = [&] {
      found = slots_.find(handle.value);
      return found == slots_.end() || found->second.finished;
    };
    const TimeNs limit_ns = timeout_ns < 0 ? kLongNs : std::min(timeout_ns, kLongNs);
    finished_.wait_for(lock, std::chrono::nanoseconds(limit_ns), ready);
    end_wait(found == slots_.end() || found->second.finished);
    if (found == slots_.end()) return unknown(handle);
    --found->second.waiters;
  }
  if (!found->second.finished) return {Code::kAgain, "not finished yet"};
  Status result = std::move(found->second.result);
  slots_.erase(found);
  return result;
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
    const auto slot =
        waiter == callers_.end() ? slots_.end() : slots_.find(waiter->second.waits_for.value);
    all = all && slot != slots_.end() && !slot->second.finished &&
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
