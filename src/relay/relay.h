// Relay: where the workers of a machine sum first. A shelf for them, and a pipeline that takes what they have together
// to the servers, as the contribution of one. The core: no socket, thread or clock.
//
//   worker --Push--> shelf --complete--> batch --------ready-----> uplink --Push--> server
//   worker <-Answer- shelf <-----------------------answered------ uplink <-Answer- server
//
// Every worker of the machine has one, and sums there the parts that it leads (base/groups.h). To the workers a relay
// is a shard, to the servers a worker: both speak docs/protocol.md as they do without it. Beside frames these words go
// through it:
//   ends of inputs     of the worker beside it only: it says them to the servers in its name, as it would itself
//   forgotten names    when all workers here have forgotten one
//   declarations       of tensors whose first part it leads, as soon as somebody here declares one: others may mean
//                      another, and wait for less or more
//   mismatches         both ways: what workers here do not agree about ends everywhere
//   who is missing     both ways: the servers see leaders, and name the workers whom these miss
//   Wanted             to those who have not contributed
//
// Where all workers are on one machine it has no uplink: it is a shard, and finishes what it sums.
//
// How the shell uses it: workers' messages go to step(), servers' to the on_...() functions; then tick(), the words for
// the workers from down(), and frames for the servers from uplink()->front() and pop(), as with a Pipeline.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
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
  bool is_alone = false;  // no servers: there is one machine
  // The job goes on without a worker that is lost: workers keep sums, and other relays stand in for those of the lost.
  bool recovers = false;
  bool takes_over = false;         // this is such a relay
  std::vector<WorkerRank> lost{};  // already
};

class Relay final : private Batch::Listener {
 public:
  // `pool` must outlive the relay and every answer.
  Relay(const RelayConfig& config, BufferPool& pool);

  // ---- the workers of this machine
  void connect(WorkerRank worker);
  void disconnect(WorkerRank worker);
  // It has left the job: it lacks nothing any more.
  void leave(WorkerRank worker);
  // It is lost for good: nobody waits for it any more.
  void lose(WorkerRank worker);
  void step(WorkerRank from, const wire::Header& header, std::span<const std::byte> payload,
            TimeNs now);

  // ---- the servers. Not where it is alone.
  Status on_answer(ShardIndex shard, const wire::Header& header,
                   std::span<const std::byte> payload);
  void on_wanted(ShardIndex shard, const wire::Header& header);
  void on_missing(const wire::Header& header, const Members& whom);
  void on_mismatch(Key key, const Status& why);
  void on_inputs_done(ShardIndex shard, const wire::Header& header);
  // kGive, kAgain, kForgotten, kSettled
  void on_recovery(ShardIndex shard, const wire::Header& header);
  void on_sent(SendToken token);
  // For connections, front(), pop(), flow(), on_recovery() and questions.
  Pipeline& uplink() { return *uplink_; }
  const Pipeline& uplink() const { return *uplink_; }
  bool is_alone() const { return !uplink_.has_value(); }
  bool waits_for_crew() const { return config_.duties.waits_for_crew; }

  // ---- both
  void tick(TimeNs now);
  TimeNs next_deadline() const;
  // What to tell the workers, in order; to be cleared when that is done. There is no Forward, InputsEnd or Forgotten
  // among it.
  ShelfOutputs& down() { return down_; }
  // What to tell the user; likewise.
  std::vector<PipelineOutput::Tuned>& tuned() { return tuned_; }
  // For recordings: what waits for the servers, and for how long.
  std::vector<PipelineOutput::Notice>& notices() { return notices_; }
  // The worker beside it leaves the job. What was sent to the others arrives, and nobody is asked any more whether it
  // has: the servers are to hear that all have it.
  void hand_on();
  // The job ends: all that waits for the servers ends with this status.
  void fail_all(const Status& status);
  // Nothing is lent to the servers' connections, or waits for them.
  bool is_idle() const { return is_alone() || uplink_->pending_operations() == 0; }

  const Shelf& shelf() const { return shelf_; }

 private:
  // The stage of the road up in which a part waits for the workers of this machine, until its first frame is summed.
  class Reduce final : public Stage {
   public:
    explicit Reduce(Relay& relay) : relay_(relay) {}
    void enter(PartRef part, Tensor& tensor, TimeNs now) override;
    void abandon(PartRef part, Tensor& tensor) override;
    void tick(TimeNs now, StageOutput& out) override;
    TimeNs next_deadline() const override { return ready_.empty() ? kNever : 0; }
    void leave(PartRef part) { ready_.push_back(part); }

   private:
    Relay& relay_;
    std::vector<PartRef> ready_;
  };
  // The rounds of a tensor, in order. Operations of the first ones are under way, or wait for the end of the one
  // before. The last may still gather frames.
  using Batches = std::deque<std::unique_ptr<Batch>>;
  struct Submitted {
    Key key;
    Batch* batch = nullptr;
  };

  // Takes what the shelf says that is not for the workers.
  struct Taking;

  // Batch::Listener
  void answered(const wire::Header& header, std::span<const std::byte> payload) override;

  PipelineConfig uplink_config(PipelineConfig config);
  void absorb();
  void look_at_declaration(WorkerRank from, Key key, std::span<const std::byte> payload);
  void take(ShelfOutput::Forward& forward);
  Batch& batch_of(Key key, const wire::Declare& declared, Round round);
  void submit(Key key, Batch& batch);
  void submit_held();
  void note_settled();
  void note_told();
  void drop_unsubmitted(Key key);
  void settle();
  void end_batch(HandleId handle, const Status& status);
  void end_inputs(const Status& status);

  Reduce reduce_{*this};
  const PipelineConfig config_;  // the uplink's
  const bool stands_in_;         // for another worker's relay
  std::set<WorkerRank> left_;
  std::set<WorkerRank> lost_;
  // By a worker, and not known here, where it stands in: until all of the crew have told.
  std::set<Key> given_up_;
  Shelf shelf_;
  std::optional<Pipeline> uplink_;
  std::map<Key, Batches> batches_;
  std::map<std::int64_t, Submitted> submitted_;  // by handle
  std::int64_t last_handle_ = 0;
  std::optional<std::int64_t> inputs_handle_;  // the worker beside this has no more inputs
  bool inputs_were_heard_ = false;             // and the workers were told
  std::map<Key, Status> mismatches_;           // that the servers know
  ShelfOutputs fresh_;                         // of the shelf, not looked through yet
  ShelfOutputs down_;
  std::vector<PipelineOutput::Tuned> tuned_;
  std::vector<PipelineOutput::Notice> notices_;
};

}  // namespace byteps
