// Pipeline: how a worker's operations become frames to shards, and answers become results. The core: no socket,
// thread or clock; worker.h is its shell.
//
// An operation's life:
//   submit -> [waits in its tensor's line] -> its parts wait at the gates of their shards (gate.h)
//          -> frames pass, are answered, land in the output -> all answered and nothing lent -> kComplete
// It ends early when its declaration meets another one (mismatch), a worker it needs has left, or the job ends. Also
// then its memory is given back only when no payload of it is at a transport and its landing is withdrawn.
//
// How the shell uses it: it calls the on_...() functions, submit() and tick(), then takes the outputs() in their order;
// then, for each shard whose transport accepts, front() and pop() until front() says no, one frame per shard in turn so
// that the frames of different servers interleave.
//
// Results land in place: input and output may be the same memory. Resending a frame whose answer has half
// overwritten it is harmless (docs/protocol.md, "why repeats are harmless"). The landing of an operation is its
// whole output.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/config.h"
#include "base/ids.h"
#include "base/status.h"
#include "base/time.h"
#include "net/transport.h"
#include "net/wire.h"
#include "worker/credit.h"
#include "worker/credit_tuner.h"
#include "worker/gate.h"
#include "worker/handles.h"
#include "worker/tensor_table.h"
#include "worker/timeline.h"

namespace byteps {

// One push_pull as the pipeline takes it; its arguments were checked by the WorkerDoor.
struct PipelineCall {
  HandleId handle;
  std::string name;
  Spec spec;
  std::span<const std::byte> input;  // spec.total_bytes; empty where spec.gives() not
  std::span<std::byte> output;       // spec.total_bytes; may be input; empty where spec.gets() not
  std::int32_t priority = 0;
  bool once = false;
};

struct PipelineConfig {
  WorkerRank self;
  Epoch epoch;
  Placement placement;             // the job's
  std::uint64_t credit_bytes = 0;  // of all connections together; 0: finds it by itself (credit.h)
  std::uint64_t credit_frames_min = 4;
  bool autotune = false;  // without credit_bytes: looks for the best horizon (credit_tuner.h)
  bool priority_scheduling = true;
  TimeNs departed_ns =
      3 * kSecond;  // patience with what a worker that left may owe, see on_worker_left()
  TimeNs first_notice_ns = 5 * kSecond;
  TimeNs notice_every_ns = 10 * kSecond;
  // Of a tensor, in one generation of inputs that can still end: the next begins at a number of its own (ids.h). Less
  // than that, because of those that are under way.
  std::uint32_t finishing_rounds_max = kRoundsPerGeneration - std::uint32_t{kOperationsMax};
  TimelineLane* timeline = nullptr;  // null: none is recorded
};

// What the shell has to do, in this order.
struct PipelineOutput {
  enum class Kind : std::uint8_t {
    kLand,      // promise `landing` for `tag` to this shard's connection
    kWithdraw,  // take the promise back
    kComplete,  // the handle ends with `status`; its memory is the caller's again
    kNotice,    // tell the user: status.message()
    kTuned,     // tell the user, who asked for it: what was chosen, in status.message()
  };
  Kind kind = Kind::kComplete;
  ShardIndex shard;
  LandingTag tag = kNoLanding;
  std::span<std::byte> landing;
  HandleId handle;
  Status status;
};

// Tensor bytes and operations since the beginning.
struct PipelineCounters {
  std::uint64_t pushed_bytes = 0;
  std::uint64_t pulled_bytes = 0;
  std::uint64_t finished_operations = 0;
  std::uint64_t finished_bytes = 0;
  std::uint64_t failed_operations = 0;
};

class Pipeline {
 public:
  explicit Pipeline(const PipelineConfig& config);
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // The time of all that follows, until the next call.
  void begin_turn(TimeNs now) { now_ = now; }

  // Takes a call; kComplete follows exactly once per handle.
  void submit(PipelineCall&& call, TimeNs now);

  // A shard's connection is up (again), or gone. Before up nothing is sent to it. At down, all its payloads must
  // have come back already (T4); what it had not answered is sent again at the next up.
  void on_shard_up(ShardIndex shard);
  void on_shard_down(ShardIndex shard);
  // What fits on the way to this shard, Transport::capacity_bytes().
  void set_capacity(ShardIndex shard, std::uint64_t bytes);

  // An answer came. `landed`: payload is the part of the landing that was written, otherwise it is
  // copied from there. Repeats and answers to earlier rounds are ignored. Not ok: the peer breaks
  // the protocol, end its connection.
  Status on_answer(ShardIndex shard, const wire::Header& header, std::span<const std::byte> payload,
                   bool landed);
  // Brings what on_answer() needs for an answer that will follow soon nearer to the CPU. Calls with distance
  // kFarthest, kFarthest - 1, ... 1 do it: each looks where the one before has pointed.
  static constexpr int kFarthest = 3;
  void expect(const wire::Glimpse& answer, int distance) const;
  // Others wait for this part: it goes first and without credit, as soon as it is submitted.
  void on_wanted(ShardIndex shard, const wire::Header& header);
  // The shard cannot sum the tensor (ranks disagree about it, say): its operations, also later ones, end with this.
  void on_mismatch(Key key, const Status& why);
  // Whose contributions to this part are late, as its shard sees it.
  void on_missing(ShardIndex shard, const wire::Header& header, const Members& whom);
  // A payload lent by pop() is ours again.
  void on_sent(SendToken token);
  // A worker left the job: what a shard says to miss its contribution fails after departed_ns, counted from its
  // submission if that was later, or from the last answer: what it has contributed may still be on its way, however
  // slowly. While a shard that owes an answer is not connected, nobody can tell.
  void on_worker_left(WorkerRank rank, TimeNs now);
  // This worker has no more inputs: when what is pending has ended, all shards are told. The handle ends when all
  // workers have said so (on_inputs_done), with an error when one has left without, or the job ends. Until then nothing
  // may be submitted. kInvalidArgument at once: it has said so already.
  void finish_inputs(HandleId handle, TimeNs now);
  // A shard says that nobody has more, or that it has heard that this worker has none.
  void on_inputs_done(ShardIndex shard, const wire::Header& header);
  // Who said so last, of the last generation that has ended.
  WorkerRank last_with_inputs() const { return last_with_inputs_; }
  // The job ends: all operations, also later ones, end with this status.
  void fail_all(const Status& status);

  // Deadlines and notices; cheap when nothing is due.
  void tick(TimeNs now);
  TimeNs next_deadline() const { return next_deadline_; }

  // Stalls (docs/protocol.md). The handles of all that is pending, that of finish_inputs() among them; ascending.
  std::vector<HandleId> pending_handles() const;
  // Adds what those of `handles` (ascending) that are the pipeline's wait for: the round that the tensor is in; for
  // finish_inputs() those of all that is pending, or when nothing is, that the others have no more. The first parts of
  // these tensors go in spite of credit from now on, so that the others hear of them. False: one is at its end.
  bool add_awaited(std::span<const HandleId> handles, std::vector<wire::Awaited>& awaited);
  // What is pending, for people: the first few, with whom they miss.
  std::string pending_text() const;
  // Rounds that shards want and that have not been submitted, by key; at most so many.
  std::vector<wire::NotBegun> not_begun(std::size_t count_max) const;

  // The message that may go to this shard now: a Declare, a Push or a Forget; false when none may.
  // Its header is valid until the next call of any function. When the transport has accepted it,
  // call pop() before anything else.
  bool front(ShardIndex shard, Outgoing& message);
  void pop();

  // What the shell has to do since the last clear_outputs().
  std::span<const PipelineOutput> outputs() const { return outputs_; }
  void clear_outputs() { outputs_.clear(); }

  Epoch epoch() const { return config_.epoch; }
  std::size_t pending_operations() const { return pending_operations_; }
  bool ends_inputs() const { return finish_handle_.has_value(); }  // and waits for the others
  const PipelineCounters& counters() const { return counters_; }
  const TensorTable& tensors() const { return tensors_; }
  // Bytes that are sent to this shard and not answered, and their limit.
  const Gate& gate(ShardIndex shard) const { return shards_[shard.value].gate; }

 private:
  enum class OpState : std::uint8_t {
    kFree,
    kWaiting,
    kActive,
    kEnding
  };  // kEnding: failed, lent memory is not back
  // Whom a part misses, as its shard said last of the parts that it has.
  struct Lack {
    PartIndex part;
    Members whom;
  };
  struct Op {
    OpState state = OpState::kFree;
    bool once = false;
    std::int32_t priority = 0;
    HandleId handle;
    TensorIndex tensor = kNoTensor;
    std::span<const std::byte> input;
    std::span<std::byte> output;
    std::uint64_t submission = 0;
    TimeNs submitted_ns = 0;
    LandingTag tag = kNoLanding;
    std::vector<Lack> lacks;    // what shards said last of it, the newest last
    OpIndex line_next = kNoOp;  // in its tensor's line
    OpIndex older = kNoOp;      // among all pending, by time of submission
    OpIndex newer = kNoOp;
  };
  struct ShardState {
    explicit ShardState(Gate g) : gate(std::move(g)) {}
    Gate gate;
    bool up = false;
    std::uint64_t capacity_bytes = 0;  // of the way; 0: not known
    std::uint32_t connection = 0;      // counts ups; a Declare belongs to one connection
    // Those that the shard may not have heard, sent again at up: a loss would leave the key at the shard. An answer to
    // what was sent behind them says that it has.
    std::deque<Key> forgets;
    std::size_t forgets_sent = 0;     // of them, on this connection
    std::uint64_t forgets_heard = 0;  // ever, and no longer among them
    std::uint64_t inputs_told = 0;    // inputs_word(), on this connection
  };
  struct Departed {
    WorkerRank rank;
    TimeNs since_ns = 0;
  };
  enum class Staged : std::uint8_t { kNothing, kDeclare, kPush, kForget, kInputs };

  // The low bits of a landing tag are its operation's place in ops_, so that the answers that repeat it need no search;
  // the others count up, so that none comes twice.
  static constexpr int kTagOpBits = 24;
  static_assert(kOperationsMax <= std::size_t{1} << kTagOpBits);
  TensorIndex tensor_of(const wire::Header& answer) const;
  OpIndex new_op(const PipelineCall& call, TensorIndex tensor, TimeNs now);
  void end_op(OpIndex index, const Status& status);
  void complete(HandleId handle, const Spec& spec, const Status& status);
  void start(TensorIndex index);
  void apply_wanted_early(Tensor& tensor);
  void tell(PipelineOutput::Kind kind, std::string text);
  void share_credit();
  void free_credit(ShardState& shard, std::uint64_t cost_bytes);
  void open_gate(TensorIndex index, std::uint32_t part);
  void advance(Tensor& tensor, std::uint32_t part);
  void favour_wanted(const Tensor& tensor, const PartState& part);
  void leave_gates(Tensor& tensor);
  void end_early(TensorIndex index, const Status& status);
  void settle(TensorIndex index);
  void finish_well(TensorIndex index);
  void forget(const Tensor& tensor);
  static void drop_heard_forgets(ShardState& shard, const PartState& answered);

  bool is_root(const Tensor& tensor) const;
  bool needs_landing(const Tensor& tensor) const;
  bool uses(const Tensor& tensor, ShardIndex shard) const;
  std::size_t first_part_on(const Tensor& tensor, ShardIndex shard) const;
  void land_on(ShardIndex shard, const Tensor& tensor);
  void withdraw(const Tensor& tensor);

  void stage_push(const Tensor& tensor, std::uint32_t frame, std::uint64_t bytes,
                  wire::Header& header, Outgoing& message);
  // What a frame costs of the credit: small ones are not free.
  static std::uint64_t cost(std::uint64_t frame_bytes) { return frame_bytes + wire::kHeaderBytes; }

  void end_inputs(const Status& status);
  Status check_rounds() const;
  // What the shard has to know of the inputs; 0: nothing, for they begin so. Shard 0, which says who was last, hears
  // first that there are no more: the others then cannot end an operation without this worker whose end makes another
  // one say so at shard 0 before this one.
  std::uint64_t inputs_word(ShardIndex shard) const {
    const bool no_more = finish_handle_.has_value() && pending_operations_ == 0 &&
                         (shard.value == 0 || first_shard_has_heard_);
    return std::uint64_t{generation_} * 2 + (no_more ? 1 : 0);
  }
  void fail_for_departed(TimeNs now);
  bool has_departed_member(const Tensor& tensor) const;
  const Departed* missed_by(const Op& op) const;
  void favour_first_part(Tensor& tensor);
  bool departed_deadline(TimeNs now, const Op& op, const Departed& gone);
  void fail_inputs_for_departed(TimeNs now);
  bool misses_shard(const Tensor& tensor) const;
  void notice(TimeNs now);
  std::string list_of_older_than(TimeNs submitted_ns) const;
  std::string describe(const Tensor& tensor) const;
  void set_deadline();

  // constant
  const PipelineConfig config_;

  // owned by the loop
  TensorTable tensors_;
  Credit credit_;
  std::optional<CreditTuner> tuner_;
  std::vector<ShardState> shards_;
  std::vector<Op> ops_;
  std::vector<OpIndex> free_ops_;
  OpIndex oldest_ = kNoOp;
  OpIndex newest_ = kNoOp;
  std::size_t pending_operations_ = 0;
  std::uint64_t last_submission_ = 0;
  std::uint64_t tag_count_ = 0;
  std::map<std::pair<Key, PartIndex>, Round> wanted_early_;  // of tensors not submitted here yet
  std::vector<Departed> departed_;                           // in the order they left
  TimeNs now_ = 0;
  bool answers_came_ = false;  // since the last tick
  TimeNs answered_ns_ = 0;     // when the last of them came, while one has left
  Status job_failed_;
  std::uint32_t generation_ = 0;           // of inputs
  std::optional<HandleId> finish_handle_;  // this worker has no more
  bool first_shard_has_heard_ = false;     // of that, while there is such a handle
  WorkerRank last_with_inputs_;
  TimeNs next_notice_ns_ = kNever;
  TimeNs next_departed_ns_ = kNever;
  TimeNs next_deadline_ = kNever;
  std::vector<PipelineOutput> outputs_;
  PipelineCounters counters_;
  const std::unique_ptr<WorkerTimeline> timeline_ =  // null: none is recorded
      WorkerTimeline::make(config_.timeline);

  // between front() and pop()
  Staged staged_ = Staged::kNothing;
  ShardIndex staged_shard_;
  TensorIndex staged_tensor_ = kNoTensor;
  std::uint32_t staged_part_ = 0;
  std::uint64_t staged_bytes_ = 0;          // what the frame covers of the tensor
  std::uint64_t staged_payload_bytes_ = 0;  // what of it is sent
  wire::HeaderBytes staged_header_{};
};

}  // namespace byteps
