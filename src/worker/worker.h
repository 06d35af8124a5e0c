// Worker: the part of a training process that pushes tensors to the job's servers and gets the sums back.
//
//   any thread                 | the worker's thread (a Runner, or the simulator)
//   WorkerDoor --Mailbox-->    | Worker (Actor): MemberPort (joining, heartbeats, barrier, leave)
//   WorkerDoor <--Handles--    |                 Pipeline (tensors to frames, answers to results)
//                              |                 Transport (one connection to the scheduler, one to each shard)
//
// A job of one (JobConfig::scheduler_host is empty) needs no Worker: its door copies input to output at once, as it
// does for a tensor in which nobody else takes part.
//
// A job:  WorkerDoor door(config, &waiter_of_the_transport);
//         Worker worker(config, transport, door, log, "host:pid");
//         Runner runner("byteps-worker", worker, waiter, clock);
//         door.wait_joined(...); door.submit(...); door.wait(...); ...
//         door.leave(true); runner.join();
// The door must outlive the worker; the transport, its waiter and the log must outlive both.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/config.h"
#include "base/log.h"
#include "base/prng.h"
#include "base/quiet_lines.h"
#include "base/status.h"
#include "kernels/kernels.h"
#include "loop/actor.h"
#include "loop/mailbox.h"
#include "member/member_port.h"
#include "member/shares.h"
#include "net/transport.h"
#include "worker/handles.h"
#include "worker/pipeline.h"
#include "worker/tensor_table.h"

namespace byteps {

// One tensor of one call, unchecked, as byteps_tensor has it. What its base points at is read in submit().
struct Submission : RawSpec {
  std::string_view name;  // 1 to 1024 bytes
  const void* input =
      nullptr;             // element_count elements; not needed on the non-roots of a broadcast
  void* output = nullptr;  // element_count elements; may be input; not needed where it gets nothing
  std::int32_t priority = 0;
  bool once = false;       // the name is never used again
  Handles::Report report;  // where its end is told
};

struct WorkerMetrics {
  std::uint64_t pushed_bytes = 0;  // tensor bytes handed to the transport, repeats included
  std::uint64_t pulled_bytes = 0;  // tensor bytes of answers
  std::uint64_t finished_operations = 0;
  std::uint64_t finished_bytes = 0;
  std::uint64_t failed_operations = 0;
  std::uint64_t reconnects = 0;    // connections to shards that were lost and made again
  std::uint64_t shared_bytes = 0;  // of those pushed and pulled: through shared memory
  std::uint64_t rdma_bytes = 0;    // by RDMA
};

// The worker as other threads see it. Every function may be called from any thread.
class WorkerDoor {
 public:
  // `waiter` is what the Worker's Runner sleeps on; null for a job of one, and where turns need no
  // wake-up.
  WorkerDoor(const Config& config, Waiter* waiter);
  WorkerDoor(const WorkerDoor&) = delete;
  WorkerDoor& operator=(const WorkerDoor&) = delete;

  bool is_job_of_one() const { return job_of_one_; }

  // Starts one exchange; never blocks. The memory belongs to the operation until wait() has
  // returned for its handle. Errors at once: kInvalidArgument (the call is wrong, or not joined
  // yet), kAgain (too many pending), or what the job failed with. What only shows against earlier
  // uses of the name (another shape, dtype, operation or root) ends the handle with
  // kInvalidArgument; what only shows against other ranks ends it with kMismatch.
  Result<HandleId> submit(const Submission& submission);

  // All workers meet: the handle ends when all have begun theirs. Barriers of one worker are
  // counted in their order.
  Result<HandleId> begin_barrier();

  // This worker has no more inputs: the handle ends when all workers have said so. Until then others' tensors do not
  // wait for it (an average still divides by all), and it may submit nothing; then all go on as before.
  Result<HandleId> finish_inputs();
  // Who said so last; for who has waited for such a handle.
  std::uint32_t last_with_inputs() const {
    return last_with_inputs_.load(std::memory_order_acquire);
  }

  // See Handles.
  Result<bool> poll(HandleId handle) const { return handles_.poll(handle); }
  Status wait(HandleId handle, TimeNs timeout_ns) { return handles_.wait(handle, timeout_ns); }
  std::size_t pending_handles() const { return handles_.pending_count(); }
  std::uint64_t progress() const { return handles_.progress(); }
  bool all_wait(std::uint64_t seen, std::optional<std::uint64_t> inside) {
    return handles_.all_wait(seen, inside);
  }

  // Blocks until the job is complete and all shards are reached. kAgain: not yet (negative or
  // kNever: without limit). Any other error: why it will never be.
  Status wait_joined(TimeNs timeout_ns) const;
  // The same without blocking; also tells later that the job has failed (then that status).
  Status state() const { return wait_joined(0); }

  // Ends all pending operations with kCancelled and says good-bye to the scheduler; the Worker is
  // finished() soon after (at most the failure timeout). Returns at once; calling it again, or
  // after a failure, is harmless. final: this process will not join the job again.
  void leave(bool final);

  // Constant once joined.
  std::uint32_t rank() const { return rank_.load(std::memory_order_acquire); }
  std::uint32_t size() const { return size_.load(std::memory_order_acquire); }
  std::uint32_t server_count() const { return server_count_.load(std::memory_order_acquire); }
  Incarnation incarnation() const;  // of the job; zeros before it has joined, and in a job of one
  Epoch epoch() const { return Epoch(epoch_.load(std::memory_order_acquire)); }  // 0: a job of one
  // Which of the launcher's machines each worker is on, by rank; empty before it has joined.
  std::vector<std::uint32_t> machines() const;

  WorkerMetrics metrics() const;

 private:
  friend class Worker;
  struct Command {
    enum class Kind : std::uint8_t { kSubmit, kBarrier, kFinish, kLeave };
    Kind kind = Kind::kSubmit;
    bool final = true;  // kLeave
    HandleId handle;    // kBarrier, kFinish
    PipelineCall call;  // kSubmit
  };
  struct Counters {
    std::atomic<std::uint64_t> pushed_bytes{0};
    std::atomic<std::uint64_t> pulled_bytes{0};
    std::atomic<std::uint64_t> finished_operations{0};
    std::atomic<std::uint64_t> finished_bytes{0};
    std::atomic<std::uint64_t> failed_operations{0};
    std::atomic<std::uint64_t> reconnects{0};
    std::atomic<std::uint64_t> shared_bytes{0};
    std::atomic<std::uint64_t> rdma_bytes{0};
  };

  Status check(const Submission& submission, PipelineCall& call) const;
  Result<HandleId> post(Command&& command, const Handles::Report& report);
  Result<HandleId> copy_at_once(const PipelineCall& call, const Handles::Report& report);
  Status state_now() const;
  void complete(HandleId handle, const Status& status) { handles_.complete(handle, status); }
  void complete(std::span<Handles::Completion> ended) { handles_.complete(ended); }

  // The Worker's side.
  void joined(std::uint32_t rank, std::vector<std::uint32_t> machines, std::uint32_t server_count,
              Epoch epoch, const Incarnation& incarnation);
  void ended(const Status& why);  // no submission is taken any more; the first reason stays

  // constant
  const bool job_of_one_;
  const KernelSet kernels_ = best_kernels();

  // shared: thread-safe by themselves
  Handles handles_;
  Mailbox<Command> mailbox_;
  Counters counters_;
  Counters copied_;  // of what was copied at once
  std::atomic<std::uint32_t> rank_;
  std::atomic<std::uint32_t> size_;
  std::atomic<std::uint32_t> server_count_;
  std::atomic<std::uint32_t> epoch_{0};
  std::atomic<std::uint32_t> last_with_inputs_{0};

  mutable std::mutex mutex_;  // guards what follows
  mutable std::condition_variable state_changed_;
  Status state_;                         // kAgain: joining; ok: joined; otherwise why not any more
  std::vector<std::uint32_t> machines_;  // by rank
  Incarnation incarnation_{};
  bool left_ = false;
  TensorTable
      alone_;  // of what nobody else takes part in, as all in a job of one: the declarations so far
};

// The loop's side. Single-threaded: only turn() and the two questions after it are called once it
// runs.
class Worker final : public Actor {
 public:
  // config.job.scheduler_host must not be empty. `host` ("host:pid") is for messages to people; it also tells a worker
  // that lost its connection from another process with its rank. Empty: "worker <rank>".
  Worker(const Config& config, Transport& transport, WorkerDoor& door, const Log& log,
         std::string host = {});
  ~Worker() override;

  std::size_t turn(TimeNs now) override;
  TimeNs next_deadline() const override;
  // After leave() or a failure, when all handles have ended and all lent memory is back.
  bool finished() const override { return state_ == State::kFinished; }
  // The job fails, at this worker and for all.
  void failed(const Status& why) override;

  // For tests and the simulator; the worker's thread only. Null before the roster is known.
  const Pipeline* pipeline() const { return pipeline_.get(); }

 private:
  enum class State : std::uint8_t {
    kJoining,     // no roster yet
    kConnecting,  // not all shards were reached yet
    kWorking,
    kEnding,  // left or failed: handles have ended, connections are closed, lent memory comes back
    kFinished,
  };

  // The connection to one shard.
  struct Link {
    ShardPlace place;
    std::optional<PeerId> peer;  // also while it is being made or is closing
    bool up = false;
    bool closing = false;  // is to be closed, or was; kDown has not come
    bool close_called = false;
    bool full = false;  // the transport said kAgain; until the next kSent
    bool was_up = false;
    TimeNs up_since_ns = 0;
    TimeNs lost_since_ns = kNever;  // unreachable since; kNever after a sign of life
    TimeNs naming_ns = 0;           // last seen waiting for its host's addresses
    TimeNs next_attempt_ns = 0;
    std::uint32_t attempt_count = 0;  // since the last good connection
    Status last_down;
  };

  // What comes in.
  void take_commands(TimeNs now);
  std::size_t take_events(TimeNs now);
  void look_ahead(std::size_t at, std::size_t count) const;
  void handle(const Event& event, TimeNs now);
  Status check_shard(const Link& link, const Hello& theirs) const;
  void on_link_up(std::uint32_t shard, const Hello& theirs, TimeNs now);
  void on_link_down(std::uint32_t shard, const Status& why, TimeNs now);
  void on_message(std::uint32_t shard, const Event& event, TimeNs now);
  Status on_mismatch(std::uint32_t shard, const wire::Header& header,
                     std::span<const std::byte> payload);
  Status on_missing(std::uint32_t shard, const wire::Header& header,
                    std::span<const std::byte> payload);
  void take_member_events(TimeNs now);
  void on_roster(const wire::Roster& roster, TimeNs now);
  Status check_roster(const wire::Roster& roster) const;

  // What goes out.
  void excuse_own_pause(TimeNs now);
  TimeNs give_up_time(const Link& link) const;
  void keep_links(TimeNs now);
  void connect(std::uint32_t shard, TimeNs now);
  TimeNs pause_after(const Link& link);
  void tell_missing_links(TimeNs now);
  void close_link(std::uint32_t shard, const Status& why);
  void apply_outputs();
  std::size_t send_frames();
  bool send_next(std::uint32_t shard);
  void publish_counters();
  void watch_stall(TimeNs now);
  wire::Stalled stall_report(bool proven);
  void give_up_waiting(TimeNs now);
  bool may_stall() const {
    return state_ == State::kWorking &&
           (pipeline_->pending_operations() > 0 || pipeline_->ends_inputs() || !barriers_.empty());
  }

  // The flight recorder.
  void record_link(const char* kind, const Link& link, const std::string& why, TimeNs now) const;
  void record_wanted(const wire::Header& header) const;
  void note_end(const PipelineOutput& output);

  // The end.
  void fail(const Status& why);
  void end(const Status& why);
  void end_all();
  void try_finish();
  std::string describe(const Link& link) const;
  const TimeoutConfig& timeout() const { return port_.member().timeout(); }

  // constant after construction
  const Config config_;
  Transport& transport_;
  WorkerDoor& door_;
  const Log& log_;

  // owned by the loop
  State state_ = State::kJoining;
  TimeNs now_ = 0;          // of this turn
  Status ended_;            // kEnding: what everything ends with
  bool all_ended_ = false;  // kEnding: everything has
  MemberPort port_;
  std::unique_ptr<Pipeline> pipeline_;  // from the roster on
  std::vector<Link> links_;             // by ShardIndex
  std::unordered_map<PeerId, std::uint32_t> link_of_;
  std::vector<std::uint32_t> machines_;         // of the workers in the roster, by rank
  std::uint32_t server_count_ = 0;              // in the roster
  std::uint32_t next_link_ = 0;                 // whose turn it is to send
  std::map<std::uint64_t, HandleId> barriers_;  // begun, by number
  std::uint64_t reconnects_ = 0;
  TimeNs next_notice_ns_ = kNever;  // kConnecting: when to say which shards are missing
  TimeNs links_deadline_ns_ = kNever;
  Prng chance_;                 // of the pauses between attempts
  QuietLines<1> quiet_;         // shards that break the protocol
  TimeNs planned_ns_ = kNever;  // when turn() wanted to be called next
  TimeNs next_look_ns_ = 0;     // at whether all callers are blocked
  TimeNs stands_since_ns_ = 0;  // nothing has moved, as of the last look
  std::uint64_t moved_ = 0;     // submissions, answers and ends so far, as of the last look
  std::uint64_t commands_taken_ = 0;
  std::vector<WorkerDoor::Command> commands_;
  std::vector<Event> events_;
  std::vector<Handles::Completion> completions_;
};

}  // namespace byteps
