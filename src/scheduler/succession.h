// Succession: the roster of the running epoch, and who takes the place of a server that is lost, or leaves
// (docs/design/0013-recovery.md). Its slots, weights and rank go on; each change makes another revision.
//
// A revision goes to the successor first. All others hear of it when each server of the roster has confirmed that it
// serves, so that whoever knows a revision finds nobody that does not. Who was replaced is told nothing any more: one
// that heard of later losses could finish rounds with workers that have not heard of its own. Who leaves serves until
// then, and is told last that it may go.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "base/config.h"
#include "base/time.h"
#include "member/shared_bytes.h"
#include "net/wire.h"
#include "scheduler/adoption.h"
#include "scheduler/outputs.h"
#include "scheduler/seats.h"

namespace byteps {

class Succession {
 public:
  // All outlive it.
  Succession(const TimeoutConfig& timeout, Seats& seats, const Speaker& speaker)
      : timeout_(timeout), seats_(seats), speaker_(speaker) {}

  // The epoch begins with this roster; whether it fits a message.
  bool begin_epoch(wire::Roster roster);
  std::size_t roster_bytes() const { return newest_.size(); }

  // It goes on with this one, which a scheduler before this one has made; the next revision is larger by `jump` than it
  // would be, for that one may have made some that nobody here knows. Not everybody may know it yet.
  void resume_epoch(wire::Roster roster, std::uint32_t jump);

  // The servers of the epoch are not needed any more.
  void end_epoch() { roster_.recovers = false; }
  // Whether one of them that is lost may get a successor now.
  bool recovers() const { return roster_.recovers; }
  std::uint32_t revision() const { return roster_.revision; }  // the newest
  // There is a revision that not everybody may know.
  bool is_pending() const { return !newest_.is_same(released_); }

  // For a member that has, or has again, a connection: what it may have missed.
  void catch_up(const Seat& seat, KeeperOutputs& out) const;
  // All servers of the roster have confirmed the newest revision: everybody may know it.
  void release(KeeperOutputs& out);

  // Gives each server that is lost a successor, if there is one: the process that was started in its place at once,
  // any spare server when it has been gone for a sixth of the failure timeout. Where there is none by then, a survivor
  // is asked to be that. Who leaves has not to be gone.
  void fill(TimeNs now, KeeperOutputs& out);
  // The same for one that has said nothing for too long: without a successor its connection ends, and it is lost like
  // others. False: it has been lost for too long.
  bool replace(Arrival lost, const std::string& why, TimeNs now, KeeperOutputs& out);
  TimeNs deadline() const;

  // This worker of the roster is lost for good, and its rank vacant from the next revision on. Servers hear it at once,
  // and then workers, but not before all servers have confirmed what came before it.
  void vacate(std::uint32_t rank, KeeperOutputs& out);

  // This server of the roster was told to stop: it is to have a successor. It is answered how that is.
  void leave(Arrival leaver, TimeNs now, KeeperOutputs& out);
  // At the other end is one that has a successor, and goes on until all know it.
  bool awaits_farewell(PeerId peer) const { return farewells_.contains(peer); }
  void say_farewell(KeeperOutputs& out);
  // The epoch is over: those that leave may go.
  void dismiss(TimeNs now, KeeperOutputs& out);

 private:
  void release_to_workers(KeeperOutputs& out);
  static bool is_lost(const Seat& seat) { return seat.in_roster && !seat.worker() && !seat.peer; }
  // It is to have a successor.
  static bool is_open(const Seat& seat) {
    return is_lost(seat) || (seat.in_roster && !seat.worker() && seat.leaves);
  }
  // From when on anybody may be that. (As many attempts to come back take as long.)
  TimeNs due_ns(const Seat& seat) const {
    return seat.leaves ? 0 : seat.heard_ns + timeout_.heartbeat_ns();
  }
  std::uint32_t shards_needed(std::uint32_t rank) const;
  bool fits(const Seat& heir, const Seat& lost, TimeNs now) const;
  bool is_in_place_of(const Seat& heir, const Seat& lost) const;
  std::optional<Arrival> heir_of(const Seat& lost, bool any, TimeNs now) const;
  void revise();
  void note_leavers();
  void hand_over(Arrival lost, Arrival heir, const std::string& why, TimeNs now,
                 KeeperOutputs& out);

  const TimeoutConfig& timeout_;
  Seats& seats_;
  const Speaker& speaker_;
  Adoption adoption_{timeout_, seats_, speaker_};
  wire::Roster roster_;
  std::uint32_t jump_ = 0;
  SharedBytes newest_;    // encoded
  SharedBytes released_;  // the newest that everybody may know
  // To those that leave and were replaced, who has their places: for when everybody knows.
  std::map<PeerId, SharedBytes> farewells_;
};

}  // namespace byteps
