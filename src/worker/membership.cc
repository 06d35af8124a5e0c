#include "worker/membership.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"

namespace byteps {

Membership::Membership(const Config& config)
    : rank_(config.job.rank),
      size_(config.job.worker_count),
      local_rank_(config.job.local.rank),
      local_size_(config.job.local.size),
      server_count_(config.job.server_count) {
  if (config.job.scheduler_host.empty()) {
    rank_ = 0;
    size_ = 1;
    server_count_ = 0;
    machines_ = {0};
  } else {
    state_ = Status(Code::kAgain, "the job is not complete yet");
  }
}

Status Membership::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

Status Membership::wait(TimeNs timeout_ns) const {
  constexpr TimeNs kLongNs = TimeNs{3600} * 24 * 365 * kSecond;  // see Handles::wait
  std::unique_lock lock(mutex_);
  const TimeNs limit_ns = timeout_ns < 0 ? kLongNs : std::min(timeout_ns, kLongNs);
  if (limit_ns > 0) {
    state_changed_.wait_for(lock, std::chrono::nanoseconds(limit_ns),
                            [this] { return !state_.is(Code::kAgain); });
  }
  return state_;
}

std::vector<std::uint32_t> Membership::machines() const {
  const std::lock_guard lock(mutex_);
  return machines_;
}

Incarnation Membership::incarnation() const {
  const std::lock_guard lock(mutex_);
  return incarnation_;
}

void Membership::joined(Facts facts) {
  rank_.store(facts.rank, std::memory_order_release);
  size_.store(static_cast<std::uint32_t>(facts.neighbours.machines.size()),
              std::memory_order_release);
  local_rank_.store(facts.neighbours.local_rank, std::memory_order_release);
  local_size_.store(facts.neighbours.local_size, std::memory_order_release);
  server_count_.store(facts.server_count, std::memory_order_release);
  epoch_.store(facts.epoch.value, std::memory_order_release);
  {
    const std::lock_guard lock(mutex_);
    machines_ = std::move(facts.neighbours.machines);
    incarnation_ = facts.incarnation;
    if (!state_.is(Code::kAgain)) return;
    state_ = Status::ok();
  }
  state_changed_.notify_all();
}

void Membership::lost(const std::vector<WorkerRank>& vacant) {
  std::uint32_t leader = 0;
  for (const WorkerRank rank : vacant) {
    if (rank.value == leader) ++leader;
  }
  leader_.store(leader, std::memory_order_release);
  lost_workers_.store(static_cast<std::uint32_t>(vacant.size()), std::memory_order_release);
}

void Membership::ended(const Status& why) {
  CHECK(!why.is_ok() && !why.is(Code::kAgain)) << why.text();
  {
    const std::lock_guard lock(mutex_);
    if (!state_.is_ok() && !state_.is(Code::kAgain)) return;
    state_ = why;
  }
  state_changed_.notify_all();
}

}  // namespace byteps
