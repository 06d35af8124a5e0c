// Staging: tensors on devices, part by part through pinned host memory. The core: it orders copies and is told when
// they are over (device/orders.h); the shell has the mailboxes.
//
//   copy_out   waits until the call's stream has come so far, and for a slab; leaves when the first chunk has been
//              copied there. The others follow while the first are pushed
//   copy_in    answers are copied to the device chunk by chunk while the part is still pulled; leaves when the last
//              is there
//
// So for each part there is one slab, a piece of the pinned pool (device/slabs.h), from which its frames are pushed and
// in which their answers are collected: an answered frame is not pushed any more. Slabs go to parts whose input is
// ready, in the order of the gates. Memory is bounded by the pool, or by one part that is larger. Only parts that
// others wait for, and the first part of such a tensor, go beyond it, in memory that is not pinned: their copies are
// slow, but a rank must never wait for one which waits for it. There are never more of them than others have pushed and
// not been answered, and first parts. And while no slab comes back one part after the other, ever more rarely: the pool
// may be full of tensors that others submit only when they have one that waits here, and has been begun nowhere.
//
// To the pipeline an operation on a device is a Cargo, and these two stages are for cargo only: tensors in host memory
// pass them by.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "base/time.h"
#include "device/orders.h"
#include "device/slabs.h"
#include "worker/cargo.h"
#include "worker/road.h"
#include "worker/staging_timeline.h"
#include "worker/tensor_table.h"
#include "worker/work.h"

namespace byteps {

struct StagingCounters {
  std::uint64_t out_bytes = 0;       // copied from devices to the host
  std::uint64_t in_bytes = 0;        // and the other way
  std::uint64_t unpinned_parts = 0;  // that found no room in the pool
};

class Staging {
 public:
  // The pool outlives it. `chunk_bytes`: device::Port's.
  Staging(std::span<std::byte> pool, std::size_t chunk_bytes)
      : chunk_bytes_(chunk_bytes), slabs_(pool) {}
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // The two rows. They belong to one pipeline.
  RoadEnds road_ends();
  // Rank and order are known when the job has begun. `timeline`: null, where none is recorded.
  void begin(WorkerRank self, bool priority_scheduling, TimelineLane* timeline);

  // A call of a tensor on a device: from here on it has a cargo instead of input and output. Its handle will end.
  void take(PipelineCall& call);
  void on_ended(HandleId handle);

  void on_report(const device::Report& report);
  // The job ends: nothing more is begun.
  void end() {
    is_ending_ = true;
    stall_ends_ns_ = kNever;
  }
  // Nobody will report any more: what is under way counts as over, and the memory as taken for ever.
  void give_up();

  // To be posted, in order.
  std::deque<device::Order>& orders() { return orders_; }
  // A copy is under way, or an operation waits for its stream: this worker may go on without any other.
  bool waits_for_device() const { return copying_ > 0 || unready_ > 0; }
  // Whether memory is in use by a copy.
  bool is_copying() const { return copying_ > 0; }

  const StagingCounters& counters() const { return counters_; }
  const device::Slabs& slabs() const { return slabs_; }

  // So long no slab comes back before a part goes without one; twice as long before the next, up to the most.
  static constexpr TimeNs kStallFirstNs = 50 * kMillisecond;
  static constexpr TimeNs kStallMostNs = kSecond;

 private:
  // A part of an operation.
  struct Part {
    enum class Where : std::uint8_t { kBefore, kCopyOut, kBetween, kCopyIn, kOver };
    Where where = Where::kBefore;
    TensorIndex tensor = kNoTensor;
    std::uint64_t offset = 0;  // in the tensor
    std::uint64_t bytes = 0;
    std::uint64_t frame_bytes = 0;
    std::uint32_t frame_count = 0;
    std::uint32_t frames_per_chunk = 1;
    std::uint32_t ready_frames = 0;
    std::uint32_t copying = 0;  // chunks under way
    std::uint32_t lent = 0;     // to transports
    std::uint32_t landed = 0;   // chunks on the device again
    bool is_wanted = false;     // others wait for it
    bool is_abandoned = false;
    std::span<std::byte> slab;              // empty: it has none
    std::unique_ptr<std::byte[]> unpinned;  // instead of one of the pool's
    std::vector<std::uint32_t> answered;    // frames of each chunk
    StagingTimeline::Times times;
    std::uint32_t chunk_count() const {
      return (frame_count + frames_per_chunk - 1) / frames_per_chunk;
    }
    // Of a chunk, in the part.
    std::uint64_t begin_of(std::uint32_t chunk) const;
    std::uint64_t bytes_of(std::uint32_t chunk) const;
  };

  // An operation.
  class Load final : public Cargo {
   public:
    Load(Staging& staging, PipelineCall& call, std::uint64_t submission);

    bool leads(std::uint32_t /*part*/) const override { return true; }
    std::uint32_t ready_frames(std::uint32_t part) const override {
      return parts[part].ready_frames;
    }
    std::span<const std::byte> frame(std::uint32_t part, std::uint32_t frame) const override;
    void on_lent(std::uint32_t part) override { ++parts[part].lent; }
    void on_given_back(std::uint32_t part) override;
    void answered(const wire::Header& header, std::span<const std::byte> payload) override;
    std::uint32_t abandon(std::uint32_t part) override { return staging_.abandon(*this, part); }

    Part& enter(PartRef ref, const Tensor& tensor);
    StagingTimeline::Whose whose(std::uint32_t part) const {
      return {.key = key, .round = round, .part = part, .bytes = parts[part].bytes};
    }

    const std::uint64_t submission;  // counts them
    const HandleId handle;
    const std::int32_t priority;
    device::Device* const device;
    const device::abi::DeviceAddress input;
    const device::abi::DeviceAddress output;
    const bool gives;        // its frames have payloads
    const bool gets;         // its answers have
    const bool copies_here;  // the result is its own input
    bool is_ready = false;
    Round round;
    Key key;
    std::deque<Part> parts;

   private:
    Staging& staging_;
  };

  class CopyOut final : public Stage {
   public:
    explicit CopyOut(Staging& staging) : staging_(staging) {}
    void enter(PartRef part, Tensor& tensor, TimeNs now) override;
    void abandon(PartRef /*part*/, Tensor& /*tensor*/) override {}  // Load's
    void want(PartRef part, Tensor& tensor) override;
    void tick(TimeNs now, StageOutput& out) override;
    TimeNs next_deadline() const override {
      return staging_.has_news() ? staging_.now_ : staging_.stall_ends_ns_;
    }

   private:
    Staging& staging_;
  };
  class CopyIn final : public Stage {
   public:
    explicit CopyIn(Staging& staging) : staging_(staging) {}
    void enter(PartRef part, Tensor& tensor, TimeNs now) override;
    void abandon(PartRef /*part*/, Tensor& /*tensor*/) override {}  // Load's

   private:
    Staging& staging_;
  };

  // Which part has the next slab: as at a gate (gate.h), so that all ranks begin with the same.
  struct Turn {
    bool can_wait = true;       // nobody waits for it
    std::int64_t priority = 0;  // backwards; 0 without priority scheduling, as the next two
    std::uint32_t round = 0;
    std::uint64_t key = 0;
    std::uint64_t submission = 0;
    std::uint32_t part = 0;
    auto operator<=>(const Turn&) const = default;
  };
  struct Waiting {
    Load* load = nullptr;
    PartRef part;
  };

  Load& load_of(const Tensor& tensor) const { return static_cast<Load&>(*tensor.cargo); }
  Turn turn_of(const Load& load, std::uint32_t part) const;
  void wait_for_slab(Load& load, PartRef part);
  void want(Load& load, std::uint32_t part);
  void allot();
  void end_stall();
  bool lend_slab(Part& part);
  void begin_part(Load& load, PartRef ref);
  void order(Load& load, std::uint32_t part, std::uint32_t chunk, device::Order::Kind kind);
  void copied_out(Load& load, const device::Report& report);
  void copied_in(Load& load, const device::Report& report);
  void leave_if_landed(Load& load, std::uint32_t part);
  std::uint32_t abandon(Load& load, std::uint32_t part);
  void release_if_over(Part& part);
  static std::uint64_t number_of(HandleId handle) {
    return static_cast<std::uint64_t>(handle.value);
  }
  bool has_news() const {
    return !news_.leaving.empty() || !news_.given_back.empty() || !news_.ready.empty();
  }

  CopyOut copy_out_{*this};
  CopyIn copy_in_{*this};
  const std::size_t chunk_bytes_;
  device::Slabs slabs_;
  WorkerRank self_;
  bool priority_scheduling_ = true;
  std::map<HandleId, std::unique_ptr<Load>> loads_;
  std::uint64_t submission_count_ = 0;
  std::map<Turn, Waiting> waiting_;  // for slabs; their inputs are ready
  std::deque<device::Order> orders_;
  std::uint64_t copying_ = 0;         // copies ordered and not reported
  std::uint64_t unready_ = 0;         // loads whose stream has not come so far
  std::uint64_t unpinned_bytes_ = 0;  // beyond the pool, now
  bool is_ending_ = false;
  TimeNs now_ = 0;  // of the last turn
  // While a part waits for a slab and none comes back: when it goes without, and how long that was.
  TimeNs stall_ends_ns_ = kNever;
  TimeNs stall_ns_ = kStallFirstNs;
  StageOutput news_;
  StagingCounters counters_;
  StagingTimeline timeline_;
};

}  // namespace byteps
