// What a shelf keeps of each tensor, of its parts, and of their frames. The shelf's invariants are in shelf.h.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/ids.h"
#include "base/time.h"
#include "kernels/coding.h"
#include "kernels/kernels.h"
#include "net/transport.h"
#include "net/wire.h"
#include "server/contributors.h"
#include "server/part_timeline.h"
#include "server/takeover.h"
#include "server/worker_bits.h"

namespace byteps {

struct FrameSum {
  BufferRef accumulator;          // of `round`, in the kernels' accumulator layout
  BufferRef finished;             // the sum of the round before
  TimeNs since_ns = 0;            // when the first contribution of `round` came
  Round round;                    // being summed
  std::uint32_t contributed = 0;  // number of bits set
  bool is_forwarded = false;      // at a relay: complete, and not answered
  bool waits_for_root = false;    // only the root is answered with `finished` (Settling)
  bool is_plain = false;          // `finished` are elements of a tensor that is coded (take_sum())
  std::int32_t priority = 0;      // of the last contribution
  std::unique_ptr<Takeover>
      takeover{};              // of a successor, until its first sum is finished; null: none
  std::uint32_t settling = 0;  // what Settling knows of `finished`; 0: nothing, or that all have it
  std::uint32_t absent = 0;    // members that are lost, and were said not to be in its sums
  // Whether it waits for contributions.
  bool is_begun() const { return contributed > 0 && !is_forwarded; }
};

struct TensorSum;

struct PartSum {
  TensorSum* tensor = nullptr;
  PartIndex index;
  std::uint64_t bytes = 0;
  std::uint64_t frame_bytes = 0;  // of all frames but the last
  std::size_t record_bytes = 0;   // of this record
  std::vector<FrameSum> frames;
  std::vector<std::uint64_t> bits;  // a bit per worker, for each frame
  // Likewise: members of crews that have contributed that are lost and not in it; empty: nobody ever was.
  std::vector<std::uint64_t> lacking;
  std::vector<std::uint32_t> tags;  // by worker: of its operation in the round being summed
  // Frames that a relay has contributed which is gone, and the one that stands in for it has not pushed yet, by whose
  // relays they are: it is not answered before it does, for it knows of no such push.
  std::vector<std::pair<std::uint32_t, WorkerRank>> unsaid;
  std::size_t incomplete_count = 0;  // frames with a bit set

  // Deterministic sums of floats only.
  struct InOrder {
    std::vector<std::uint32_t> added;  // by frame: so many, by place, are in the accumulator
    std::vector<BufferRef> held;       // by frame and contributor: came before its turn
  };
  InOrder in_order;
  // Of codes that are fed back, and momentum.
  struct Carried {
    std::uint64_t offset = 0;  // of the part, in its tensor
    BufferRef residual;        // what the codes of its last sum left: of its one frame
  };
  Carried carried;

  std::uint64_t alarm_number = 0;  // the one alarm that counts (alarms.h)
  TimeNs alarm_due_ns = kNever;    // kNever: none is set
  bool is_young = false;           // its alarm is in the list of young ones, between these
  PartSum* elder = nullptr;
  PartSum* younger = nullptr;
  struct Wanted {
    std::uint32_t count = 0;   // how often contributions were asked for ...
    Round round;               // ... in this round ...
    std::uint32_t frames = 0;  // ... to the frames below this
  };
  Wanted wanted;

  std::unique_ptr<PartTimeline> timeline;  // null: none is recorded

  // Who has contributed to this frame.
  bool is_unsaid(std::uint32_t frame, WorkerRank worker) const {
    return std::find(unsaid.begin(), unsaid.end(), std::pair(frame, worker)) != unsaid.end();
  }
  std::span<std::uint64_t> bits_of(std::size_t frame);
  std::span<const std::uint64_t> bits_of(std::size_t frame) const;
  // Whether the crew of this worker has contributed to this frame without it, because it is lost.
  bool is_said_to_lack(std::size_t frame, WorkerRank worker) const;
  std::uint32_t lacking_count(std::size_t frame) const;
  void clear_lacking(std::size_t frame);
  // Of its elements; of a payload of them.
  std::size_t frame_length(std::uint32_t frame) const {
    return std::min(frame_bytes, bytes - frame * frame_bytes);
  }
  std::size_t payload_length(std::uint32_t frame) const;
  // Of its sums that are coded here.
  PartPlace place_of(Round round) const;
  std::size_t finished_length(std::uint32_t frame) const {
    return frames[frame].is_plain ? frame_length(frame) : payload_length(frame);
  }
};

struct TensorSum {
  // First what each push looks at.
  Key key;
  std::vector<std::uint64_t> declared_here;  // a bit per worker: on its present connection
  std::shared_ptr<const Contributors> contributors;
  Finishing finishing;
  bool is_broadcast = false;
  struct Gone {
    bool is_root = false;  // lost
    bool is_name = false;  // at a relay: its crew have forgotten it, and the servers hear that
  };
  Gone gone;
  bool in_order = false;  // I8
  SumKernels kernels;
  std::unique_ptr<const CodingKernels>
      coding;  // null: its frames travel as they are; or at a relay
  wire::Declare declared;
  std::size_t declared_bytes = 0;  // of this record
  WorkerRank declared_by;          // who declared it first
  std::uint64_t part_count = 0;
  Round next_round;  // of its frames at least, when the last generation of inputs ended here
  // That it cannot be summed, and why.
  struct Spoiled {
    Code code = Code::kOk;  // kOk: it can
    std::string text;
    Cause cause;  // of what was said elsewhere
  };
  Spoiled spoiled;
  // A bit per worker: on any connection.
  std::vector<std::uint64_t> declared_ever;
  std::vector<std::uint64_t> forgotten;
  // At a server: whom the leaders of parts miss in their crews, as each said last.
  struct Lack {
    Round round;
    std::vector<std::uint32_t> ranks;
  };
  std::map<WorkerRank, Lack> lacks;
  struct MissingTold {
    std::vector<std::uint32_t> ranks;
    TimeNs at_ns = 0;
  };
  MissingTold missing_told;  // whom its parts missed, as said last, and when
  std::map<PartIndex, std::unique_ptr<PartSum>> parts;
};

inline std::span<std::uint64_t> PartSum::bits_of(std::size_t frame) {
  const std::size_t words = tensor->declared_here.size();
  return std::span(bits).subspan(frame * words, words);
}
inline std::span<const std::uint64_t> PartSum::bits_of(std::size_t frame) const {
  const std::size_t words = tensor->declared_here.size();
  return std::span(bits).subspan(frame * words, words);
}
inline std::size_t PartSum::payload_length(std::uint32_t frame) const {
  const std::size_t length = frame_length(frame);
  return tensor->coding ? tensor->coding->payload_bytes(length) : length;
}
inline PartPlace PartSum::place_of(Round round) const {
  return {.key = tensor->key, .part = index, .round = round};
}
inline bool PartSum::is_said_to_lack(std::size_t frame, WorkerRank worker) const {
  const std::size_t words = tensor->declared_here.size();
  return !lacking.empty() && has_bit(std::span(lacking).subspan(frame * words, words), worker);
}
inline std::uint32_t PartSum::lacking_count(std::size_t frame) const {
  std::uint32_t count = 0;
  for (WorkerRank each(0); each.value < tags.size(); ++each.value) {
    if (is_said_to_lack(frame, each)) ++count;
  }
  return count;
}
inline void PartSum::clear_lacking(std::size_t frame) {
  if (lacking.empty()) return;
  const std::size_t words = tensor->declared_here.size();
  std::fill_n(lacking.begin() + static_cast<std::ptrdiff_t>(frame * words), words, 0);
}

}  // namespace byteps
