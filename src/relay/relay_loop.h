// RelayLoop: the shell around the relays of a worker's process: an Actor beside the worker, with a transport of its
// own. It listens for the workers of its machine, and connects to the servers as a worker. The Worker says when it
// begins, who is lost, and when it is to end (worker/relay_port.h).
//
//   the worker's thread | the relay's thread
//   Worker --Mailbox--> | RelayLoop (Actor): RelayPost, its own, and one for each lost worker for whom it stands in:
//   Worker <--Mailbox-- |                      WorkerLinks (the workers of this machine)
//                       |                      Relay (what they have becomes one contribution)
//                       |                      ShardTraffic (one connection to each shard)
//                       |                    Transport
//
// When it ends it first sends what workers have to get: they may still wait for sums when the worker beside it has all
// of its own, and has left.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/config.h"
#include "base/log.h"
#include "base/status.h"
#include "base/time.h"
#include "base/timeline.h"
#include "loop/actor.h"
#include "loop/mailbox.h"
#include "net/transport.h"
#include "relay/relay.h"
#include "relay/relay_post.h"
#include "worker/relay_port.h"
#include "worker/traffic_counters.h"

namespace byteps {

class RelayLoop final : public Actor {
 public:
  // The transport listens already, and checks version and job of each Hello. All outlive it; the transport is used by
  // this relay only, and must not touch lent payloads any more once it is destroyed.
  // What it exchanges with servers is counted in `counters`. `absences`: of what it sums alone.
  RelayLoop(const Config& config, Transport& transport, const RelayPort& port,
            TrafficCounters& counters, const Log& log, AbsenceSink absences = {});
  ~RelayLoop() override;

  std::size_t turn(TimeNs now) override;
  TimeNs next_deadline() const override;
  TimeNs patience() const override { return own().patience(); }
  // After kEnd, once all connections are down and all lent buffers are back.
  bool finished() const override { return state_ == State::kFinished; }
  void failed(const Status& why) override;

  // For tests and the simulator; null before it has begun.
  const Relay* relay() const { return own().relay(); }
  // Copies of sums that its relays keep, bytes.
  std::uint64_t kept_bytes() const;

 private:
  enum class State : std::uint8_t {
    kWaiting,  // the Worker has not said what the job is
    kServing,
    kFlushing,  // was told to end: what waits to be sent to workers is sent
    kClosing,   // connections are closed, lent memory comes back
    kFinished,
  };

  const RelayPost& own() const { return *posts_.front(); }
  RelayPost& add_post();
  std::size_t take_commands();
  void begin(const RelayCommand& command);
  void amend(const wire::Roster& roster);
  void note_left(WorkerRank worker);
  void stand_in(const wire::Roster& roster);
  void handle(const Event& event);
  RelayPost& post_of(const Event& event);
  bool is_known(const Hello& hello) const;
  void close_ended();
  void publish();
  void tell_ready();
  void tell_settled();
  void be_asked_to_settle();
  void end(const Status& why);
  void end_unneeded();
  void try_finish();
  void notify(RelayNotice::Kind kind, Status why);

  // Constant after construction.
  const Config config_;
  Transport& transport_;
  const RelayPort port_;
  TrafficCounters& counters_;
  const Log log_;
  const AbsenceSink absences_;    // empty: they are not recorded
  TimelineLane* const timeline_;  // null: none is recorded

  // Owned by the loop.
  std::vector<std::unique_ptr<RelayPost>> posts_;   // first its own
  std::unordered_map<PeerId, RelayPost*> post_of_;  // of connections of workers
  std::vector<WorkerRank> left_;                    // have left the job
  State state_ = State::kWaiting;
  TimeNs settled_by_ns_ = kNever;  // the worker beside it waits for kSettled until then
  struct Said {
    bool ready = false;
    bool failed = false;
  };
  Said said_;  // to the worker
  Status ended_;
  RelayPost::Job job_;
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
