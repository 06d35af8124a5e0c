// Shelf: what is summed. The pure core of a shard: a message comes in, what to send comes out. No
// socket, no thread, no clock (docs/protocol.md: "Summing", "Why repeats are harmless", "Hostile
// bytes").
//
// A tensor that somebody declared is an entry (sums.h); a part of it gets a record at its first push; a
// frame of a part has the round being summed, a bit per worker, an accumulator while it is
// incomplete, and the last finished sum. Workers of one machine contribute together: who of them pushes
// a part, and is answered, is in contributors.h.
//
// Invariants (n contributors to the part; frame f sums round r, that is: its rounds below r are finished):
//   I1 A worker's bit is set exactly when its contribution of round r is in. Each contribution is
//      added at most once.
//   I2 f has an accumulator, or contributions held back, only while 0 < set bits < n. (A broadcast
//      has an accumulator only after the root's push.) With the n-th bit the frame is finished in
//      the same step: r grows by one and all bits are clear.
//   I3 f has a finished sum exactly when r > 0, and it is that of round r-1. The one of round r-2
//      went back when round r-1 was finished. So a frame at rest costs its own bytes once. Where workers say what they
//      have (settling.h) it goes back when all have it: a frame at rest costs nothing. Where what the codes of a sum
//      leave is fed back to the next one, that stays: the one thing that a successor has not.
//   I4 A push of round r says that its worker has the whole sum of round r-1; a push of round r-1
//      only that it may have lost the answer.
//   I5 Memory is taken for what came, never for a length that was announced: a declaration costs
//      its name, members and three bits per worker, the first push of a part the records of that part's frames. All of
//      it is counted.
//   I6 A part with an incomplete frame has exactly one alarm; no part ever has two.
//   I7 What comes out depends on the messages, their order and `now`; on no address and no hash
//      order.
//   I8 In deterministic mode floats are added in order of rank (of groups: of the lowest in each); a
//      contribution that comes before its turn is held back.
//   I9 A contributor that has no more inputs is not waited for: a frame is finished when all others have contributed.
//      It has no bit set, for all its rounds are finished; unless it is lost, for then what it contributed counts.
//   I10 At a relay with servers a complete frame keeps its bits, and its round goes on, until it is answered.
//   I11 At any relay a frame at rest costs nothing, whatever I3 says: who contributes has lost no answer, for memory
//      that processes share loses none. So a repeat breaks the protocol there.
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
#include "base/flat_map.h"
#include "base/groups.h"
#include "base/ids.h"
#include "base/limits.h"
#include "base/outputs.h"
#include "base/placement.h"
#include "base/residuals.h"
#include "base/status.h"
#include "base/time.h"
#include "base/timeline.h"
#include "kernels/kernels.h"
#include "net/wire.h"
#include "server/alarms.h"
#include "server/asking.h"
#include "server/generations.h"
#include "server/inheritance.h"
#include "server/inventory.h"
#include "server/settling.h"
#include "server/shelf_output.h"
#include "server/summing.h"
#include "server/sums.h"

namespace byteps {

// Whose shelf it is, what limits its memory, and what helps where it is too little: for messages to people.
struct ShelfWords {
  std::string owner = "a server";
  // At a relay, whose words servers pass on: " by the relay of worker 3".
  std::string used_by;
  Participant who{};  // at a relay: the worker that it is beside
  const char* limited_by = "BYTEPS_SERVER_MEMORY_MB allows each of its shards";
  const char* remedy = "Use more servers, or servers with more memory";
};

struct ShelfSettings {
  // A frame incomplete for so long asks for the missing contributions.
  TimeNs wanted_ns = 5 * kMillisecond;
  // A tensor with a frame incomplete for so long says who is missing, again when that changes or ...
  TimeNs missing_ns = 2500 * kMillisecond;
  TimeNs missing_every_ns = 10 * kSecond;  // ... after this
  // Floats are added in order of rank.
  bool deterministic = false;
  // One more tensor fails the job.
  std::size_t tensor_count_max = kTensorsMax;
  // Bytes lent by the pool, and of declarations and the records of parts; a tensor that needs more is spoiled.
  std::size_t memory_bytes_max = SIZE_MAX;
  // Of that for declarations, at most a quarter; one more fails the job.
  std::size_t declared_bytes_max = kDeclaredBytesMax;
  ShelfWords words{};
  KernelSet kernels = best_kernels();
  TimelineLane* timeline = nullptr;  // null: none is recorded
  // At a relay without servers: the memory for momentum of the worker beside it, which outlives the shelf.
  Residuals* residuals = nullptr;
};

// Facts of an epoch, from the roster.
struct ShelfEpoch {
  Epoch epoch;
  std::uint32_t worker_count = 0;
  std::shared_ptr<const Placement> placement;
  std::shared_ptr<const Groups> groups = nullptr;  // null: each worker by itself
  // Of the relay at this worker: those of its group contribute here, each by itself, to the parts that it leads. What
  // they have together is not finished here but forwarded, and they are answered with the sum of all.
  std::optional<WorkerRank> relay = std::nullopt;
  // Workers' connections lose nothing and are never made anew: there is no Renew.
  bool keeps_links = false;
  // A server that is lost gets a successor: workers keep sums, and hear when all have one of a name that they gave up.
  bool recovers = false;
  // This is such a successor: of each frame it learns from the workers where it is (takeover.h).
  bool takes_over = false;
  // Workers that are lost already, whose ranks are vacant.
  std::vector<WorkerRank> lost{};
};

class Shelf {
 public:
  // `pool` gives the memory of accumulators and sums; it must outlive the shelf and every Answer.
  Shelf(const ShelfSettings& settings, BufferPool& pool);
  Shelf(const Shelf&) = delete;
  Shelf& operator=(const Shelf&) = delete;

  // Forgets everything of the former epoch and serves this one. kInvalidArgument: facts that cannot
  // be served (no worker, sizes that are no multiple of 64 bytes or beyond the limits); the shelf
  // then serves nothing.
  Status begin_epoch(const ShelfEpoch& facts);

  // Forgets everything, gives back its memory, and serves nothing.
  void end_epoch();

  // A worker has a new connection: it has to declare its keys again, and hears of spoiled ones.
  // What it contributed through an earlier connection counts; the end of a connection is no event
  // here.
  void connect(WorkerRank worker, ShelfOutputs& out);
  // Of a shard that took another one's place: what this worker was asked for is asked of another.
  void disconnect(WorkerRank worker, ShelfOutputs& out);
  // It has left the job: it lacks nothing any more.
  void leave(WorkerRank worker, ShelfOutputs& out);
  // It is lost for good, and its rank vacant. What it has contributed counts: frames in which it is are finished with
  // it, all others without, and averages are of those that are in. Nothing of it may be handed in any more.
  // `moved`: at a server, lost workers for which other relays speak from now on. What the former ones were asked for is
  // asked of others, and what they said of names used once their crews say again.
  void lose(WorkerRank worker, ShelfOutputs& out, const std::vector<WorkerRank>& moved = {});
  // One message (kDeclare, kPush, kForget, kInputs, kHave, kAck; from a relay also kMismatch, kMissing) of a connected
  // worker.
  // `payload` is only read during the call. Appends to out.
  void step(WorkerRank from, const wire::Header& header, std::span<const std::byte> payload,
            TimeNs now, ShelfOutputs& out);

  // ---- at a relay
  // The answer to what was forwarded; kNoPayload: none of these workers gets it from elsewhere. What is not waited for
  // any more is ignored.
  void answered(const wire::Header& header, std::span<const std::byte> payload, ShelfOutputs& out);
  // The tensor cannot be summed, as was said elsewhere.
  void give_up(Key key, const Status& why, ShelfOutputs& out);
  // All of other machines have the sum of this round of a frame.
  void settled_above(Key key, PartIndex part, std::uint64_t offset_bytes, Round round);
  // All have forgotten the key, as the servers say.
  void forgotten_above(Key key);
  // There is no memory for what was forwarded of it.
  void out_of_memory(Key key, ShelfOutputs& out);
  // Others wait for a part, up to this byte of it (0: to its end): who has not contributed here is asked at once.
  void want(Key key, PartIndex part, Round round, std::uint64_t end_bytes, ShelfOutputs& out);
  // The servers have heard that the worker beside this relay has no more inputs in this generation: nobody waits for it
  // any more. (The next one may have begun here by the word of another.)
  void inputs_are_heard(std::uint32_t generation, ShelfOutputs& out);
  // Nobody has more: the next generation begins, as the servers say.
  void begin_inputs(std::uint32_t generation, WorkerRank last, ShelfOutputs& out);

  // ---- time
  // Asks for contributions that are missing for too long, and says what is settled. Cheap when there is
  // nothing to say.
  void tick(TimeNs now, ShelfOutputs& out);
  // When tick() wants to be called; kNever if nothing is incomplete.
  TimeNs next_deadline() const {
    return std::min(alarms_.next_deadline(), settling_.next_deadline());
  }

  // Brings the record of a part that will be pushed soon nearer to the CPU. Calls with distance
  // kFarthest, kFarthest - 1, ... 1 do it: each looks where the one before has pointed.
  static constexpr int kFarthest = 4;
  void expect(Key key, PartIndex part, int distance) const;

  // For metrics and tests.
  const Inventory& inventory() const { return inventory_; }
  // At a relay that stands in for another: what its crew has said to have.
  const Inheritance& inheritance() const { return inheritance_; }

 private:
  void dispatch(WorkerRank from, const wire::Header& header, std::span<const std::byte> payload,
                TimeNs now, ShelfOutputs& out);

  // ---- tensors
  void declare(WorkerRank from, const wire::Header& header, std::span<const std::byte> payload,
               ShelfOutputs& out);
  void make_tensor(WorkerRank from, WorkerRank who, Key key, wire::Declare declared,
                   ShelfOutputs& out);
  void forget(WorkerRank from, Key key, ShelfOutputs& out);
  void drop(TensorSum& tensor, ShelfOutputs& out);
  void drop_if_forgotten(TensorSum& tensor, ShelfOutputs& out);

  // ---- the end of inputs
  void inputs(WorkerRank from, const wire::Header& header, ShelfOutputs& out);
  void end_inputs_of(WorkerRank from, ShelfOutputs& out);
  void await_no_more(WorkerRank worker, bool is_last, ShelfOutputs& out);
  void finish_without(TensorSum& tensor, ShelfOutputs& out);
  void begin_by_word_of(std::uint32_t generation, WorkerRank by, ShelfOutputs& out);
  void restart_tensors(Round former_first, ShelfOutputs& out);

  // ---- what workers have
  void have(WorkerRank from, const wire::Header& header, std::span<const std::byte> payload,
            ShelfOutputs& out);

  // ---- frames
  void push(WorkerRank from, const wire::Header& header, std::span<const std::byte> payload,
            TimeNs now, ShelfOutputs& out);
  void contribute(PartSum& part, std::uint32_t frame_index, const wire::Header& header,
                  std::span<const std::byte> payload, TimeNs now, ShelfOutputs& out);
  void finish(PartSum& part, std::uint32_t frame_index, ShelfOutputs& out);
  void end_round(PartSum& part, std::uint32_t frame_index, ShelfOutputs& out);

  const ShelfSettings settings_;
  ShelfEpoch facts_;  // worker_count 0: serves nothing
  Alarms alarms_;
  Settling settling_;
  Inventory inventory_;
  Summing summing_;
  Generations generations_;  // of inputs
  Inheritance inheritance_{facts_, inventory_, settling_, generations_};
  Asking asking_{settings_, inventory_, alarms_, generations_};
  // A bit for each worker that has declared, on its present connection, a name of which it is no member as others said
  // it: it was told so, and what it pushes of that is on its way, also when the members have forgotten the name.
  std::vector<std::uint64_t> strangers_;
};

}  // namespace byteps
