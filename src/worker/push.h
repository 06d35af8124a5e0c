// Push: the stage in which a part is sent, and what else goes out to the shards. A part waits at the gate of its shard;
// when it is the first in order and there is credit, its next frame may go. Before the first frame of a tensor on a
// connection goes its Declare; before everything else go Forgets and the word about the inputs.
//
// A part that others want goes first and without credit, a frame at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "net/transport.h"
#include "net/wire.h"
#include "worker/flow.h"
#include "worker/inputs.h"
#include "worker/kept_sums.h"
#include "worker/road.h"
#include "worker/work.h"

namespace byteps {

class Push final : public Stage {
 public:
  // All outlive it. The road, which it stands in, is not used before it is made.
  Push(Work& work, Flow& flow, const Inputs& inputs, KeptSums& kept, Road& road)
      : work_(work), flow_(flow), inputs_(inputs), kept_(kept), road_(road) {}

  // ---- the stage
  void enter(PartRef part, Tensor& tensor, TimeNs now) override;
  void abandon(PartRef part, Tensor& tensor) override;

  // Before a round's parts enter: what shards wanted of the tensor before it was submitted here for the first time.
  void begin_round(Tensor& tensor);
  // Steps over frames that are answered already. True: nothing is left to send, and the part has left the gate. (It
  // also does where the next frame is not ready; then it enters again when that is.)
  bool advance(Tensor& tensor, std::uint32_t part);
  // After a frame of this part is sent or answered: its place at the gate.
  void place(const Tensor& tensor, const PartState& part);

  // ---- from the shards
  // Their connection has ended: what this part had sent and was not answered has to be sent again, first and without
  // credit: if only its answer was lost, no shard will ever want it, while all others may wait for what this worker
  // does after it.
  void forget_sent(const Tensor& tensor, PartState& part);
  // Others wait for this part.
  void on_wanted(ShardIndex shard, const wire::Header& header);
  // Its first part goes in spite of credit, so that its shard asks the others for it and says whom it misses.
  void want_first_part(TensorIndex tensor);
  // Rounds that shards want and that have not been submitted, by key; at most so many.
  std::vector<wire::NotBegun> not_begun(std::size_t count_max) const;
  // The payload of a word is ours again. False: this token is one of a part.
  bool on_sent(SendToken token);
  // Of which part a transport had something.
  static PartRef part_of(SendToken token);
  // A new generation of inputs: what was wanted is of the one before.
  void forget_wanted() { wanted_early_.clear(); }

  // ---- to the shards: see Pipeline::front() and pop(). A part that pop() has sent to its end leaves.
  bool front(ShardIndex shard, Outgoing& message);
  struct Sent {
    PartRef part;         // kPush: a frame of it
    bool leaves = false;  // that was its last
  };
  Sent pop();

 private:
  enum class Staged : std::uint8_t {
    kNothing,
    kDeclare,
    kPush,
    kWord,
    kKept,
    kForget,
    kInputs,
    kAck
  };

  bool has_next_frame(const Tensor& tensor, std::uint32_t part) const;
  bool stage_control(ShardIndex shard, wire::Header& header, Outgoing& message);
  void stage_word(const Word& word, wire::Header& header, Outgoing& message);
  bool stage_inputs(ShardIndex shard, bool before_sums, wire::Header& header);
  bool stage_ack(ShardIndex shard, wire::Header& header);
  bool stage_tensor(ShardWay& shard, wire::Header& header, Outgoing& message);
  void stage_frame(Tensor& tensor, std::uint32_t frame, wire::Header& header, Outgoing& message);
  std::span<const std::byte> code(Tensor& tensor, std::uint32_t frame,
                                  std::span<const std::byte> elements);
  Sent pop_frame(ShardWay& shard);
  void lend(Tensor& tensor);
  std::uint32_t& declared_on(Tensor& tensor) const {
    return tensor.ways[tensor.parts[staged_part_.part].way].declared_on;
  }

  // Told of the inputs before sums: what no word is.
  static constexpr std::uint64_t kInputsBefore = UINT64_MAX;
  // The tokens of words begin here; those of parts are below it, and those of the shell's own messages have the top
  // bit (member/outbox.h).
  static constexpr SendToken kWordToken = SendToken{1} << 62;
  static_assert(kPartsMax << 32 < kWordToken);

  Work& work_;
  Flow& flow_;
  const Inputs& inputs_;
  KeptSums& kept_;
  Road& road_;
  struct Early {
    Round round;
    std::uint64_t end = 0;
  };
  std::map<std::pair<Key, PartIndex>, Early> wanted_early_;  // of tensors not submitted here yet
  std::map<SendToken, std::shared_ptr<const Word>> lent_words_;
  SendToken last_word_ = kWordToken;

  // between front() and pop()
  Staged staged_ = Staged::kNothing;
  ShardIndex staged_shard_;
  PartRef staged_part_;
  std::uint64_t staged_inputs_ = 0;         // what is told of them
  std::uint64_t staged_bytes_ = 0;          // what the frame covers of the tensor
  std::uint64_t staged_cost_ = 0;           // of the credit
  std::uint64_t staged_element_bytes_ = 0;  // what of it is sent
  std::uint64_t staged_payload_bytes_ = 0;  // the same as it travels
  wire::HeaderBytes staged_header_{};
};

}  // namespace byteps
