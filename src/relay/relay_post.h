// RelayPost: a relay with its connections: to the workers of its machine, and to the servers. In each worker's process
// there is one that is this worker's own; and where workers of the machine were lost, without which the job goes on,
// perhaps others, which stand in for theirs (member/summing.h). All of a process share a thread and a transport.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/buffer.h"
#include "base/config.h"
#include "base/ids.h"
#include "base/log.h"
#include "base/status.h"
#include "base/time.h"
#include "base/timeline.h"
#include "net/transport.h"
#include "relay/relay.h"
#include "server/worker_links.h"
#include "base/residuals.h"
#include "worker/shard_traffic.h"

namespace byteps {

class RelayPost final : private ShardTraffic::Owner {
 public:
  // Of what the worker beside it has told, which is the same for all of its process.
  struct Job {
    Incarnation incarnation{};
    TimeNs failure_ns = 0;  // the job's
  };
  // For whose relay it stands, and since which revision; 0: it is that worker's own, beside it.
  struct Place {
    WorkerRank worker;
    std::uint32_t since = 0;
  };
  // All outlive it. `fail`: the job cannot go on, and why. `absences`: empty where they are not recorded. `residuals`:
  // null where it codes without.
  RelayPost(const Config& config, Transport& transport, Residuals* residuals, const Log& log,
            TimelineLane* timeline, const AbsenceSink& absences,
            std::function<void(const Status&)> fail);

  // Serves those of its machine from now on, as the roster says.
  void begin(const Place& place, const wire::Roster& roster, const Job& job, TimeNs now);
  bool has_begun() const { return relay_ != nullptr; }
  const Place& place() const { return place_; }
  // Who serves a slot has changed, or who is lost.
  void amend(const wire::Roster& roster, TimeNs now);
  // This worker has left the job.
  void note_left(WorkerRank worker, TimeNs now);

  // ---- events
  void begin_turn(TimeNs now) { links_.begin_turn(now); }
  // One of its connections to a server. False: it is none of these.
  bool handle_upward(const Event& event, TimeNs now);
  // One of a worker.
  void handle_downward(const Event& event, TimeNs now);
  // Whether a worker with this Hello looks for this relay, and is of the epoch that it serves.
  bool is_meant(const Hello& hello) const;
  void close_ended() { links_.close_ended(); }

  // ---- what goes out
  // Not ok: a server cannot be reached for too long.
  Status keep(TimeNs now) { return shards_.connections().keep(now, is_ending_); }
  // Time passes; returns how much it has sent.
  std::size_t tick(TimeNs now);
  void excuse(TimeNs pause_ns, TimeNs now) { shards_.connections().excuse(pause_ns, now); }
  // What it has exchanged with servers, and what others of its process have.
  void publish(TrafficCounters& counters, const PipelineCounters& others) const;
  TimeNs next_deadline() const;
  TimeNs patience() const {
    return relay_ && !relay_->is_alone() ? relay_->uplink().flow().patience() : 0;
  }
  bool has_reached_all() const { return relay_->is_alone() || shards_.connections().all_were_up(); }

  // Servers may ask it alone for sums, or for word of the end of inputs: others of other machines may lack that. Where
  // workers may be lost, those of its crew have it as well: then, that a server is missed, whose successor may ask
  // them.
  bool keeps_for_others() const;
  bool misses_server() const {
    return relay_ && !relay_->is_alone() && !shards_.connections().all_are_up();
  }

  // ---- the end
  // What waits for servers ends with this; what waits to be sent to workers is sent.
  void end(const Status& why);
  bool is_ending() const { return is_ending_; }
  // It stands in for another, and workers have connections to it.
  bool serves_others() const { return place_.since > 0 && !links_.empty(); }
  bool is_flushed() const { return is_ending_ && links_.is_flushed() && leaves_ns_ == kNever; }
  void stop(const Status& why);
  // No connection is left, and all that was lent is back.
  bool is_over() const;

  const Relay* relay() const { return relay_.get(); }

 private:
  RelayConfig relay_config(const wire::Roster& roster) const;
  void note_idle_end(const Event& event);
  Status on_message(ShardIndex shard, const wire::Header& header, const Event& event) override;
  Status on_mismatch(ShardIndex shard, const wire::Header& header,
                     std::span<const std::byte> payload);
  void record(FlightEvent event, ShardIndex shard, const wire::Header& header) const;
  void on_sent(SendToken token) override { relay_->on_sent(token); }
  std::size_t deliver();
  void leave_servers();
  void record_absence(const ShelfOutput::Absence& absence) const;

  const Config& config_;
  Residuals* const residuals_;
  const Log& log_;
  TimelineLane* const timeline_;  // null: none is recorded
  const AbsenceSink& absences_;
  const std::function<void(const Status&)> fail_;

  BufferPool pool_;  // first: it outlives all refs
  Place place_;
  Epoch epoch_;
  std::unique_ptr<Relay> relay_;
  WorkerLinks links_;
  ShardTraffic shards_;
  bool is_ending_ = false;
  // Until then servers hear what all here have, and with what it ends then.
  TimeNs leaves_ns_ = kNever;
  Status ended_;
  TimeNs now_ = 0;
};

}  // namespace byteps
