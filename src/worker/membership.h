// Membership: what the threads of this process know of its job: whether it is in it, and with which rank among how
// many. The worker's loop says it; any thread reads it, or waits for it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

#include "base/config.h"
#include "base/ids.h"
#include "base/status.h"
#include "base/time.h"
#include "worker/neighbours.h"

namespace byteps {

class Membership {
 public:
  // A job of one is joined at once.
  explicit Membership(const Config& config);

  // ---- any thread
  // kAgain: joining; ok: joined; otherwise why not any more.
  Status state() const;
  // Blocks until it is not kAgain any more, at most so long (negative or kNever: without limit).
  Status wait(TimeNs timeout_ns) const;

  // Constant once joined.
  std::uint32_t rank() const { return rank_.load(std::memory_order_acquire); }
  std::uint32_t size() const { return size_.load(std::memory_order_acquire); }
  std::uint32_t local_rank() const { return local_rank_.load(std::memory_order_acquire); }
  std::uint32_t local_size() const { return local_size_.load(std::memory_order_acquire); }
  std::uint32_t server_count() const { return server_count_.load(std::memory_order_acquire); }
  Epoch epoch() const { return Epoch(epoch_.load(std::memory_order_acquire)); }  // 0: a job of one
  Incarnation incarnation() const;  // of the job; zeros before it has joined, and in a job of one
  // Which machine each worker is on, by rank; empty before it has joined.
  std::vector<std::uint32_t> machines() const;
  // The lowest rank that is not vacant, and how many are: workers that were lost, without which the job goes on.
  std::uint32_t leader() const { return leader_.load(std::memory_order_acquire); }
  std::uint32_t lost_workers() const { return lost_workers_.load(std::memory_order_acquire); }
  // Who said last that it has no more inputs; for those that have waited for the end of all inputs.
  std::uint32_t last_with_inputs() const {
    return last_with_inputs_.load(std::memory_order_acquire);
  }

  // ---- the loop
  struct Facts {
    std::uint32_t rank = 0;
    Neighbours neighbours;
    std::uint32_t server_count = 0;
    Epoch epoch;
    Incarnation incarnation{};
  };
  void joined(Facts facts);
  void ended(const Status& why);                     // the first reason stays
  void lost(const std::vector<WorkerRank>& vacant);  // all of them, in order of rank
  void inputs_ended(WorkerRank last) {
    last_with_inputs_.store(last.value, std::memory_order_release);
  }

 private:
  std::atomic<std::uint32_t> rank_;
  std::atomic<std::uint32_t> size_;
  std::atomic<std::uint32_t> local_rank_;
  std::atomic<std::uint32_t> local_size_;
  std::atomic<std::uint32_t> server_count_;
  std::atomic<std::uint32_t> epoch_{0};
  std::atomic<std::uint32_t> last_with_inputs_{0};
  std::atomic<std::uint32_t> leader_{0};
  std::atomic<std::uint32_t> lost_workers_{0};

  mutable std::mutex mutex_;  // guards what follows
  mutable std::condition_variable state_changed_;
  Status state_;
  std::vector<std::uint32_t> machines_;
  Incarnation incarnation_{};
};

}  // namespace byteps
