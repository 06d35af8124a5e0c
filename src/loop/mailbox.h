// Mailbox: how another thread hands work to an Actor. Many producers, one consumer, bounded.
//
// A lock, held for one push_back or one swap, is easier to be sure of than a lock-free ring, and waking the
// consumer costs far more. The wake-up happens only when the box was empty.
#pragma once

#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

#include "base/planted.h"
#include "base/status.h"
#include "loop/actor.h"

namespace byteps {

template <typename T>
class Mailbox {
 public:
  // `waiter` (may be null) is woken when something arrives; it must outlive the Mailbox's last
  // post().
  Mailbox(std::size_t capacity, Waiter* waiter) : capacity_(capacity), waiter_(waiter) {}

  // Any thread. kAgain: the box is full, nothing was taken. kCancelled: closed, nothing was taken.
  Status post(T&& item) {
    bool was_empty = false;
    {
      const std::lock_guard lock(mutex_);
      if (closed_) return {Code::kCancelled, "the receiver has ended"};
      if (items_.size() >= capacity_) return {Code::kAgain, "the mailbox is full"};
      was_empty = items_.empty() && !(PLANTED(lost_wake_up) && items_.capacity() > 0);
      items_.push_back(std::move(item));
    }
    if (was_empty && waiter_ != nullptr) waiter_->wake();
    return Status::ok();
  }

  // Consumer only: everything posted so far, in order. The vector is emptied first and its memory
  // reused.
  void drain(std::vector<T>& into) {
    into.clear();
    const std::lock_guard lock(mutex_);
    items_.swap(into);
  }

  // Consumer only: refuses further posts and gives what was still there.
  void close(std::vector<T>& rest) {
    rest.clear();
    const std::lock_guard lock(mutex_);
    closed_ = true;
    items_.swap(rest);
  }

 private:
  const std::size_t capacity_;
  Waiter* const waiter_;
  std::mutex mutex_;  // guards what follows
  std::vector<T> items_;
  bool closed_ = false;
};

}  // namespace byteps
