// RosterKeeper: who is here. The scheduler's core: connections, messages and ticks in, a list of
// outputs out.
//
// The life of a job (docs/protocol.md, Joining):
//
//   kRecalling   members know of a job that runs: this scheduler was begun anew, and hears where that is (recall.h);
//                then kConfirming
//   kGathering   members join; missing ones are named. Complete: epoch + 1, servers get the Roster
//   kConfirming  until every server's Heartbeat carries the new epoch; then workers get the Roster
//   kRunning     until all workers of this roster have left; then kGathering again, or the end
//   kEnding      everyone is told (Fail; after success Leave) and answers Leave; until all have, or
//                failure_ns has passed (two thirds of it after one that it took that long to notice)
//   kEnded
//
// Invariants:
//  1 The epoch grows each time the job becomes complete, and never otherwise: by one, or after a recall by more.
//  2 A worker gets the Roster of an epoch only after all servers in it said that they apply it.
//  3 Within an epoch a rank belongs to one process: a second claimant is refused while the first is here. Once a
//    worker has left the running epoch, those who come claim ranks of the next.
//  4 Between epochs nothing is lost with a member; within one, a member gone for failure_ns ends
//    the job.
//  5 Decisions follow the order of arrival, ranks and `now` only: equal inputs, equal outputs.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/config.h"
#include "base/flight.h"
#include "base/limits.h"
#include "base/log.h"
#include "member/shared_bytes.h"
#include "net/transport.h"
#include "net/wire.h"
#include "scheduler/barriers.h"
#include "scheduler/departures.h"
#include "scheduler/ending.h"
#include "scheduler/gathering.h"
#include "scheduler/joining.h"
#include "scheduler/losses.h"
#include "scheduler/outputs.h"
#include "scheduler/recall.h"
#include "scheduler/sayings.h"
#include "scheduler/seats.h"
#include "scheduler/stalls.h"
#include "scheduler/succession.h"
#include "scheduler/vigil.h"

namespace byteps {

class RosterKeeper {
 public:
  // Uses config.job's counts, config.flow and config.timeout.
  explicit RosterKeeper(const Config& config);

  void on_up(PeerId peer, const Hello& hello, TimeNs now, KeeperOutputs& out);
  void on_down(PeerId peer, const Status& why, TimeNs now, KeeperOutputs& out);
  void step(PeerId peer, const wire::Header& header, std::span<const std::byte> payload, TimeNs now,
            KeeperOutputs& out);
  // What this peer sent could not be understood; its connection ends.
  void on_malformed(PeerId peer, const Status& why, KeeperOutputs& out);
  // The process of a worker has ended, says whoever started it: `how` follows its name in a sentence. It may be said of
  // a worker that was never here, or has left, again and again, and of one whose connections are still open.
  // The next tick() does what comes of it.
  void on_worker_ended(WorkerRank rank, const std::string& how, TimeNs now);

  // Ends the job because of `why`, which everyone is told, and lingers a shorter while.
  void stop(const Status& why, TimeNs now, KeeperOutputs& out);

  // Time passes; the first call starts the clock of the notices. Call it after what has arrived was
  // handed in. The time by which a call comes later than next_deadline() is a pause of the scheduler,
  // and does not count as silence of the members.
  void tick(TimeNs now, KeeperOutputs& out);
  TimeNs next_deadline() const;
  // Only the heartbeats, if they are due: while there is so much to hand in that tick() has to wait. They mean the same
  // at any time, so they may go out before what was given out earlier.
  void beat(TimeNs now, KeeperOutputs& out);

  enum class Phase : std::uint8_t {
    kGathering,
    kRecalling,
    kConfirming,
    kRunning,
    kEnding,
    kEnded
  };
  Phase phase() const { return phase_; }
  Epoch epoch() const { return epoch_; }
  bool ended() const { return phase_ == Phase::kEnded; }
  const Status& outcome() const { return ending_.outcome(); }

  // For the flight recorder.
  const Seats& seats() const { return seats_; }

  // The sentence for people about who is missing and who is here. Also what is sent as Waiting.
  std::string waiting_text(TimeNs now) const;

 private:
  using Outputs = KeeperOutputs;

  // Messages.
  void on_join(PeerId peer, const wire::Header& header, std::span<const std::byte> payload,
               TimeNs now, Outputs& out);
  void seat(PeerId peer, wire::Join join, const Joining::Known& known, Epoch epoch, TimeNs now,
            Outputs& out);
  bool hear_of_others(PeerId peer, const wire::Join& join, TimeNs now, Outputs& out);
  void refuse(PeerId peer, const Status& why, TimeNs now, Outputs& out);
  void catch_up(Seat& seat, Outputs& out);
  void on_heartbeat(PeerId peer, Seat& seat, const wire::Header& header,
                    std::span<const std::byte> payload, TimeNs now, Outputs& out);
  void note_epoch(Seat* seat, Epoch epoch, Outputs& out);
  void on_leave(PeerId peer, const wire::Header& header, std::span<const std::byte> payload,
                TimeNs now, Outputs& out);
  void mark_left(Seat& seat, bool final, TimeNs now, Outputs& out);
  void answer_leaving(TimeNs now, Outputs& out);
  void on_barrier(PeerId peer, const Seat& seat, const wire::Header& header,
                  std::span<const std::byte> payload, Outputs& out);
  void on_stalled(PeerId peer, Seat& seat, const wire::Header& header,
                  std::span<const std::byte> payload, TimeNs now, Outputs& out);
  void on_fail(PeerId peer, Arrival arrival, std::span<const std::byte> payload, TimeNs now,
               Outputs& out);

  // Phases.
  void begin(TimeNs now);
  void gather(TimeNs now);
  void try_complete(TimeNs now, Outputs& out);
  void try_next_generation(TimeNs now, Outputs& out);
  void resume(TimeNs now, Outputs& out);
  void take_up(TimeNs now, Outputs& out);
  void end_job(Status why, TimeNs now, Outputs& out, const std::string& text = "");
  void try_end(TimeNs now, Outputs& out);

  // Ticks.
  void watch(TimeNs now, Outputs& out);
  void watch_silence(TimeNs now, Outputs& out);
  void watch_start(TimeNs now, Outputs& out);

  // Constant after construction, but that a scheduler that was begun anew has its job's incarnation then.
  JobConfig job_;
  const TimeoutConfig timeout_;
  const bool recovers_;  // servers that are lost get successors, and so does this scheduler

  std::uint32_t term_;  // 0: it does not recover

  Phase phase_ = Phase::kGathering;
  Epoch epoch_;
  Seats seats_{job_};
  Speaker speaker_{seats_, epoch_, term_};
  Joining joining_{job_, timeout_, seats_};
  Barriers barriers_{seats_, speaker_};
  Departures departures_{seats_, speaker_};
  Vigil vigil_{timeout_, seats_, speaker_};
  Stalls stalls_{timeout_, seats_, barriers_};
  Succession succession_{timeout_, seats_, speaker_};
  Gathering gathering_{timeout_};
  Recall recall_{timeout_, seats_, speaker_, job_.incarnation};
  Ending ending_{timeout_, seats_, speaker_};
  Losses losses_;

  struct Clock {
    bool started = false;
    TimeNs planned_ns = kNever;  // when tick() wanted to be called next
    TimeNs next_heartbeat_ns = kNever;
  };
  Clock clock_;
};

}  // namespace byteps
