// WorkerDoor: the worker as other threads see it (worker.h). Every function may be called from any thread.
//
// What is submitted goes to the loop by a mailbox, its end comes back by a handle. A job of one has no loop: its door
// copies input to output at once, as it does for a tensor in which nobody else takes part.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "base/spec.h"
#include "base/status.h"
#include "device/devices.h"
#include "kernels/kernels.h"
#include "loop/actor.h"
#include "loop/mailbox.h"
#include "worker/handles.h"
#include "worker/membership.h"
#include "worker/tensor_table.h"
#include "worker/traffic_counters.h"
#include "worker/work.h"

namespace byteps {

// One tensor of one call, unchecked, as byteps_tensor has it. What its base points at is read in submit().
struct Submission : RawSpec {
  std::string_view name;  // 1 to 1024 bytes
  const void* input =
      nullptr;             // element_count elements; not needed on the non-roots of a broadcast
  void* output = nullptr;  // element_count elements; may be input; not needed where it gets nothing
  bool coded_where_fit = false;  // the format is for large sums of float32; others travel plain
  // element_count of host memory; null: none.
  float* residual = nullptr;  // error feedback
  float* momentum = nullptr;  // given where the codec has momentum
  double residual_ratio = 0;  // 0: 1
  std::int32_t priority = 0;
  bool once = false;       // the name is never used again
  Handles::Report report;  // where its end is told
  // Input and output are memory of this device; nullopt: of the host.
  struct OnDevice {
    int ordinal = 0;
    device::abi::Stream stream = nullptr;
  };
  std::optional<OnDevice> device;
};

struct WorkerMetrics {
  // Tensor bytes exchanged with servers, by this worker or by its relay: handed to the transport, repeats included, and
  // of answers.
  std::uint64_t pushed_bytes = 0;
  std::uint64_t pulled_bytes = 0;
  std::uint64_t finished_operations = 0;
  std::uint64_t finished_bytes = 0;
  std::uint64_t failed_operations = 0;
  std::uint64_t reconnects = 0;    // connections to shards that were lost and made again
  std::uint64_t shared_bytes = 0;  // of those pushed and pulled: through shared memory
  std::uint64_t rdma_bytes = 0;    // by RDMA
  // Exchanged by this worker with the relays of its machine; of them through shared memory.
  std::uint64_t local_pushed_bytes = 0;
  std::uint64_t local_pulled_bytes = 0;
  std::uint64_t local_shared_bytes = 0;
  // Copied from and to devices.
  std::uint64_t device_out_bytes = 0;
  std::uint64_t device_in_bytes = 0;
  // Frames pushed to servers and to relays of this machine, repeats included, and how often these have asked for some
  // that others waited for (Wanted).
  std::uint64_t pushed_frames = 0;
  std::uint64_t wanted_messages = 0;
  // Losses that the job has survived: servers and schedulers that have successors, and ranks that are vacant now.
  std::uint64_t lost_servers = 0;
  std::uint64_t lost_schedulers = 0;
  std::uint64_t lost_workers = 0;
  struct Coding {
    // pushed_bytes and pulled_bytes as they travelled.
    std::uint64_t pushed_wire_bytes = 0;
    std::uint64_t pulled_wire_bytes = 0;
    // Of what is pushed, and of answers.
    std::uint64_t encode_ns = 0;
    std::uint64_t decode_ns = 0;
  };
  Coding coding{};
};

// Counted by one thread each, read by any.
struct WorkerCounters {
  TrafficCounters
      servers;  // by the worker's thread, or by its relay's where the worker exchanges with relays
  TrafficCounters local;  // with relays
  std::atomic<std::uint64_t> finished_operations{0};
  std::atomic<std::uint64_t> finished_bytes{0};
  std::atomic<std::uint64_t> failed_operations{0};
  std::atomic<std::uint64_t> device_out_bytes{0};
  std::atomic<std::uint64_t> device_in_bytes{0};
  std::atomic<std::uint64_t> lost_schedulers{0};  // that have successors
  std::atomic<std::uint64_t> lost_workers{0};     // ranks that are vacant
};

// What callers ask of the loop.
struct WorkerCommand {
  enum class Kind : std::uint8_t { kSubmit, kBarrier, kFinish, kLeave };
  Kind kind = Kind::kSubmit;
  bool final = true;  // kLeave
  HandleId handle;    // kBarrier, kFinish
  PipelineCall call;  // kSubmit
};

class WorkerDoor {
 public:
  // `waiter` is what the Worker's Runner sleeps on; null for a job of one, and where turns need no
  // wake-up. `devices`: null where tensors are in host memory only; it outlives the door.
  WorkerDoor(const Config& config, Waiter* waiter, device::Places* devices = nullptr);
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

  // See Handles.
  Result<bool> poll(HandleId handle) const { return handles_.poll(handle); }
  Status wait(HandleId handle, TimeNs timeout_ns) { return handles_.wait(handle, timeout_ns); }
  std::size_t pending_handles() const { return handles_.pending_count(); }
  std::uint64_t progress() const { return handles_.progress(); }
  bool all_wait(std::uint64_t seen, std::optional<std::uint64_t> inside) {
    return handles_.all_wait(seen, inside);
  }

  // Whether this process is in the job, and what it is there.
  const Membership& membership() const { return membership_; }

  // Ends all pending operations with kCancelled and says good-bye to the scheduler; the Worker is
  // finished() soon after (at most the failure timeout). Returns at once; calling it again, or
  // after a failure, is harmless. final: this process will not join the job again.
  void leave(bool final);

  WorkerMetrics metrics() const;

  // The Worker's side: what its loop and the callers share.
  struct LoopSide {
    Handles& handles;
    Mailbox<WorkerCommand>& commands;
    Membership& membership;
    WorkerCounters& counters;
  };
  LoopSide loop_side() { return {handles_, mailbox_, membership_, counters_}; }
  // The side of the relay beside it.
  TrafficCounters& relay_counters() { return counters_.servers; }

 private:
  Status check(const Submission& submission, PipelineCall& call) const;
  Result<HandleId> begin(WorkerCommand::Kind kind, const char* refusal);
  Result<HandleId> post(WorkerCommand&& command, const Handles::Report& report);
  Status find_place(const Submission& submission, PipelineCall& call) const;
  Status note_alone(const PipelineCall& call);
  Result<HandleId> copy_at_once(const PipelineCall& call, const Handles::Report& report);
  Result<HandleId> copy_on_device(PipelineCall& call, const Handles::Report& report);

  // constant
  const bool job_of_one_;
  const std::uint64_t min_compress_bytes_;
  const KernelSet kernels_ = best_kernels();
  device::Places* const devices_;

  // shared: thread-safe by themselves
  Handles handles_;
  Mailbox<WorkerCommand> mailbox_;
  Membership membership_;
  WorkerCounters counters_;
  WorkerCounters copied_;  // of what was copied at once
  std::atomic<bool> left_{false};

  std::mutex mutex_;  // guards what follows
  TensorTable
      alone_;  // of what nobody else takes part in, as all in a job of one: the declarations so far
};

}  // namespace byteps
