// TensorTable: what this worker knows of each tensor: its declaration, its parts, its round, its line of operations.
//
// Invariants
//  1. A tensor is its name. Its key is key_of(name); two names of one key are refused.
//  2. A tensor keeps the declaration of its first use; another one is refused before anything is sent.
//  3. At most one operation of a tensor is under way; the others wait in its line. Rounds go strictly one after the
//     other.
//  4. Frames are counted over the tensor: those of part p begin with p * frames_per_part. Bit f of `answered` is
//     frame f's.
//  5. A name that was given up (used once) is refused while it is remembered: ranks that are behind would mix up its
//     rounds.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/flat_map.h"
#include "base/ids.h"
#include "base/spec.h"
#include "base/status.h"
#include "kernels/coding.h"
#include "worker/gate.h"
#include "worker/route.h"

namespace byteps {

class Cargo;

// Index of an operation in the Pipeline's table.
using OpIndex = std::uint32_t;
inline constexpr OpIndex kNoOp = 0xffffffff;
// Index of a tensor in the TensorTable.
using TensorIndex = std::uint32_t;
inline constexpr TensorIndex kNoTensor = 0xffffffff;

// A part on its way through the current round.
struct PartState {
  // constant (see base/placement.h and worker/route.h)
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  ShardIndex shard;  // the way it goes
  std::uint32_t frame_count = 1;
  std::uint64_t frame_bytes = 0;  // of all its frames but the last

  std::uint32_t next_frame = 0;   // on this connection, all before it are sent or already answered
  std::uint32_t sent_frames = 0;  // ever sent in this round: the frames below this
  std::uint32_t answered_frames = 0;  // how many of them
  Gate::Ticket ticket = Gate::kNoTicket;
  static constexpr std::uint8_t kOffRoad = 0xff;
  std::uint8_t stage = kOffRoad;    // which row of the road it is in (road.h)
  std::uint16_t way = 0;            // constant: place in Tensor::ways
  std::uint32_t wanted_rounds = 0;  // rounds below this are wanted by others ...
  std::uint64_t wanted_end = 0;  // ... of the last of them the frames that begin before this byte
  // So many Forgets ever were sent to its shard before this round's first frame, on the same connection; 0: not known.
  std::uint64_t forgets_before = 0;

  bool is_wanted(Round round) const {
    if (wanted_rounds != round.value + 1) return wanted_rounds > round.value;
    return next_frame * frame_bytes < wanted_end;
  }
  // Of the round, up to there.
  void want(Round round, std::uint64_t end) {
    if (round.value + 1 < wanted_rounds) return;
    wanted_end = round.value + 1 == wanted_rounds ? std::max(wanted_end, end) : end;
    wanted_rounds = round.value + 1;
  }
  void begin_round() { next_frame = sent_frames = answered_frames = 0; }
};

// What a worker has of the last sum of a frame (kept_sums.h).
struct KeptFrame {
  enum class Where : std::uint8_t {
    kNowhere,    // nothing came yet
    kOperation,  // in the memory of the active operation
    kCopy,
    kRoot,  // the root has it, which alone gets it; others may not know
    kOwn,  // nobody else contributes, so it goes with the operation; the shard may not know that it came
    kGone,  // nobody lacks it
  };
  BufferRef copy;
  Round round;  // whose sum it is
  Where where = Where::kNowhere;
  bool crew_has = false;  // at a relay: all of its crew have it
  bool is_plain = false;  // the copy has elements though the tensor travels coded
};

// Of a tensor whose frames travel coded (coder.h): how, and what is pushed of each frame of the active operation
// (invariant 4) while it may be pushed again.
struct Codes {
  CodingKernels kernels;
  std::vector<BufferRef> frames;
};

// A way that parts of a tensor go.
struct TensorWay {
  ShardIndex shard;
  std::uint32_t declared_on = 0;  // the connection that has the declaration
};

struct Tensor {
  // What each frame needs comes first, side by side.
  Key key;  // constant

  // the current round
  Round round;
  OpIndex active = kNoOp;
  Cargo* cargo = nullptr;  // the active operation's; null: it has input and output
  std::uint32_t finished_parts = 0;
  std::uint32_t lent_count = 0;       // payloads at a transport: frames and declarations
  std::uint32_t frames_per_part = 1;  // constant
  std::vector<PartState> parts;
  std::vector<std::uint64_t> answered;  // one bit per frame (invariant 4)
  std::vector<TensorWay> ways;          // that its parts go

  // those that wait (linked through the Pipeline's operations)
  struct Line {
    OpIndex first = kNoOp;
    OpIndex last = kNoOp;
  };
  Line line;
  TensorIndex follower = kNoTensor;  // who was submitted next, the last time
  bool once = false;                 // the active or a waiting operation is the name's last
  Status failed;                     // not ok: every further operation ends with it
  std::unique_ptr<Codes> codes;      // null: its frames travel as they are
  std::vector<KeptFrame> kept;       // of each frame (invariant 4) the sum; empty: none ever came

  // constant
  std::optional<ShardIndex> meeting;  // a further way that its declaration goes (Route::meeting)
  std::string name;
  Spec spec;
  std::vector<std::byte> declaration;  // the payload of its Declare, lent while it is sent

  // Of one frame, as it travels; an empty part has one empty frame.
  std::uint64_t payload_bytes(const PartState& part, std::uint32_t frame) const {
    const std::uint64_t bytes = std::min(part.frame_bytes, part.bytes - frame * part.frame_bytes);
    return codes != nullptr ? codes->kernels.payload_bytes(bytes) : bytes;
  }
  bool is_answered(std::uint32_t part, std::uint32_t frame) const {
    const std::size_t bit = place_of(part, frame);
    return (answered[bit >> 6] >> (bit & 63) & 1) != 0;
  }
  // Invariant 4.
  std::size_t place_of(std::uint32_t part, std::uint32_t frame) const {
    return std::size_t{part} * frames_per_part + frame;
  }
  void set_answered(std::uint32_t part, std::uint32_t frame) {
    const std::size_t bit = place_of(part, frame);
    answered[bit >> 6] |= std::uint64_t{1} << (bit & 63);
  }
};

class TensorTable {
 public:
  explicit TensorTable(Route route) : route_(std::move(route)) {}
  explicit TensorTable(Placement placement) : TensorTable(Route(std::move(placement))) {}

  // The tensor of this name, new or known. kInvalidArgument: known with another declaration (the message has both),
  // another name has the same key, the name was given up, or there would be too many parts.
  Result<TensorIndex> find_or_add(std::string_view name, const Spec& spec);

  // kNoTensor when there is none.
  TensorIndex find(Key key) const;
  Tensor& operator[](TensorIndex index) { return tensors_[index]; }
  const Tensor& operator[](TensorIndex index) const { return tensors_[index]; }
  // Forgets the tensor for ever; nothing of it may be under way. The last kGivenUpMax names are remembered and refused.
  void give_up(TensorIndex index);
  static constexpr std::size_t kGivenUpMax = 65536;

  // The round that all tensors, and new ones, are in from now on; nothing may be under way.
  void begin_generation(Round first);
  // The one that has gone through the most rounds since then; null when there is none.
  const Tensor* most_rounds() const;

  std::size_t size() const { return by_key_.size(); }
  // All indices are below this; those without a tensor have an empty one.
  std::size_t slot_count() const { return tensors_.size(); }
  const Placement& placement() const { return route_.placement(); }
  const Route& route() const { return route_; }

  // Bytes of one frame; an empty part has one empty frame.
  static std::uint64_t frame_bytes(const PartState& part, std::uint32_t frame) {
    return std::min(part.frame_bytes, part.bytes - frame * part.frame_bytes);
  }

 private:
  TensorIndex guess(std::string_view name) const;
  void follow(TensorIndex index);
  void cut_up(Tensor& tensor) const;

  const Route route_;
  Round first_round_;
  std::vector<Tensor> tensors_;
  std::vector<TensorIndex> free_;
  FlatMap<Key, TensorIndex, HashedHome> by_key_;
  TensorIndex recent_ = kNoTensor;    // that of the last find_or_add()
  std::unordered_set<Key> given_up_;  // those in given_up_ring_
  std::vector<Key> given_up_ring_;
  std::size_t given_up_next_ = 0;  // the oldest in the ring, once it is full
};

}  // namespace byteps
