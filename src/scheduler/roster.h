// RosterKeeper: who is here. The scheduler's core: connections, messages and ticks in, a list of
// outputs out.
//
// The life of a job (docs/protocol.md, Joining):
//
//   kGathering   members join; missing ones are named. Complete: epoch + 1, servers get the Roster
//   kConfirming  until every server's Heartbeat carries the new epoch; then workers get the Roster
//   kRunning     until all workers of this roster have left; then kGathering again, or the end
//   kEnding      everyone is told (Fail; after success Leave) and answers Leave; until all have, or
//                failure_ns has passed (after a failure two thirds of it)
//   kEnded
//
// Invariants:
//  1 The epoch grows by one each time the job becomes complete, and never otherwise.
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

namespace byteps {

// Something for the shell to do, in order.
struct KeeperOutput {
  enum class Kind : std::uint8_t { kSend, kClose, kNotice };
  Kind kind = Kind::kNotice;
  PeerId peer;                       // kSend, kClose
  wire::Header header;               // kSend
  SharedBytes payload;               // kSend
  Status reason;                     // kClose
  LogLevel level = LogLevel::kInfo;  // kNotice
  std::string text;                  // kNotice
  // kNotice: whether it is about something that others can cause again and again, and of which kind.
  enum class Cause : std::uint8_t { kJob, kRefused, kMalformed, kUnread };
  static constexpr std::size_t kCauses = 4;
  Cause cause = Cause::kJob;
};

class RosterKeeper {
 public:
  // Uses config.job's counts, config.flow and config.timeout.
  explicit RosterKeeper(const Config& config);

  void on_up(PeerId peer, const Hello& hello, TimeNs now, std::vector<KeeperOutput>& out);
  void on_down(PeerId peer, const Status& why, TimeNs now, std::vector<KeeperOutput>& out);
  void step(PeerId peer, const wire::Header& header, std::span<const std::byte> payload, TimeNs now,
            std::vector<KeeperOutput>& out);
  // What this peer sent could not be understood; its connection ends.
  void on_malformed(PeerId peer, const Status& why, std::vector<KeeperOutput>& out);

  // Ends the job because of `why`, which everyone is told, and lingers a shorter while.
  void stop(const Status& why, TimeNs now, std::vector<KeeperOutput>& out);

  // Time passes; the first call starts the clock of the notices. Call it after what has arrived was
  // handed in. The time by which a call comes later than next_deadline() is a pause of the scheduler,
  // and does not count as silence of the members.
  void tick(TimeNs now, std::vector<KeeperOutput>& out);
  TimeNs next_deadline() const;
  // Only the heartbeats, if they are due: while there is so much to hand in that tick() has to wait. They mean the same
  // at any time, so they may go out before what was given out earlier.
  void beat(TimeNs now, std::vector<KeeperOutput>& out);

  enum class Phase : std::uint8_t { kGathering, kConfirming, kRunning, kEnding, kEnded };
  Phase phase() const { return phase_; }
  Epoch epoch() const { return epoch_; }
  bool ended() const { return phase_ == Phase::kEnded; }
  const Status& outcome() const { return outcome_; }

  // For the flight recorder: who is at the other end of a connection, and all members with their last sign of life.
  std::string who(PeerId peer) const;
  std::vector<FlightPeer> members() const;

  // The sentence for people about who is missing and who is here. Also what is sent as Waiting.
  std::string waiting_text(TimeNs now) const;

 private:
  using Outputs = std::vector<KeeperOutput>;
  using Arrival = std::uint64_t;  // numbers members in order of arrival; never used again

  // One member. Workers outside the roster wait for the next epoch; servers outside it are spare.
  struct Seat {
    wire::Join join;  // host made printable
    std::vector<std::uint64_t>
        past_lives;  // those before join.life; what they said may still be on the way
    std::uint32_t rank = Hello::kNoRank;  // workers: from Join; servers: from their first roster on
    bool in_roster = false;               // of the current epoch
    bool left = false;                    // workers in the roster only
    bool left_for_good = false;
    bool told_end = false;       // kEnding: the last word was sent
    bool heard_end = false;      // kEnding: it acknowledged the last word, or needs none
    std::optional<PeerId> peer;  // none: the connection is lost
    TimeNs since_ns = 0;
    TimeNs heard_ns = 0;        // last sign of life, or when the connection was lost
    TimeNs said_ns = 0;         // its last message
    std::uint64_t rival = 0;    // a life that claims this place while our connection is up; 0: none
    TimeNs rival_since_ns = 0;  // its first claim
    Status lost_why;
    Epoch applied;              // the epoch it works in, by Join and Heartbeat
    wire::Stalled stalled;      // workers: what they wait for while nothing moves
    TimeNs next_notice_ns = 0;  // workers that wait while an epoch runs
    bool worker() const { return join.role == Role::kWorker; }
  };
  struct Connection {
    TimeNs since_ns = 0;          // a connection without seat is closed after failure_ns
    Hello hello;                  // who it said it is, before Join
    std::optional<Arrival> seat;  // none: not joined, refused, or its member has gone
    bool refused = false;         // nothing it says counts any more
    bool closed = false;          // kClose was given out
  };
  // Who would play what, if the job were complete now. nullopt: missing.
  struct Cast {
    std::vector<std::optional<Arrival>> workers;  // by rank
    std::vector<std::optional<Arrival>> servers;
    bool complete() const;
  };

  // Messages.
  void on_join(PeerId peer, const wire::Header& header, std::span<const std::byte> payload,
               TimeNs now, Outputs& out);
  void note_epoch(Seat& seat, Epoch epoch, Outputs& out);
  void on_heartbeat(PeerId peer, Seat& seat, const wire::Header& header,
                    std::span<const std::byte> payload, TimeNs now, Outputs& out);
  void on_leave(PeerId peer, const wire::Header& header, std::span<const std::byte> payload,
                TimeNs now, Outputs& out);
  void on_barrier(PeerId peer, const Seat& seat, const wire::Header& header,
                  std::span<const std::byte> payload, Outputs& out);
  void answer_barrier(const Seat& to, std::uint64_t number, std::optional<WorkerRank> never,
                      Outputs& out) const;
  std::optional<WorkerRank> barrier_misses_for_ever() const;
  void on_stalled(PeerId peer, Seat& seat, const wire::Header& header,
                  std::span<const std::byte> payload, TimeNs now, Outputs& out);
  std::string stall() const;
  void on_fail(PeerId peer, Arrival arrival, std::span<const std::byte> payload, TimeNs now,
               Outputs& out);

  // Joining, step by step.
  struct Known {
    std::optional<Arrival> same;  // the same member, back again
    Status refusal;               // why it cannot be let in; Ok otherwise
    Status fatal;                 // why nobody can go on; Ok otherwise
    Status closed;                // why this connection ends; its member may come again
  };
  Known recognise(const wire::Join& join, const Incarnation& incarnation, Epoch epoch, TimeNs now,
                  Outputs& out);
  Status check_join(const wire::Join& join) const;
  bool is_late(const wire::Join& join, std::optional<Arrival> waiting,
               std::optional<Arrival> seated) const;
  static bool is_rival(Seat& seat, std::uint64_t life, TimeNs now);
  Known rival_of(Arrival place, const wire::Join& join) const;
  static Status claimed_twice(const Seat& seat, const wire::Join& join);
  bool means_next_epoch(const wire::Join& join) const;
  Status check_claims(const wire::Join& join) const;
  std::size_t count_shards() const;
  Status check_sizes(const wire::Join& join) const;
  Arrival admit(wire::Join join, TimeNs now);
  static void note_life(Seat& seat, std::uint64_t life);
  void attach(Arrival arrival, PeerId peer, TimeNs now, Outputs& out);
  void catch_up(const Seat& seat, Outputs& out);
  void turn_away(PeerId peer, Epoch epoch, TimeNs now, Outputs& out);
  void refuse(PeerId peer, const Status& why, TimeNs now, Outputs& out);
  void erase(Arrival arrival, TimeNs now);
  void mark_left(Seat& seat, bool final, TimeNs now, Outputs& out);
  void tell_departed(Outputs& out);

  // Phases.
  void begin(TimeNs now);
  void gather(TimeNs now);
  void try_complete(TimeNs now, Outputs& out);
  void begin_epoch(const Cast& cast, TimeNs now, Outputs& out);
  void try_run(Outputs& out);
  void try_next_generation(TimeNs now, Outputs& out);
  void note_absence(TimeNs now);
  void fail_job(Status why, TimeNs now, Outputs& out);
  void succeed(const std::string& text, TimeNs now, Outputs& out);
  void tell_end(Seat& seat, Outputs& out);
  void try_end(TimeNs now, Outputs& out);
  TimeNs end_ns() const;

  // Ticks.
  void excuse_own_pause(TimeNs now);
  void look_at_clock(TimeNs now, Outputs& out);
  void drop_strangers(TimeNs now, Outputs& out);
  TimeNs patience_ns(const Seat& seat) const;
  void watch_silence(TimeNs now, Outputs& out);
  void watch_start(TimeNs now, Outputs& out);
  void watch_queue(TimeNs now, Outputs& out);
  void watch_stall(TimeNs now, Outputs& out);

  // What is expected, and who plays what.
  bool idle() const { return idle_until_ns_ != kNever; }
  bool anyone_waits() const;
  std::uint32_t expected_workers() const;
  std::uint32_t expected_servers() const;
  Cast cast() const;

  // Texts (roster_text.cc).
  std::string describe(const Seat& seat) const;
  std::string describe(const wire::Join& join, std::uint32_t rank) const;
  struct Mention {
    const Seat* seat;
    std::uint32_t rank;  // which the seat may not have yet
  };
  std::string list_of(const std::vector<Mention>& seats, TimeNs now) const;
  std::string missing_text(const Cast& cast) const;
  std::string other_sizes_text() const;

  void send(PeerId peer, wire::Kind kind, WorkerRank worker, SharedBytes payload,
            Outputs& out) const;
  void close(PeerId peer, Status reason, Outputs& out);
  static void notice(LogLevel level, std::string text, Outputs& out,
                     KeeperOutput::Cause cause = KeeperOutput::Cause::kJob);

  // Constant after construction.
  const JobConfig job_;
  const FlowConfig flow_;
  const TimeoutConfig timeout_;

  Phase phase_ = Phase::kGathering;
  Epoch epoch_;
  Status outcome_;
  std::map<Arrival, Seat> seats_;
  std::map<PeerId, Connection> connections_;
  Arrival next_arrival_ = 0;

  // Of those that were in the last epoch, by host and rank: what they said may still be on the way.
  std::map<std::pair<std::string, std::uint32_t>, std::vector<std::uint64_t>> former_lives_;

  // The epoch that is being confirmed or runs.
  SharedBytes roster_;            // encoded once, for all members
  std::uint32_t left_count_ = 0;  // of its workers
  std::vector<std::uint32_t>
      departed_for_good_;  // of them those that the others are not told of yet
  std::vector<std::uint32_t> departed_for_a_while_;  // likewise
  std::uint64_t barrier_number_ = 0;                 // the one that is open
  std::set<std::uint32_t> barrier_arrived_;          // ranks
  std::uint32_t barrier_size_ = 0;                   // workers of this epoch
  TimeNs stall_until_ns_ = kNever;                   // none can go on; the job ends then

  bool started_ = false;
  TimeNs planned_ns_ = kNever;  // when tick() wanted to be called next
  TimeNs gather_ns_ = 0;        // when this gathering began
  TimeNs next_notice_ns_ = kNever;
  TimeNs idle_until_ns_ = kNever;  // no worker is left; the job ends then
  TimeNs ending_until_ns_ = kNever;
  TimeNs next_heartbeat_ns_ = kNever;
  std::string last_refusal_;  // of this gathering, for the notices
};

}  // namespace byteps
