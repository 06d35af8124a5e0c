// Recall: a scheduler that was begun anew, whose members have a job that runs. It hears from their Joins how far they
// are, asks one that has the newest roster for it, and waits for those who are in it (docs/protocol.md, The scheduler
// is replaced).
//
// Invariants:
//  1 It goes on with the newest roster that anybody has told of, and never with an older one.
//  2 It goes on when all workers of the roster are back. No sum is finished without any of them, so nobody else can go
//    on with the job meanwhile; and if a revision is known to any worker, it is that one or a newer. (What servers
//    alone know, no worker has acted by.)
//  3 Who is back later may have heard of a revision that nobody else has. It is asked for that before it is told of
//     this scheduler's: of the workers that are lost there it has been told, and it serves them no more.
//  4 After failure_ns it waits no longer. With half of the members it goes on, and ends the job by the name of who is
//    lost; with fewer it refuses them: they may have another scheduler, or belong to a job that is over.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/config.h"
#include "base/ids.h"
#include "base/time.h"
#include "net/wire.h"
#include "scheduler/outputs.h"
#include "scheduler/seats.h"

namespace byteps {

class Recall {
 public:
  // All outlive it.
  // `own`: this scheduler's, which nobody else has drawn.
  Recall(const TimeoutConfig& timeout, Seats& seats, const Speaker& speaker, const Incarnation& own)
      : timeout_(timeout),
        seats_(seats),
        speaker_(speaker),
        jump_(1024 + (std::to_integer<std::uint32_t>(own[0]) << 8) +
              std::to_integer<std::uint32_t>(own[1])) {}

  // Somebody knows a job of this incarnation.
  void begin(const Incarnation& incarnation, TimeNs now);
  void end() { begun_ns_ = kNever; }
  bool is_on() const { return begun_ns_ != kNever; }
  const Incarnation& incarnation() const { return incarnation_; }

  // Asks for a roster that is newer than the one that is here, if somebody has it and is not asked.
  void ask(KeeperOutputs& out);
  // The answer. Not Ok: what is wrong with it.
  Status on_roster(Arrival from, std::span<const std::byte> payload);

  enum class Verdict : std::uint8_t { kWait, kGoOn, kGiveUp };
  Verdict verdict(TimeNs now);
  // When to ask for it again; kNever while it is off.
  TimeNs deadline() const { return is_on() ? next_look_ns_ : kNever; }
  // "3 of 4 members are back".
  std::string text() const;

  // While the job goes on, of which `newest` is the newest revision: asks a member on its new connection for the roster
  // that it knows, if that is none that is known here. False: it is.
  bool ask_for_unknown(Seat& seat, std::uint32_t newest, KeeperOutputs& out) const;
  // The answer: the workers that are lost there. Not Ok: what is wrong with it.
  Result<std::vector<WorkerRank>> on_unknown(Seat& from, std::span<const std::byte> payload) const;

  const wire::Roster& roster() const { return *roster_; }
  // The members of the roster have seats in it, those that are not back too, as lost. Returns who knows an epoch, but
  // has no place in it.
  std::vector<Arrival> take_seats();
  std::uint64_t barriers() const;
  bool is_vacant(std::uint32_t rank) const;
  // Nobody waits for the worker of this rank: its process has ended.
  void note_ended(std::uint32_t rank) { ended_.insert(rank); }
  // By so much the next epoch, and the next revision, are larger than the one that is known: a scheduler before this
  // one may have made some that nobody here knows, and no number means two things.
  std::uint32_t jump() const { return jump_; }
  std::uint32_t take_epoch_jump() { return std::exchange(epoch_jump_, 0); }

 private:
  // How the seats and the roster fit together.
  struct Return {
    std::vector<std::optional<Arrival>> seats;  // by member of the roster
    std::size_t expected = 0;                   // of them: those whose ranks are not vacant
    std::size_t count = 0;                      // those that are back, or have left
    bool all_workers = true;
    bool all_servers = true;  // or somebody was started in place of those who are not
  };
  Return who_is_back() const;
  bool is(const wire::RosterMember& member, const Seat& seat) const;
  bool is_replaced(const wire::RosterMember& server) const;
  // nullopt: it has not. Else whether for good. `found`: who would be it.
  std::optional<bool> has_left(const wire::RosterMember& worker,
                               std::optional<Arrival> found) const;
  wire::Join::Heard here() const;  // the roster that is here
  bool has_newest() const;
  bool is_known(const wire::Join::Heard& heard, std::uint32_t newest) const;
  Status check(const wire::Roster& roster, const wire::Join::Heard& said) const;

  const TimeoutConfig& timeout_;
  Seats& seats_;
  const Speaker& speaker_;
  const std::uint32_t jump_;
  std::uint32_t epoch_jump_ = 0;
  TimeNs begun_ns_ = kNever;
  TimeNs next_look_ns_ = kNever;
  Incarnation incarnation_{};
  std::optional<PeerId> asked_;
  std::optional<wire::Roster> roster_;
  std::uint32_t roster_term_ = 0;  // of who sent it
  std::set<std::uint32_t> ended_;  // ranks of workers
};

}  // namespace byteps
