// Batch: one round of a tensor at a relay: what the workers of its machine have together, frame by frame, of the parts
// that are led there. A frame's memory is given back when it is answered and no transport reads it any more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/groups.h"
#include "base/ids.h"
#include "base/placement.h"
#include "worker/cargo.h"

namespace byteps {

// A tensor as a relay sees it.
struct RelayedTensor {
  Key key;
  Extent extent = 0;
  Crew crew;        // of its machine
  WorkerRank self;  // the relay's
};

class Batch final : public Cargo {
 public:
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void answered(const wire::Header& header, std::span<const std::byte> payload) = 0;
  };

  // Listener and placement outlive it.
  Batch(Listener& listener, const Placement& placement, RelayedTensor tensor, Round round)
      : listener_(listener), placement_(placement), tensor_(std::move(tensor)), round_(round) {}

  Round round() const { return round_; }
  // A frame of a part that is led here, for the first time.
  void put(PartIndex part, std::uint64_t offset, BufferRef buffer, std::size_t bytes,
           const Note& note = {});
  // A frame that is not to be pushed (Pipeline::take_had()); false: it is there.
  bool put_had(PartIndex part, std::uint64_t offset);
  const Extent& extent() const { return tensor_.extent; }
  bool has_ready_frames() const;

  bool is_submitted = false;  // its operation has begun, or waits for that of the round before
  std::int32_t priority = 0;  // of the last push to it

  // Cargo
  bool leads(std::uint32_t part) const override {
    return leader_of(tensor_.crew, tensor_.key, part, placement_.shard_count()) == tensor_.self;
  }
  std::uint32_t ready_frames(std::uint32_t part) const override;
  std::span<const std::byte> frame(std::uint32_t part, std::uint32_t frame) const override;
  Note note(std::uint32_t part, std::uint32_t frame) const override {
    return parts_.at(part).frames[frame].note;
  }
  void on_lent(std::uint32_t part) override { ++parts_.at(part).lent_count; }
  void on_given_back(std::uint32_t part) override;
  void answered(const wire::Header& header, std::span<const std::byte> payload) override;

 private:
  struct Frame {
    BufferRef buffer;
    std::size_t bytes = 0;
    bool is_there = false;
    Note note{};
  };
  struct Part {
    std::uint64_t frame_bytes = 0;
    std::uint32_t ready_count = 0;  // the first of them
    std::vector<Frame> frames;
    // A transport may read a frame after its answer has come: these wait until it has nothing of the part.
    std::uint32_t lent_count = 0;
    std::vector<std::uint32_t> answered;
  };
  Frame& frame_at(PartIndex part, std::uint64_t offset);
  static void count_ready(Part& part);

  Listener& listener_;
  const Placement& placement_;
  const RelayedTensor tensor_;
  const Round round_;
  std::map<std::uint32_t, Part> parts_;  // of which something has come
};

}  // namespace byteps
