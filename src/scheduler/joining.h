// Joining: who a Join comes from. A member that is back on a new connection, somebody new, or one that cannot be let
// in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/config.h"
#include "base/ids.h"
#include "base/status.h"
#include "base/time.h"
#include "net/wire.h"
#include "scheduler/outputs.h"
#include "scheduler/seats.h"

namespace byteps {

class Joining {
 public:
  // All outlive it.
  Joining(const JobConfig& job, const TimeoutConfig& timeout, Seats& seats)
      : job_(job), timeout_(timeout), seats_(seats) {}

  // What a Join must be in itself, whoever else is here.
  Status check(const wire::Join& join) const;

  // What the scheduler is doing.
  struct Situation {
    Epoch epoch;
    bool in_epoch = false;   // it is being confirmed, or runs
    bool recovers = false;   // in it a server that is lost gets a successor
    bool is_vacant = false;  // in it the rank of who comes, a worker: it was lost
  };
  struct Known {
    std::optional<Arrival> same;   // the same member, back again
    Status refusal;                // why it cannot be let in; Ok otherwise
    Status fatal;                  // why nobody can go on; Ok otherwise
    Status closed;                 // why this connection ends; its member may come again
    std::optional<Arrival> begun;  // this one of the running epoch has begun anew, and has left it
    bool is_new = false;           // nobody here: see check_new()
  };
  // Is this the same member on a new connection, or a new one? `epoch` is the one it works in: 0 for a process that
  // has just begun (or has heard no roster), so a member of the running epoch that says 0 in a later life has begun
  // anew. `incarnation`: of the job that it knows.
  Known recognise(const wire::Join& join, const Incarnation& incarnation, Epoch epoch,
                  const Situation& situation, TimeNs now) const;
  // Whether it may come in: its rank or address is free (else `refusal`), and what it says of the job's size is what
  // the others say (else `fatal` while the job gathers, for nobody can be right, and `refusal` later).
  void check_new(const wire::Join& join, bool is_gathering, Known& known) const;

  // A seat for it. Whoever waited under its rank and lost its connection is replaced.
  Arrival admit(wire::Join join, TimeNs now);
  // The member is at the end of this connection now; the one before is closed.
  void attach(Arrival arrival, PeerId peer, TimeNs now, const Speaker& speaker, KeeperOutputs& out);
  // It is back, perhaps as another process at its address: one that has no place yet is what it says now.
  static void renew(Seat& seat, const wire::Join& join);
  // The life that this member has now.
  static void note_life(Seat& seat, std::uint64_t life);
  // The epoch of these members is over: what they said may still be on the way.
  void remember(const std::vector<Arrival>& gone);
  // The same of one that is lost while the epoch goes on.
  void remember_lost(const Seat& seat);

 private:
  Known recognise_in_epoch(const wire::Join& join, Epoch epoch, bool is_ours,
                           const Situation& situation, std::optional<Arrival> waiting,
                           std::optional<Arrival> seated) const;
  bool is_late(const wire::Join& join, Epoch epoch, std::optional<Arrival> waiting,
               std::optional<Arrival> seated) const;
  static bool is_rival(Seat& seat, std::uint64_t life, TimeNs now);
  Known rival_of(Arrival place, const wire::Join& join) const;
  static Status claimed_twice(const Seat& seat, const wire::Join& join);
  bool means_next_epoch(const wire::Join& join) const;
  Status check_claims(const wire::Join& join) const;
  Status check_room(const wire::Join& join) const;
  Status check_sizes(const wire::Join& join) const;

  const JobConfig& job_;
  const TimeoutConfig& timeout_;
  Seats& seats_;
  // Of those that were in the last epoch, by host and rank.
  std::map<std::pair<std::string, std::uint32_t>, std::vector<std::uint64_t>> former_lives_;
};

}  // namespace byteps
