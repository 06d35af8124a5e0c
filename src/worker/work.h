// Work: what is under way at a worker, which the pieces of the pipeline share: the tensors, the operations, the ways to
// the shards, and what the shell has to do. The pieces are in pipeline.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/buffer.h"
#include "base/config.h"
#include "base/groups.h"
#include "base/ids.h"
#include "base/limits.h"
#include "base/outputs.h"
#include "base/placement.h"
#include "base/spec.h"
#include "base/status.h"
#include "base/time.h"
#include "device/orders.h"
#include "net/transport.h"
#include "net/wire.h"
#include "worker/cargo.h"
#include "worker/coder.h"
#include "worker/handles.h"
#include "worker/operations.h"
#include "base/residuals.h"
#include "worker/road.h"
#include "worker/shard_way.h"
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
  device::Place
      place{};  // of input and output, where they are on a device: for Staging, which makes a cargo of it
  Carry carry{};           // of a coded tensor, spec.total_bytes each
  Cargo* cargo = nullptr;  // not null: instead of input and output, which are empty
  // Of a relay that stands in for another, which was in the middle of it: the round.
  std::optional<Round> round{};
};

struct PipelineConfig {
  WorkerRank self;
  Epoch epoch;
  Placement placement;             // the job's
  std::uint32_t worker_count = 0;  // the job's; 0: not known
  std::uint64_t credit_bytes = 0;  // of all connections together; 0: finds it by itself (credit.h)
  std::uint64_t credit_frames_min = 4;
  bool autotune = false;  // without credit_bytes: looks for the best horizon (credit_tuner.h)
  bool priority_scheduling = true;
  TimeNs departed_ns =
      3 * kSecond;  // patience with what a worker that left may owe, see on_worker_left()
  TimeNs first_notice_ns = 5 * kSecond;
  TimeNs notice_every_ns = 10 * kSecond;
  struct Finishing {
    // Of a tensor, in one generation of inputs that can still end: the next begins at a number of its own (ids.h). Less
    // than that, because of those that are under way.
    std::uint32_t rounds_max = kRoundsPerGeneration - std::uint32_t{kOperationsMax};
    ShardIndex way{};  // whose other end says when all inputs have ended
  };
  Finishing finishing{};
  struct Measured {
    TimelineLane* timeline = nullptr;  // null: none is recorded
    Stopwatch stopwatch = nullptr;     // of coding
  };
  Measured measured{};
  RoadEnds road_ends{};  // their stages outlive the pipeline
  // Where workers of a machine sum first, at relays (relay/relay.h): a worker's ways lead to those of its machine, and
  // a relay speaks for its group. Null: all workers exchange with the shards by themselves.
  std::shared_ptr<const Groups> groups = nullptr;
  bool is_relay = false;
  struct Relays {
    bool are_alone = false;  // there are no servers behind them
    // Of the process: a worker behind relays lends what its operations carry there, and its relays code with it.
    Residuals* residuals = nullptr;
  };
  Relays relays{};
  TimeNs stalled_ns = 5 * kMillisecond;  // a way without answers for so long: see flow.h
  bool keeps_sums = false;               // for the successor of a shard that is lost (kept_sums.h)
  // Of a relay where a worker may be lost.
  struct Duties {
    bool waits_for_crew = false;  // servers hear that it has a sum when all of its crew have
    bool stands_in = false;       // it stands in for another
  };
  Duties duties{};
};

// With what the user has set of the flow.
PipelineConfig with_flow(PipelineConfig pipeline, const FlowConfig& flow);

// What the pipeline's shell has to do, by kind.
struct PipelineOutput {
  // The handle ends with `status`; its memory is the caller's again.
  struct Complete {
    HandleId handle;
    Status status;
  };
  // Tell the user.
  struct Notice {
    std::string text;
  };
  // Tell the user, who asked for it: what was chosen.
  struct Tuned {
    std::string text;
  };
};
using PipelineOutputs =
    Outputs<PipelineOutput::Complete, PipelineOutput::Notice, PipelineOutput::Tuned>;

// Tensor bytes, frames and operations, since the beginning where nothing else is said.
struct PipelineCounters {
  std::uint64_t pushed_bytes = 0;
  std::uint64_t pulled_bytes = 0;
  std::uint64_t pushed_wire_bytes = 0;  // the same as they travel
  std::uint64_t pulled_wire_bytes = 0;
  std::uint64_t pushed_frames = 0;
  std::uint64_t wanted_messages = 0;
  std::uint64_t finished_operations = 0;
  std::uint64_t finished_bytes = 0;
  std::uint64_t failed_operations = 0;
  TimeNs encode_ns = 0;  // it took, where there is a stopwatch
  TimeNs decode_ns = 0;
  std::uint64_t kept_bytes = 0;  // of copies of sums, now (KeptSums)
};

struct Work {
  explicit Work(const PipelineConfig& pipeline_config);

  const PipelineConfig config;
  Coder coder;      // and its buffers; outlives the tensors, which have codes in these
  BufferPool kept;  // what KeptSums copies; likewise
  TensorTable tensors;
  Operations operations;
  std::vector<ShardWay> shards;  // by ShardIndex
  PipelineOutputs outputs;
  PipelineCounters counters;
  const std::unique_ptr<WorkerTimeline> timeline;  // null: none is recorded
  TimeNs now = 0;                                  // of this turn

  ShardWay& shard_of(const PartState& part) { return shards[part.shard.value]; }
  const ShardWay& shard_of(const PartState& part) const { return shards[part.shard.value]; }
  // The tensor's active operation is under way, and not ending.
  bool is_active(const Tensor& tensor) const {
    return tensor.active != kNoOp && operations[tensor.active].state == OpState::kActive;
  }
  // See Spec; of those for whom this pipeline speaks.
  bool gives(const Spec& spec) const {
    return spec.operation != Operation::kBroadcast || speaks_for(spec.root);
  }
  bool is_sent_to(const Spec& spec) const {
    return !spec.has_root() || speaks_for(spec.root) == spec.root_only;
  }
  // Whoever was told of it is to forget it.
  void forget(const Tensor& tensor) {
    for (const TensorWay& way : tensor.ways) shards[way.shard.value].forget(tensor.key);
    if (tensor.meeting) shards[tensor.meeting->value].forget(tensor.key);
  }
  // An operation's end.
  void complete(HandleId handle, const Spec& spec, const Status& status);
  // The end of a handle that is no tensor's.
  void complete(HandleId handle, const Status& status);

  // The tensor of this name, a new one perhaps, which may travel coded. See TensorTable.
  Result<TensorIndex> find_or_add(std::string_view name, const Spec& spec);

  // Whether this pipeline pushes what that worker has.
  bool speaks_for(WorkerRank rank) const {
    return rank == config.self || (config.is_relay && config.groups->group_of(rank) ==
                                                          config.groups->group_of(config.self));
  }
  // Whether nobody else contributes to it, so nobody else lacks its sums.
  bool is_alone_in(const Spec& spec) const;
  // Whether it pushes this part: a relay does where it leads.
  bool leads(const Tensor& tensor, std::uint32_t part) const;
  // Whether its shards sum codes of this: relays sum elements.
  bool is_coded(const Spec& spec) const {
    return spec.format != Format::kPlain && !is_behind_relays();
  }
  // Whether its ways lead to relays.
  bool is_behind_relays() const { return config.groups && !config.is_relay; }
  // Relays code, with what this operation carries.
  bool lends_carry(const Op& op) const {
    return op.carry != nullptr && config.relays.residuals != nullptr && is_behind_relays();
  }
};

// What a frame costs of the credit: small ones are not free.
constexpr std::uint64_t credit_cost(std::uint64_t frame_bytes) {
  return frame_bytes + wire::kHeaderBytes;
}

}  // namespace byteps
