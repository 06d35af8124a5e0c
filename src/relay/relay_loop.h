// RelayLoop: the shell around a Relay: an Actor beside a worker, in its process, with a transport of its own. It
// listens for the workers of its machine, and connects to the servers as a worker. The Worker says when it begins, and
// when it is to end (worker/relay_port.h).
//
//   the worker's thread | the relay's thread
//   Worker --Mailbox--> | RelayLoop (Actor): WorkerLinks (the workers of this machine)
//   Worker <--Mailbox-- |                    Relay (what they have becomes one contribution)
//                       |                    ShardTraffic (one connection to each shard)
//                       |                    Transport
//
// When it ends it first sends what workers have to get: they may still wait for sums when the worker beside it has all
// of its own, and has left.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/buffer.h"
#include "base/config.h"
#include "base/log.h"
#include "base/status.h"
#include "base/time.h"
#include "base/timeline.h"
#include "loop/actor.h"
#include "loop/mailbox.h"
#include "net/transport.h"
#include "relay/relay.h"
#include "server/worker_links.h"
#include "worker/relay_port.h"
#include "worker/shard_traffic.h"

namespace byteps {

class RelayLoop final : public Actor, private ShardTraffic::Owner {
 public:
  // The transport listens already, and checks version and job of each Hello. All outlive it; the transport is used by
  // this relay only, and must not touch lent payloads any more once it is destroyed.
  // What it exchanges with servers is counted in `counters`.
  RelayLoop(const Config& config, Transport& transport, Mailbox<RelayCommand>& commands,
            Mailbox<RelayNotice>& notices, TrafficCounters& counters, const Log& log);
  ~RelayLoop() override;

  std::size_t turn(TimeNs now) override;
  TimeNs next_deadline() const override;
  TimeNs patience() const override {
    return relay_ && !relay_->is_alone() ? relay_->uplink().flow().patience() : 0;
  }
  // After kEnd, once all connections are down and all lent buffers are back.
  bool finished() const override { return state_ == State::kFinished; }
  void failed(const Status& why) override;

  // For tests and the simulator; null before it has begun.
  const Relay* relay() const { return relay_.get(); }

 private:
  enum class State : std::uint8_t {
    kWaiting,  // the Worker has not said what the job is
    kServing,
    kFlushing,  // was told to end: what waits to be sent to workers is sent
    kClosing,   // connections are closed, lent memory comes back
    kFinished,
  };

  std::size_t take_commands();
  void begin(const RelayCommand& command);
  void amend(const wire::Roster& roster);
  RelayConfig relay_config(const wire::Roster& roster);
  void take_events(std::size_t count);
  void handle(const Event& event);
  void note_idle_end(const Event& event);
  Status on_message(ShardIndex shard, const wire::Header& header, const Event& event) override;
  Status on_mismatch(ShardIndex shard, const wire::Header& header,
                     std::span<const std::byte> payload);
  void record(FlightEvent event, ShardIndex shard, const wire::Header& header) const;
  void on_sent(SendToken token) override { relay_->on_sent(token); }
  std::size_t deliver();
  void tell_ready();
  void end(const Status& why);
  void try_finish();
  void notify(RelayNotice::Kind kind, Status why);

  // Constant after construction.
  const Config config_;
  Transport& transport_;
  Mailbox<RelayCommand>& commands_;
  Mailbox<RelayNotice>& notices_;
  TrafficCounters& counters_;
  const Log log_;
  TimelineLane* const timeline_;  // null: none is recorded

  // Owned by the loop.
  BufferPool pool_;  // first: it outlives all refs
  std::unique_ptr<Relay> relay_;
  WorkerLinks links_;
  ShardTraffic shards_;
  State state_ = State::kWaiting;
  bool said_ready_ = false;
  bool said_failed_ = false;
  Status ended_;
  TimeNs failure_ns_ = 0;  // the job's
  TimeNs flush_until_ns_ = kNever;
  TimeNs now_ = 0;
  TimeNs planned_ns_ = kNever;  // when turn() wanted to be called next
  // Of one turn, to reuse the memory.
  struct Scratch {
    std::vector<RelayCommand> commands;
    std::vector<Event> events;
  };
  Scratch scratch_;
};

}  // namespace byteps
