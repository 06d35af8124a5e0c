// Pipeline: how a worker's operations become frames to shards, and answers become results. The core: no socket,
// thread or clock; worker.h is its shell.
//
// An operation's life:
//   submit -> [waits in its tensor's line] -> its parts wait at the gates of their shards (gate.h)
//          -> frames pass, are answered, into the output -> all answered and nothing lent -> kComplete
// It ends early when its declaration meets another one (mismatch), a worker it needs has left, or the job ends. Also
// then its memory is given back only when no payload of it is at a transport.
//
// How the shell uses it: it calls the on_...() functions, submit() and tick(), then takes the outputs() in their order;
// then, for each shard whose transport accepts, front() and pop() until front() says no, one frame per shard in turn so
// that the frames of different servers interleave.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/members.h"
#include "base/status.h"
#include "base/time.h"
#include "net/transport.h"
#include "net/wire.h"
#include "worker/flow.h"
#include "worker/inputs.h"
#include "worker/kept_sums.h"
#include "worker/patience.h"
#include "worker/pull.h"
#include "worker/push.h"
#include "worker/road.h"
#include "worker/standstill.h"
#include "worker/uplink.h"
#include "worker/work.h"

namespace byteps {

class Pipeline {
 public:
  explicit Pipeline(const PipelineConfig& config);

  // The time of all that follows, until the next call.
  void begin_turn(TimeNs now) { work_.now = now; }

  // Takes a call; kComplete follows exactly once per handle.
  void submit(PipelineCall&& call);

  // A shard's connection is up (again), or gone. Before up nothing is sent to it. At down, all its payloads must
  // have come back already (T4); what it had not answered is sent again at the next up.
  // `is_successor`: it has taken another shard's place, and is told first what that knew.
  void on_shard_up(ShardIndex shard, bool is_successor = false);
  void on_shard_down(ShardIndex shard);

  // An answer came; its payload is copied. Repeats and answers to earlier rounds are ignored. Not ok: the peer breaks
  // the protocol, end its connection.
  Status on_answer(ShardIndex shard, const wire::Header& header,
                   std::span<const std::byte> payload);
  // Brings what on_answer() needs for an answer that will follow soon nearer to the CPU. Calls with distance
  // kFarthest, kFarthest - 1, ... 1 do it: each looks where the one before has pointed.
  static constexpr int kFarthest = Pull::kFarthest;
  void expect(const wire::Glimpse& answer, int distance) const { pull_.expect(answer, distance); }
  // Others wait for this part: it goes first and without credit, as soon as it is submitted.
  void on_wanted(ShardIndex shard, const wire::Header& header) { push_.on_wanted(shard, header); }
  // What a successor asks (kGive, kAgain), that all have forgotten a key (kForgotten), or have sums (kSettled).
  void on_recovery(ShardIndex shard, const wire::Header& header);
  // The shard cannot sum the tensor (ranks disagree about it, say): its operations, also later ones, end with this.
  void on_mismatch(Key key, const Status& why);
  // Whose contributions to this part are late, as its shard sees it.
  void on_missing(ShardIndex shard, const wire::Header& header, const Members& whom) {
    patience_.on_missing(shard, header, whom);
  }
  // A payload lent by pop() is ours again, or was of the shell.
  void on_sent(SendToken token);
  // A worker left the job: what a shard says to miss its contribution fails after departed_ns, counted from its
  // submission if that was later, or from the last answer: what it has contributed may still be on its way, however
  // slowly. While a shard that owes an answer is not connected, nobody can tell.
  void on_worker_left(WorkerRank rank) { patience_.on_worker_left(rank); }
  // This worker has no more inputs: when what is pending has ended, all shards are told. The handle ends when all
  // workers have said so (on_inputs_done), with an error when one has left without, or the job ends. Until then nothing
  // may be submitted. kInvalidArgument at once: it has said so already.
  // `rounds`: at a relay, how many rounds of a tensor at most the worker beside it has begun.
  void finish_inputs(HandleId handle, std::optional<std::uint64_t> rounds = {});
  // A shard says that nobody has more, or that it has heard that this worker has none.
  void on_inputs_done(ShardIndex shard, const wire::Header& header);
  // At a relay: this frame of the active operation is not pushed, or its answer not waited for any more: its crew has
  // the sum, or is gone (Cargo::ready_frames() counts it).
  void take_had(PartRef part, std::uint32_t frame);
  // The job ends: all operations, also later ones, end with this status.
  void fail_all(const Status& status);

  // Deadlines and notices; cheap when nothing is due.
  void tick();
  TimeNs next_deadline() const;
  // For set_capacity(), set_round_trip() and patience().
  Flow& flow() { return flow_; }
  // For a relay.
  Uplink& uplink() { return uplink_; }

  // What this worker waits for, where nothing moves.
  Standstill& standstill() { return standstill_; }

  // The message that may go to this shard now: a Declare, a Push or a Forget; false when none may.
  // Its header is valid until the next call of any function. When the transport has accepted it,
  // call pop() before anything else.
  bool front(ShardIndex shard, Outgoing& message) { return push_.front(shard, message); }
  void pop();

  // What the shell has to do since the last clear_outputs().
  const PipelineOutputs& outputs() const { return work_.outputs; }
  void clear_outputs() { work_.outputs.clear(); }

  Epoch epoch() const { return work_.config.epoch; }
  std::size_t pending_operations() const { return work_.operations.count(); }
  const Inputs& inputs() const { return inputs_; }
  const PipelineCounters& counters() const { return work_.counters; }
  const TensorTable& tensors() const { return work_.tensors; }
  // Bytes that are sent to this shard and not answered, and their limit.
  const Gate& gate(ShardIndex shard) const { return work_.shards[shard.value].gate(); }

 private:
  // ---- an operation's life
  void start(TensorIndex index);
  void leave_stage(PartRef part);
  void give_back(TensorIndex index);
  void send_again(PartRef part);
  void end_early(TensorIndex index, const Status& status);
  void settle(TensorIndex index);
  void finish_well(TensorIndex index);
  void end_op(OpIndex index, const Status& status);

  Work work_;
  Flow flow_{work_};
  Inputs inputs_{work_};
  KeptSums kept_{work_};
  Push push_{work_, flow_, inputs_, kept_, road_};
  Pull pull_{work_, flow_, push_, kept_};
  Road road_;
  Patience patience_{work_, push_, inputs_};
  Standstill standstill_{work_, push_, inputs_, patience_, road_};
  Uplink uplink_{work_, push_, kept_, inputs_, road_};
  static constexpr std::size_t kEarlyMismatchesMax = 4096;
  std::map<Key, Status> early_mismatches_;  // of tensors not submitted here yet
  Status job_failed_;
  StageOutput stage_output_;  // of tick(), to reuse its memory
};

}  // namespace byteps
