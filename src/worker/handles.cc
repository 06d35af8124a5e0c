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
  slots_.emplace(handle.value, Slot{});
  ++pending_count_;
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
    const auto ready = [&] {
      found = slots_.find(handle.value);
      return found == slots_.end() || found->second.finished;
    };
    const TimeNs limit_ns = timeout_ns < 0 ? kLongNs : std::min(timeout_ns, kLongNs);
    finished_.wait_for(lock, std::chrono::nanoseconds(limit_ns), ready);
    if (found == slots_.end()) return unknown(handle);
    --found->second.waiters;
  }
  if (!found->second.finished) return {Code::kAgain, "not finished yet"};
  Status result = std::move(found->second.result);
  slots_.erase(found);
  return result;
}

std::size_t Handles::pending_count() const {
  const std::lock_guard lock(mutex_);
  return pending_count_;
}

}  // namespace byteps
