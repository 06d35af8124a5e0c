#include "scheduler/succession.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/limits.h"
#include "base/phrases.h"
#include "base/planted.h"
#include "member/roster_check.h"

namespace byteps {

bool Succession::begin_epoch(wire::Roster roster) {
  roster_ = std::move(roster);
  newest_ = wire::encode(roster_);
  released_ = newest_;
  adoption_.begin_epoch();
  return newest_.size() <= kPayloadBytesMax;
}

void Succession::resume_epoch(wire::Roster roster, std::uint32_t jump) {
  roster_ = std::move(roster);
  jump_ = jump;
  for (const WorkerRank rank : vacant_ranks(roster_)) seats_.note_vacant(rank.value);
  newest_ = wire::encode(roster_);
  released_ = {};
}

void Succession::catch_up(const Seat& seat, KeeperOutputs& out) const {
  if (seat.is_asked()) return;
  const SharedBytes& known = seat.worker() ? released_ : newest_;
  speaker_.send(*seat.peer, wire::Kind::kRoster, WorkerRank(seat.rank), known, out);
}

void Succession::release(KeeperOutputs& out) {
  if (!is_pending()) return;
  released_ = newest_;
  for (const auto& [arrival, seat] : seats_.all()) {
    if (seat.in_roster && seat.peer && !seat.left) catch_up(seat, out);
  }
  say_farewell(out);
}

// Servers have it.
void Succession::release_to_workers(KeeperOutputs& out) {
  released_ = newest_;
  for (const auto& [arrival, seat] : seats_.all()) {
    if (seat.in_roster && seat.worker() && seat.peer && !seat.left) catch_up(seat, out);
  }
}

// ---- who is lost, and who takes its place

std::uint32_t Succession::shards_needed(std::uint32_t rank) const {
  std::uint32_t needed = 1;
  for (const wire::Slot& slot : roster_.slots) {
    if (slot.server == rank) needed = std::max(needed, slot.shard + 1);
  }
  return needed;
}

// One that has said nothing for a while may be about to be lost itself.
bool Succession::fits(const Seat& heir, const Seat& lost, TimeNs now) const {
  return !heir.in_roster && !heir.worker() && Adoption::is_well(heir, timeout_, now) &&
         heir.join.endpoints.size() >= shards_needed(lost.rank);
}

// It was started to be that server, because that one has died: so it says, or it is where that one was. (Who has waited
// for longer was not started for that.)
bool Succession::is_in_place_of(const Seat& heir, const Seat& lost) const {
  if (heir.since_ns < lost.heard_ns - timeout_.heartbeat_ns()) return false;
  return heir.join.wanted_rank == lost.rank || shares_endpoint(heir.join, lost.join);
}

std::optional<Arrival> Succession::heir_of(const Seat& lost, bool any, TimeNs now) const {
  std::optional<Arrival> found;
  for (const auto& [arrival, seat] : seats_.all()) {
    if (!fits(seat, lost, now)) continue;
    if (is_in_place_of(seat, lost)) return arrival;
    if (any && !found) found = arrival;
  }
  return found;
}

// Who was started in place of one of them takes no other's.
void Succession::fill(TimeNs now, KeeperOutputs& out) {
  for (const bool any : {false, true}) {
    std::vector<Arrival> open;
    for (const auto& [arrival, seat] : seats_.all()) {
      if (is_open(seat) && (!any || now >= due_ns(seat))) open.push_back(arrival);
      if (seat.in_roster && !seat.worker() && !is_open(seat)) adoption_.settle(seat.rank);
    }
    for (const Arrival each : open) {
      const Seat& seat = seats_.at(each);
      if (const std::optional<Arrival> heir = heir_of(seat, any, now)) {
        const std::string lost = "was lost (" + seat.lost_why.message() + ")";
        hand_over(each, *heir, is_lost(seat) ? lost : "leaves", now, out);
      } else if (any) {
        adoption_.call(seat, shards_needed(seat.rank), roster_, now, out);
      }
    }
  }
}

bool Succession::replace(Arrival lost, const std::string& why, TimeNs now, KeeperOutputs& out) {
  Seat& seat = seats_.at(lost);
  if (!seat.in_roster || seat.worker()) return false;
  const std::optional<Arrival> heir = heir_of(seat, true, now);
  if (heir) {
    hand_over(lost, *heir, "is lost: " + why, now, out);
    return true;
  }
  if (!seat.peer) return false;
  const PeerId peer = *seat.peer;
  seats_.connection(peer).seat.reset();
  seat.peer.reset();
  seat.heard_ns = now;
  seat.lost_why = {Code::kDisconnected, why, {.kind = CauseKind::kSilent}};
  speaker_.close(peer, {Code::kTimeout, why}, out);
  Speaker::news("lost", seat, " is lost: " + why, out, seat.lost_why);
  Speaker::notice(LogLevel::kWarning,
                  why + ": the job waits for it, or for another server that takes its place", out);
  return true;
}

TimeNs Succession::deadline() const {
  TimeNs next = kNever;
  for (const auto& [arrival, seat] : seats_.all()) {
    if (!is_open(seat)) continue;
    next = std::min(next, std::max(due_ns(seat), adoption_.due_ns(seat.rank)));
  }
  return next;
}

void Succession::hand_over(Arrival lost, Arrival heir, const std::string& why, TimeNs now,
                           KeeperOutputs& out) {
  const Seat before = seats_.at(lost);
  seats_.note_replaced(before.join.life);
  seats_.erase(lost, now);
  Seat& seat = seats_.at(heir);
  if (before.peer && before.leaves) {
    farewells_[*before.peer] =
        encode_status({Code::kDisconnected,
                       member_text(seat.join, before.rank) + " has its place",
                       {.kind = CauseKind::kReplaced, .who = before.participant()}});
  } else if (before.peer) {
    speaker_.close(*before.peer, {Code::kDisconnected, "another server has its place now"}, out);
  }
  adoption_.settle(before.rank);
  seat.in_roster = true;
  seat.rank = before.rank;
  seat.applied = {};
  revise();
  for (wire::RosterMember& member : roster_.members) {
    if (member.role != Role::kServer || member.rank != before.rank) continue;
    member = member_of(seat);
  }
  for (wire::Slot& slot : roster_.slots) {
    if (slot.server != before.rank) continue;
    if (!PLANTED(two_hosts_for_a_slot)) slot.since = roster_.revision;
    if (PLANTED(slot_reweighed)) slot.weight = 2 * slot.weight;
  }
  newest_ = wire::encode(roster_);
  Speaker::news(is_lost(before) || !before.leaves ? "lost" : "left", before, " " + why, out,
                {Code::kDisconnected, why});
  const std::string text = before.text() + " " + why + "; " + seat.text() + " takes its place";
  Speaker::notice(LogLevel::kWarning, text, out);
  out.emplace_back(
      KeeperOutput::News{"replaced", before.participant(), {Code::kDisconnected, text}});
  catch_up(seat, out);
}

// The next revision begins.
void Succession::revise() {
  const std::uint32_t jump = std::exchange(jump_, 0);
  if (jump == 0 || !PLANTED(revision_reissued)) roster_.revision += 1 + jump;
}

// ---- workers

void Succession::vacate(std::uint32_t rank, KeeperOutputs& out) {
  seats_.note_vacant(rank);
  const bool is_pending_already =
      is_pending() || std::any_of(seats_.all().begin(), seats_.all().end(), [&](const auto& entry) {
        const Seat& seat = entry.second;
        return seat.in_roster && !seat.worker() && seat.applied != roster_.epoch;
      });
  revise();
  for (wire::RosterMember& member : roster_.members) {
    if (member.role == Role::kWorker && member.rank == rank) member.vacant_since = roster_.revision;
  }
  note_leavers();
  newest_ = wire::encode(roster_);
  for (const auto& [arrival, seat] : seats_.all()) {
    if (seat.in_roster && !seat.worker() && seat.peer) catch_up(seat, out);
  }
  if (!is_pending_already) release_to_workers(out);
}

// Who leaves serves those that it serves already, and nobody else.
void Succession::note_leavers() {
  for (const auto& [arrival, seat] : seats_.all()) {
    if (!seat.plays() || !(seat.left || seat.leaving.final)) continue;
    wire::RosterMember& member = roster_.members[seat.rank];
    if (member.serves_none_since == 0) member.serves_none_since = roster_.revision;
  }
}

// ---- who leaves

void Succession::leave(Arrival leaver, TimeNs now, KeeperOutputs& out) {
  Seat& seat = seats_.at(leaver);
  seat.heard_ns = seat.said_ns = now;
  if (!std::exchange(seat.leaves, true)) {
    Speaker::notice(LogLevel::kWarning, seat.text() + " was told to stop, and leaves", out);
  }
  const PeerId peer = *seat.peer;
  if (PLANTED(drained_too_early)) {
    const wire::Leave go;
    return speaker_.send(peer, wire::Kind::kLeave, WorkerRank(), wire::encode(go), out);
  }
  fill(now, out);
  if (!seats_.all().contains(leaver)) return;  // it hears when all know
  const Seat* const asked = adoption_.asked(seat.rank);
  const std::string answer =
      asked != nullptr
          ? asked->text() + " is asked to take the place of " + seat.text() +
                ", which goes on until then"
          : seat.text() +
                " goes on, for nobody can take its place: there is no spare server with " +
                std::to_string(shards_needed(seat.rank)) +
                " shards, and no other one to serve its slots as well; start one, or tell it to "
                "stop once more";
  Speaker::notice(LogLevel::kInfo, answer, out);
  speaker_.send(peer, wire::Kind::kWaiting, WorkerRank(), encode_status({Code::kAgain, answer}),
                out);
}

void Succession::dismiss(TimeNs now, KeeperOutputs& out) {
  say_farewell(out);
  std::vector<Arrival> leavers;
  for (const auto& [arrival, seat] : seats_.all()) {
    if (seat.leaves) leavers.push_back(arrival);
  }
  for (const Arrival each : leavers) {
    const std::optional<PeerId> peer = seats_.at(each).peer;
    seats_.erase(each, now);
    if (!peer) continue;
    speaker_.send(*peer, wire::Kind::kLeave, WorkerRank(), wire::encode(wire::Leave{true}), out);
  }
}

void Succession::say_farewell(KeeperOutputs& out) {
  for (const auto& [peer, words] : std::exchange(farewells_, {})) {
    const Connection* const connection = seats_.find(peer);
    if (connection == nullptr || connection->closed) continue;  // it is told when it is back
    speaker_.send(peer, wire::Kind::kFail, WorkerRank(), words, out);
  }
}

}  // namespace byteps
