#include "net/tcp/reactor.h"

#include <algorithm>
#include <cerrno>

#include <sys/eventfd.h>
#include <unistd.h>

#include "net/tcp/socket.h"

namespace byteps::tcp {

Reactor::~Reactor() {
  if (wake_ >= 0) ::close(wake_);
  if (epoll_ >= 0) ::close(epoll_);
}

Status Reactor::open() {
  epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
  if (epoll_ < 0) return socket_error("epoll_create1", errno);
  wake_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_ < 0) return socket_error("eventfd", errno);
  return watch(wake_, kWake, EPOLLIN);
}

Status Reactor::watch(int descriptor, std::uint64_t word, std::uint32_t events) {
  epoll_event interest{};
  interest.events = events | EPOLLET;
  interest.data.u64 = word;
  if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &interest) == 0) return Status::ok();
  return system_error("epoll_ctl", errno);
}

bool Reactor::rewatch(int descriptor, std::uint64_t word, std::uint32_t events) {
  epoll_event interest{};
  interest.events = events == 0 ? 0 : events | EPOLLET;
  interest.data.u64 = word;
  return ::epoll_ctl(epoll_, EPOLL_CTL_MOD, descriptor, &interest) == 0;
}

// ---- what has come

std::span<const epoll_event> Reactor::gather(int timeout_ms) {
  const int count =
      ::epoll_wait(epoll_, ready_.data(), static_cast<int>(ready_.size()), timeout_ms);
  const auto ready = std::span(ready_).first(static_cast<std::size_t>(std::max(count, 0)));
  const auto is_wake = [](const epoll_event& event) { return event.data.u64 == kWake; };
  wake_pending_ |= std::any_of(ready.begin(), ready.end(), is_wake);
  return ready;
}

// wait() looks anyway. An owner that has handled input takes a poll that writes its answers and one that finds nothing
// more before it waits again; without anything active those two need no look of their own.
std::span<const epoll_event> Reactor::look() {
  constexpr int kUnlookedMax = 2;
  if (std::exchange(gathered_, false)) {
    unlooked_count_ = 0;
    return {};
  }
  if (active_.empty() && unlooked_count_ < kUnlookedMax) {
    ++unlooked_count_;
    return {};
  }
  unlooked_count_ = 0;
  return gather(0);
}

// ---- sleeping

bool Reactor::fall_asleep() {
  asleep_.store(true);  // before it asks wanted_: wake() does the two the other way round
  return !wanted_.exchange(false);
}

std::span<const epoll_event> Reactor::wait_for_input(TimeNs timeout_ns) {
  // Rounded up: waking before the deadline would only mean to wait once more.
  constexpr TimeNs kLongestMs = 60'000;
  const TimeNs timeout_ms =
      std::min(kLongestMs, timeout_ns / kMillisecond + (timeout_ns % kMillisecond > 0 ? 1 : 0));
  const auto ready = gather(timeout_ns == kNever ? -1 : static_cast<int>(timeout_ms));
  gathered_ = true;
  wake_pending_ = false;
  return ready;
}

void Reactor::wake_up(bool has_slept) {
  // What was wanted until here is seen by the turn that follows.
  if (has_slept) wanted_.exchange(false);
  asleep_.store(false);
}

void Reactor::wake() {
  wanted_.store(true);
  if (!asleep_.load()) return;
  const std::uint64_t one = 1;
  // Fails only when the counter is full; then the edge of an earlier write is still to be seen.
  [[maybe_unused]] const ssize_t written = ::write(wake_, &one, sizeof one);
}

// ---- turns

void Reactor::activate(Turn& turn) {
  if (!std::exchange(turn.is_active, true)) active_.push_back(turn.serial);
}

void Reactor::mark_dirty(Turn& turn) {
  if (!std::exchange(turn.is_dirty, true)) dirty_.push_back(turn.serial);
}

void Reactor::starve(Turn& turn) {
  turn.is_active = true;
  starved_.push_back(turn.serial);
}

void Reactor::set_deadline(Turn& turn, TimeNs deadline) {
  if (turn.deadline != kNever) deadlines_.erase({turn.deadline, turn.serial});
  turn.deadline = deadline;
  if (deadline != kNever) deadlines_.insert({deadline, turn.serial});
}

std::uint64_t Reactor::take_active() {
  const std::uint64_t serial = active_.front();
  active_.pop_front();
  return serial;
}

std::optional<std::uint64_t> Reactor::expired() const {
  if (deadlines_.empty() || deadlines_.begin()->first > now_) return std::nullopt;
  return deadlines_.begin()->second;
}

void Reactor::end_poll() {
  active_.insert(active_.begin(), starved_.begin(), starved_.end());
  starved_.clear();
}

}  // namespace byteps::tcp
