#include "scheduler/recall.h"

#include <algorithm>
#include <tuple>

#include "base/limits.h"
#include "base/planted.h"
#include "member/roster_check.h"

namespace byteps {
namespace {

using Heard = wire::Join::Heard;

bool is_newer(const Heard& one, const Heard& other) {
  return std::tie(one.term, one.epoch, one.revision) >
         std::tie(other.term, other.epoch, other.revision);
}

bool contains(const std::vector<std::uint32_t>& ranks, std::uint32_t rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

}  // namespace

void Recall::begin(const Incarnation& incarnation, TimeNs now) {
  begun_ns_ = now;
  next_look_ns_ = now + timeout_.failure_ns / 3;
  incarnation_ = incarnation;
  asked_.reset();
  roster_.reset();
  roster_term_ = 0;
}

// ---- the roster

void Recall::ask(KeeperOutputs& out) {
  const Connection* const asked = asked_ ? seats_.find(*asked_) : nullptr;
  if (asked != nullptr && asked->seat) return;
  asked_.reset();
  Heard newest = here();
  for (const auto& [arrival, seat] : seats_.all()) {
    if (!seat.peer || !is_newer(seat.join.heard, newest)) continue;
    if (PLANTED(older_roster_recalled) && (roster_ || asked_)) continue;
    newest = seat.join.heard;
    asked_ = seat.peer;
  }
  if (asked_) {
    speaker_.send(*asked_, wire::Kind::kRecall, WorkerRank(), {}, out);
  }
}

Status Recall::on_roster(Arrival from, std::span<const std::byte> payload) {
  if (!asked_ || asked_ != seats_.at(from).peer)
    return {Code::kInvalidArgument, "a roster that nobody asked for"};
  Result<wire::Roster> decoded = wire::decode_roster(payload);
  if (!decoded.is_ok()) return decoded.status();
  const Heard& said = seats_.at(from).join.heard;
  if (const Status fine = check(decoded.value(), said); !fine.is_ok()) return fine;
  roster_ = std::move(decoded).value();
  roster_term_ = said.term;
  asked_.reset();
  return Status::ok();
}

// It must be the one that the member's Join told of.
Status Recall::check(const wire::Roster& roster, const Heard& said) const {
  if (const Status fine = check_roster(roster); !fine.is_ok()) return fine;
  const bool is_said = roster.epoch == said.epoch && roster.revision == said.revision;
  if (!is_said || !roster.recovers || roster.incarnation != incarnation_ ||
      count_of(roster, Role::kWorker) == 0 || wire::encode(roster).size() > kPayloadBytesMax) {
    return {Code::kInvalidArgument, "another roster than its Join told of"};
  }
  return Status::ok();
}

wire::Join::Heard Recall::here() const {
  Heard heard;
  if (!roster_) return heard;
  heard.term = roster_term_;
  heard.epoch = roster_->epoch;
  heard.revision = roster_->revision;
  return heard;
}

bool Recall::has_newest() const {
  if (!roster_) return false;
  if (PLANTED(older_roster_recalled)) return true;
  return std::none_of(seats_.all().begin(), seats_.all().end(), [&](const auto& entry) {
    return entry.second.peer && is_newer(entry.second.join.heard, here());
  });
}

// ---- while the job goes on

// One that it went on with, one that this scheduler has made since, or an older one of the scheduler that made the
// former. (No number means two revisions.)
bool Recall::is_known(const Heard& heard, std::uint32_t newest) const {
  if (!roster_ || heard.term == 0 || heard.epoch != roster_->epoch) return true;
  if (heard.revision > roster_->revision) {
    return heard.revision > roster_->revision + jump_ && heard.revision <= newest;
  }
  return heard.revision == roster_->revision || heard.term == roster_term_;
}

bool Recall::ask_for_unknown(Seat& seat, std::uint32_t newest, KeeperOutputs& out) const {
  if (seat.is_asked()) return true;
  if (is_known(seat.join.heard, newest)) return false;
  seat.asked = seat.peer;
  speaker_.send(*seat.peer, wire::Kind::kRecall, WorkerRank(), {}, out);
  return true;
}

Result<std::vector<WorkerRank>> Recall::on_unknown(Seat& from,
                                                   std::span<const std::byte> payload) const {
  const Result<wire::Roster> decoded = wire::decode_roster(payload);
  if (!decoded.is_ok()) return decoded.status();
  if (const Status fine = check(decoded.value(), from.join.heard); !fine.is_ok()) return fine;
  from.asked.reset();
  from.join.heard = {};  // it is known now
  return vacant_ranks(decoded.value());
}

// ---- who is back

std::optional<bool> Recall::has_left(const wire::RosterMember& worker,
                                     std::optional<Arrival> found) const {
  const std::uint32_t rank = worker.rank;
  for (const auto& [arrival, seat] : seats_.all()) {
    const Heard& heard = seat.join.heard;
    if (heard.epoch != roster_->epoch) continue;
    if (contains(heard.left_for_good, rank)) return true;
    if (contains(heard.left_for_a_while, rank)) return false;
  }
  if (found && seats_.at(*found).peer) return std::nullopt;
  // It was begun anew: its Leave was lost, or it never said one.
  const bool is_begun_anew =
      std::any_of(seats_.all().begin(), seats_.all().end(), [&](auto& entry) {
        const Seat& seat = entry.second;
        return found != entry.first && seat.worker() && seat.peer && seat.rank == rank &&
               seat.join.host == worker.host;
      });
  return is_begun_anew ? std::optional(false) : std::nullopt;
}

bool Recall::is(const wire::RosterMember& member, const Seat& seat) const {
  const wire::Join& join = seat.join;
  if (join.role != member.role) return false;
  if (member.life != 0 && join.life != 0) return join.life == member.life;
  const bool is_in_place =
      seat.worker() ? seat.rank == member.rank : join.endpoints == member.endpoints;
  return is_in_place && join.host == member.host && join.heard.epoch == roster_->epoch;
}

// Somebody was started to be this server, because that one has died.
bool Recall::is_replaced(const wire::RosterMember& server) const {
  wire::Join there;
  there.endpoints = server.endpoints;
  return std::any_of(seats_.all().begin(), seats_.all().end(), [&](const auto& entry) {
    const Seat& seat = entry.second;
    if (seat.worker() || !seat.peer || seat.join.heard.epoch != Epoch(0)) return false;
    if (seat.join.has_waited) return false;
    return seat.join.wanted_rank == server.rank || shares_endpoint(seat.join, there);
  });
}

Recall::Return Recall::who_is_back() const {
  Return back;
  for (const wire::RosterMember& member : roster_->members) {
    std::optional<Arrival>& found = back.seats.emplace_back();
    if (member.vacant_since > 0) continue;
    const bool has_ended = member.role == Role::kWorker && ended_.contains(member.rank);
    if (!has_ended) ++back.expected;
    for (const auto& [arrival, seat] : seats_.all()) {
      if (!is(member, seat)) continue;
      if (!found || seat.peer) found = arrival;
    }
    const bool is_here = found && seats_.at(*found).peer;
    const bool is_worker = member.role == Role::kWorker;
    const bool left = is_worker && has_left(member, found);
    if ((is_here || left) && !has_ended) ++back.count;
    if (is_worker && !left && !is_here && !has_ended) back.all_workers = false;
    if (!is_worker && !is_here && !is_replaced(member)) back.all_servers = false;
  }
  return back;
}

Recall::Verdict Recall::verdict(TimeNs now) {
  if (now >= next_look_ns_) next_look_ns_ = begun_ns_ + timeout_.failure_ns;
  const bool is_late = now >= begun_ns_ + timeout_.failure_ns;
  if (!has_newest()) return is_late ? Verdict::kGiveUp : Verdict::kWait;
  const Return back = who_is_back();
  // A server that was cut off for a moment is back by then; and a spare one comes in no earlier either.
  const bool is_time = now >= begun_ns_ + timeout_.failure_ns / 3;
  if (back.all_workers) {
    return is_time || back.all_servers ? Verdict::kGoOn : Verdict::kWait;
  }
  if (!is_late) return Verdict::kWait;
  return 2 * back.count >= back.expected ? Verdict::kGoOn : Verdict::kGiveUp;
}

std::string Recall::text() const {
  if (!roster_) return "nobody has told its roster";
  const Return back = who_is_back();
  return std::to_string(back.count) + " of " + std::to_string(back.expected) + " members are back";
}

std::uint64_t Recall::barriers() const {
  std::uint64_t done = 0;
  for (const auto& [arrival, seat] : seats_.all()) {
    if (seat.join.heard.epoch == roster_->epoch) done = std::max(done, seat.join.heard.barriers);
  }
  return PLANTED(barriers_forgotten) ? 0 : done;
}

bool Recall::is_vacant(std::uint32_t rank) const {
  const std::vector<WorkerRank> vacant = vacant_ranks(*roster_);
  return std::find(vacant.begin(), vacant.end(), WorkerRank(rank)) != vacant.end();
}

std::vector<Arrival> Recall::take_seats() {
  const Return back = who_is_back();
  epoch_jump_ = jump_;
  // Who is here leaves, and all who could say that others have left before have gone: it was the end of the job.
  const bool all_leave = std::all_of(back.seats.begin(), back.seats.end(), [&](const auto& found) {
    if (!found || !seats_.at(*found).peer) return true;
    return seats_.at(*found).leaving.final.has_value();
  });
  std::set<Arrival> taken;
  for (std::size_t i = 0; i < roster_->members.size(); ++i) {
    const wire::RosterMember& member = roster_->members[i];
    if (member.vacant_since > 0) continue;
    Arrival arrival = 0;
    if (back.seats[i]) arrival = *back.seats[i];
    Seat& seat = back.seats[i] ? seats_.at(arrival) : seats_.add(arrival);
    taken.insert(arrival);
    seat.in_roster = true;
    seat.rank = member.rank;
    if (seat.applied != roster_->epoch) seat.applied = {};
    if (!seat.peer) {
      seat.heard_ns = begun_ns_;
      seat.lost_why = {Code::kDisconnected, "it is not back since the scheduler was started anew"};
    }
    if (!back.seats[i]) {
      seat.join = join_of(member);
      seat.since_ns = begun_ns_;
    }
    if (member.role != Role::kWorker) continue;
    std::optional<bool> left = has_left(member, back.seats[i]);
    if (!left && !seat.peer && all_leave) left = true;
    // Who is here has not been answered: those who have to know it may not.
    if (left && seat.peer) seat.leaving.final = left;
    seat.left = left && !seat.peer;
    seat.left_for_good = seat.left && *left;
  }
  std::vector<Arrival> strangers;
  for (const auto& [arrival, seat] : seats_.all()) {
    const Epoch knows = seat.join.heard.epoch;
    const bool is_behind = seat.worker() ? knows != Epoch(0) : knows == roster_->epoch;
    if (!taken.contains(arrival) && is_behind) strangers.push_back(arrival);
  }
  return strangers;
}

}  // namespace byteps
