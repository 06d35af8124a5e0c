// Relay: where the workers of a machine sum first. A shelf for them, and a pipeline that takes what they have together
// to the servers, as the contribution of one. The core: no socket, thread or clock.
//
//   worker --Push--> shelf --complete--> batch --part complete--> pipeline --Push--> server
//   worker <-Answer- shelf <-----------------------answered------ pipeline <-Answer- server
//
// Every worker of the machine has one, and sums there the parts that it leads (base/groups.h). To the workers a relay
// is a shard, to the servers a worker: both speak docs/protocol.md as they do without it.
//
// How the shell uses it: workers' messages go to step(), servers' to the on_...() functions; then tick(), the words for
// the workers from down(), and frames for the servers from front() and pop(), as with a Pipeline.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "base/time.h"
#include "relay/batch.h"
#include "server/shelf.h"
#include "worker/pipeline.h"

namespace byteps {

struct RelayConfig {
  ShelfSettings shelf{};
  PipelineConfig uplink;  // its groups are the job's; its road_ends are empty
};

class Relay final : private Batch::Listener {
 public:
  // `pool` must outlive the relay and every answer.
  Relay(const RelayConfig& config, BufferPool& pool);

  // ---- the workers of this machine
  void connect(WorkerRank worker) { shelf_.connect(worker, down_); }
  void step(WorkerRank from, const wire::Header& header, std::span<const std::byte> payload,
            TimeNs now);
  // What this worker itself says of a tensor: how much earlier than others it goes up.
  void set_priority(Key key, std::int32_t priority) { tensors_[key].priority = priority; }

  // ---- the servers
  void on_shard_up(ShardIndex shard) { uplink_.on_shard_up(shard); }
  void on_shard_down(ShardIndex shard) { uplink_.on_shard_down(shard); }
  void set_capacity(ShardIndex shard, std::uint64_t bytes) { uplink_.set_capacity(shard, bytes); }
  Status on_answer(ShardIndex shard, const wire::Header& header,
                   std::span<const std::byte> payload);
  void on_wanted(ShardIndex shard, const wire::Header& header);
  void on_mismatch(Key key, const Status& why);
  void on_sent(SendToken token);
  bool front(ShardIndex shard, Outgoing& message) { return uplink_.front(shard, message); }
  void pop() { uplink_.pop(); }

  // ---- both
  void tick(TimeNs now);
  TimeNs next_deadline() const;
  // What to tell the workers, in order; to be cleared when that is done. There is no Forward among it.
  ShelfOutputs& down() { return down_; }
  // The job ends: all that waits for the servers ends with this status.
  void fail_all(const Status& status);

  const Shelf& shelf() const { return shelf_; }
  const Pipeline& uplink() const { return uplink_; }

 private:
  // The stage of the road up in which a part waits for the workers of this machine.
  class Reduce final : public Stage {
   public:
    explicit Reduce(Relay& relay) : relay_(relay) {}
    void enter(PartRef part, Tensor& tensor, TimeNs now) override;
    void abandon(PartRef part, Tensor& tensor) override;
    void tick(TimeNs now, StageOutput& out) override;
    TimeNs next_deadline() const override { return complete_.empty() ? kNever : 0; }
    void leave(PartRef part) { complete_.push_back(part); }

   private:
    Relay& relay_;
    std::vector<PartRef> complete_;
  };
  struct Relayed {
    std::int32_t priority = 0;
    // Their operations are under way, or wait for the end of the one before. The last may still gather frames.
    std::deque<std::unique_ptr<Batch>> batches;
  };
  struct Submitted {
    Key key;
    Batch* batch = nullptr;
  };

  // Batch::Listener
  void answered(const wire::Header& header, std::span<const std::byte> payload) override;

  PipelineConfig uplink_config(PipelineConfig config);
  void absorb();
  void take(ShelfOutput::Forward&& forward);
  void forward_or_give_up(ShelfOutput::Forward&& forward);
  Batch& batch_of(Relayed& relayed, Key key, const wire::Declare& declared, Round round);
  void drop_unsubmitted(Key key);
  void settle();
  void end_batch(HandleId handle, const Status& status);

  Reduce reduce_{*this};
  const PipelineConfig config_;  // the uplink's
  Shelf shelf_;
  Pipeline uplink_;
  std::map<Key, Relayed> tensors_;
  std::map<std::int64_t, Submitted> submitted_;  // by handle
  std::int64_t last_handle_ = 0;
  ShelfOutputs fresh_;  // of the shelf, not looked through yet
  ShelfOutputs down_;
  TimeNs now_ = 0;
};

}  // namespace byteps
