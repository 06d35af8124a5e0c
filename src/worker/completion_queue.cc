#include "worker/completion_queue.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "base/check.h"

namespace byteps {

Status CompletionQueue::begin(std::size_t most) {
  const std::lock_guard lock(mutex_);
  if (closed_) return {Code::kCancelled, "the queue's job was left"};
  if (outstanding_ >= most) {
    return {Code::kAgain,
            std::to_string(outstanding_) +
                " operations are pending on the queue, or not taken from it: take some first"};
  }
  ++outstanding_;
  return Status::ok();
}

void CompletionQueue::forget() {
  const std::lock_guard lock(mutex_);
  CHECK(outstanding_ > ended_.size()) << "nothing is pending on this queue";
  --outstanding_;
}

void CompletionQueue::push(Ended ended) {
  bool was_empty = false;
  {
    const std::lock_guard lock(mutex_);
    CHECK(!closed_) << ended.handle << " ended on a closed queue";
    was_empty = ended_.empty();
    ended_.push_back(std::move(ended));
  }
  if (was_empty) changed_.notify_one();
}

void CompletionQueue::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
}

Status CompletionQueue::take(std::span<Ended> ended, std::size_t& count, TimeNs timeout_ns) {
  // See Handles::wait.
  constexpr TimeNs kLongNs = TimeNs{3600} * 24 * 365 * kSecond;
  count = 0;
  if (ended.empty()) return {Code::kInvalidArgument, "there is no room for what has ended"};
  std::unique_lock lock(mutex_);
  const auto ready = [this] { return closed_ || !ended_.empty(); };
  if (timeout_ns < 0 || timeout_ns == kNever) {
    changed_.wait(lock, ready);
  } else {
    ++takers_;
    changed_.wait_for(lock, std::chrono::nanoseconds(std::min(timeout_ns, kLongNs)), ready);
    --takers_;
  }
  while (count < ended.size() && !ended_.empty()) {
    const bool failed = !ended_.front().result.is_ok();
    if (failed && count > 0) break;
    ended[count++] = std::move(ended_.front());
    ended_.pop_front();
    if (failed) break;
  }
  outstanding_ -= count;
  if (!ended_.empty()) {  // for another thread that takes
    lock.unlock();
    changed_.notify_one();
  }
  if (count > 0) return Status::ok();
  if (closed_) return {Code::kCancelled, "the job was left, and all ends are reported"};
  return {Code::kAgain, "nothing has ended yet"};
}

std::size_t CompletionQueue::idle_takers() const {
  const std::lock_guard lock(mutex_);
  return ended_.empty() && !closed_ ? takers_ : 0;
}

std::size_t CompletionQueue::outstanding() const {
  const std::lock_guard lock(mutex_);
  return outstanding_;
}

}  // namespace byteps
