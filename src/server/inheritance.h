// Inheritance: what a shard that took another one's place learns of each frame from the workers, and has them do until
// all frames are where the one before has left them (takeover.h has the rule). It does to frames what the rule says;
// who may push what, and when a frame is finished, is the shelf's.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "net/wire.h"
#include "server/generations.h"
#include "server/inventory.h"
#include "server/settling.h"
#include "server/shelf_output.h"
#include "server/takeover.h"

namespace byteps {

struct ShelfEpoch;

class Inheritance {
 public:
  // All outlive it. `facts`: of the epoch that the shelf serves.
  Inheritance(const ShelfEpoch& facts, Inventory& inventory, Settling& settling,
              const Generations& generations)
      : facts_(facts), inventory_(inventory), settling_(settling), generations_(generations) {}

  void begin_epoch(std::uint32_t worker_count);
  // All are in a later generation of inputs.
  void begin_generation();

  // A worker is connected anew; its connection has ended: what it was asked for is asked of another.
  void connect(WorkerRank worker, ShelfOutputs& out);
  void disconnect(WorkerRank worker, ShelfOutputs& out);
  // It is lost, and never comes back: what it had is gone with it.
  void lose(WorkerRank worker, ShelfOutputs& out);
  // It has left, and takes along what it had.
  void leave(WorkerRank worker, ShelfOutputs& out);
  // Tensors of which somebody needs a sum that only workers had which have left, with one of those; since the last
  // call.
  std::map<Key, WorkerRank> take_gone() { return std::exchange(gone_, {}); }

  // A push of a frame that has a takeover; whether it is to be added.
  bool admits(PartSum& part, std::uint32_t frame_index, WorkerRank from, const wire::Header& header,
              ShelfOutputs& out);
  // A worker says of which frames of a part it has sums. An empty text, or what is wrong with it.
  const char* have(PartSum& part, WorkerRank from, const wire::Header& header,
                   std::span<const std::byte> payload, ShelfOutputs& out);
  // It brings the finished sum of a round of a frame.
  void take_sum(PartSum& part, std::uint32_t frame_index, const wire::Header& header,
                std::span<const std::byte> payload, ShelfOutputs& out);

  // ---- at a relay
  // Nobody of the crew needs the sum of the round before any more that has not got it, so far as is known: it is here,
  // or all have it, who contribute.
  bool is_over(const PartSum& part, std::uint32_t frame_index) const;
  // Tells of all frames of which that is so.
  void tell_of_had(const TensorSum& tensor, ShelfOutputs& out) const;
  // A sum is asked for.
  static bool is_fetching(const TensorSum& tensor);
  bool has_told(WorkerRank worker) const;
  bool is_connected(WorkerRank worker) const;

  // It has said all that it has; and what it has not declared then, it knows to be forgotten by all.
  void note_all_is_told(WorkerRank from, ShelfOutputs& out);
  bool knows_forgotten(const TensorSum& tensor, WorkerRank worker) const;
  // It has, or will say that it has, no more inputs: others may be further.
  void note_ending(WorkerRank from);

 private:
  using Change = Takeover::Doing (Takeover::*)(WorkerRank, const Takeover::Scene&);
  void for_all(Change change, WorkerRank worker, ShelfOutputs& out);
  Takeover::Scene scene_of(const PartSum& part, std::uint32_t frame_index) const;
  bool carry_out(const Takeover::Doing& doing, PartSum& part, std::uint32_t frame_index,
                 WorkerRank from, ShelfOutputs& out);
  void tell_settled(const PartSum& part, std::uint32_t frame_index, Round round, WorkerRank whom,
                    ShelfOutputs& out) const;
  void look_whether_all_have(PartSum& part, std::uint32_t frame_index, ShelfOutputs& out);
  void tell_if_had(const PartSum& part, std::uint32_t frame_index, ShelfOutputs& out) const;
  void look_whether_any_is_gone(ShelfOutputs& out);
  void look_whether_gone(PartSum& part, std::uint32_t frame_index, ShelfOutputs& out);
  bool may_another_tell(const PartSum& part) const;
  void drop_contributions(PartSum& part, std::uint32_t frame_index);

  const ShelfEpoch& facts_;
  Inventory& inventory_;
  Settling& settling_;
  const Generations& generations_;
  // A bit per worker.
  std::vector<std::uint64_t> connected_;
  std::vector<std::uint64_t> told_;
  std::vector<std::uint64_t> ending_;
  std::vector<std::uint64_t> left_;
  std::map<Key, WorkerRank> gone_;
};

}  // namespace byteps
