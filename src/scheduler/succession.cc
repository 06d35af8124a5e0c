#include "scheduler/succession.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/limits.h"
#include "base/phrases.h"
#include "base/planted.h"

namespace byteps {

bool Succession::begin_epoch(wire::Roster roster) {
  roster_ = std::move(roster);
  newest_ = wire::encode(roster_);
  released_ = newest_;
  return newest_.size() <= kPayloadBytesMax;
}

void Succession::resume_epoch(wire::Roster roster, std::uint32_t jump) {
  roster_ = std::move(roster);
  jump_ = jump;
  newest_ = wire::encode(roster_);
  released_ = {};
}

void Succession::catch_up(const Seat& seat, KeeperOutputs& out) const {
  const SharedBytes& known = seat.worker() ? released_ : newest_;
  speaker_.send(*seat.peer, wire::Kind::kRoster, WorkerRank(seat.rank), known, out);
}

void Succession::release(KeeperOutputs& out) {
  if (!is_pending()) return;
  released_ = newest_;
  for (const auto& [arrival, seat] : seats_.all()) {
    if (seat.in_roster && seat.peer && !seat.left) catch_up(seat, out);
  }
}

// ---- who is lost, and who takes its place

bool Succession::is_lost(const Seat& seat) const {
  return seat.in_roster && !seat.worker() && !seat.peer;
}

std::uint32_t Succession::shards_needed(std::uint32_t rank) const {
  std::uint32_t needed = 1;
  for (const wire::Slot& slot : roster_.slots) {
    if (slot.server == rank) needed = std::max(needed, slot.shard + 1);
  }
  return needed;
}

bool Succession::fits(const Seat& heir, const Seat& lost) const {
  return !heir.in_roster && !heir.worker() && heir.peer.has_value() &&
         heir.join.endpoints.size() >= shards_needed(lost.rank);
}

// It was started to be that server, because that one has died: so it says, or it is where that one was. (Who has waited
// for longer was not started for that.)
bool Succession::is_in_place_of(const Seat& heir, const Seat& lost) const {
  if (heir.since_ns < lost.heard_ns - timeout_.heartbeat_ns()) return false;
  return heir.join.wanted_rank == lost.rank || shares_endpoint(heir.join, lost.join);
}

std::optional<Arrival> Succession::heir_of(const Seat& lost, bool any) const {
  std::optional<Arrival> found;
  for (const auto& [arrival, seat] : seats_.all()) {
    if (!fits(seat, lost)) continue;
    if (is_in_place_of(seat, lost)) return arrival;
    if (any && !found) found = arrival;
  }
  return found;
}

// Who was started in place of one of them takes no other's.
void Succession::fill(TimeNs now, KeeperOutputs& out) {
  for (const bool any : {false, true}) {
    std::vector<Arrival> lost;
    for (const auto& [arrival, seat] : seats_.all()) {
      if (is_lost(seat) && (!any || now >= spare_due_ns(seat))) lost.push_back(arrival);
    }
    for (const Arrival each : lost) {
      const Seat& seat = seats_.at(each);
      const std::optional<Arrival> heir = heir_of(seat, any);
      const std::string why = "was lost (" + seat.lost_why.message() + ")";
      if (heir) hand_over(each, *heir, why, now, out);
    }
  }
}

bool Succession::replace(Arrival lost, const std::string& why, TimeNs now, KeeperOutputs& out) {
  const Seat& seat = seats_.at(lost);
  if (!seat.in_roster || seat.worker()) return false;
  const std::optional<Arrival> heir = heir_of(seat, true);
  if (heir) hand_over(lost, *heir, why, now, out);
  return heir.has_value();
}

TimeNs Succession::deadline() const {
  TimeNs next = kNever;
  for (const auto& [arrival, seat] : seats_.all()) {
    if (is_lost(seat) && heir_of(seat, true)) next = std::min(next, spare_due_ns(seat));
  }
  return next;
}

void Succession::hand_over(Arrival lost, Arrival heir, const std::string& why, TimeNs now,
                           KeeperOutputs& out) {
  const Seat before = seats_.at(lost);
  seats_.erase(lost, now);
  if (before.peer) {
    speaker_.close(*before.peer, {Code::kDisconnected, "another server has its place now"}, out);
  }
  Seat& seat = seats_.at(heir);
  seat.in_roster = true;
  seat.rank = before.rank;
  seat.applied = {};
  const std::uint32_t jump = std::exchange(jump_, 0);
  if (jump == 0 || !PLANTED(revision_reissued)) roster_.revision += 1 + jump;
  for (wire::RosterMember& member : roster_.members) {
    if (member.role != Role::kServer || member.rank != before.rank) continue;
    member = member_of(seat);
  }
  for (wire::Slot& slot : roster_.slots) {
    if (slot.server != before.rank) continue;
    slot.since = roster_.revision;
    if (PLANTED(slot_reweighed)) slot.weight = 2 * slot.weight;
  }
  newest_ = wire::encode(roster_);
  Speaker::news("lost", before, " " + why, out, {Code::kDisconnected, why});
  Speaker::notice(LogLevel::kWarning,
                  before.text() + " " + why + "; " + seat.text() + " takes its place", out);
  catch_up(seat, out);
}

}  // namespace byteps
