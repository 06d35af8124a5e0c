#include "scheduler/losses.h"

#include <algorithm>

#include "scheduler/sayings.h"

namespace byteps {

Vigil::Patience Losses::patience() const {
  const bool recovers = all_.succession.recovers();
  Vigil::Patience patience{.recovers = recovers, .worker_ns = timeout_.failure_ns};
  if (!recovers) return patience;
  if (continues_) patience.worker_ns = timeout_.failure_ns / 3;
  if (is_cut_off()) patience.worker_ns = timeout_.recovery_ns;
  return patience;
}

// ---- whose processes have ended

void Losses::note_ended(WorkerRank rank, const std::string& how, TimeNs now) {
  ended_.try_emplace(rank.value, Ended{how, now});
}

std::vector<Arrival> Losses::ended_seats() const {
  std::vector<Arrival> found;
  for (const auto& [arrival, seat] : all_.seats.all()) {
    if (seat.plays() && !seat.left && ended_.contains(seat.rank)) found.push_back(arrival);
  }
  return found;
}

std::string Losses::text_of(const Seat& ended) const {
  return ended.text() + " " + ended_.at(ended.rank).how;
}

Status Losses::missed_in_gathering(TimeNs now) const {
  for (const auto& [rank, end] : ended_) {
    if (now < end.at_ns + timeout_.failure_ns) continue;
    return {Code::kDisconnected,
            "worker " + std::to_string(rank) + " " + end.how +
                " before the job was complete, which cannot begin without it",
            {.kind = CauseKind::kGone, .who = {.role = Role::kWorker, .rank = rank}}};
  }
  return Status::ok();
}

// ---- who is lost

// Silence counts early: members say something at about the same times, but not all are late at once. An end of a
// connection that was said (the process has ended, perhaps) is no sign of a cable that is out; where the job goes on
// without workers, whoever has started them has seen those ends.
bool Losses::may_be_out_of_reach(const Seat& seat, TimeNs now) const {
  if (seat.peer) return now >= seat.heard_ns + timeout_.failure_ns / 2;
  return (continues_ && seat.worker()) || seat.lost_why.is(Code::kTimeout) ||
         seat.lost_why.is_because_of(CauseKind::kSilent);
}

void Losses::look(TimeNs now) {
  std::size_t count = 0;
  std::size_t away = 0;
  for (const auto& [arrival, seat] : all_.seats.all()) {
    const bool is_known_to_be_gone = seat.plays() && ended_.contains(seat.rank);
    if (!seat.in_roster || seat.left || is_known_to_be_gone) continue;
    ++count;
    if (may_be_out_of_reach(seat, now)) ++away;
  }
  looked_ns_ = now;
  if (2 * away > count) cut_off_until_ns_ = now + timeout_.failure_ns;
}

// Without this one there is nobody whose job it could be: all others are lost, and none has left it well.
bool Losses::is_last(const Seat& lost) const {
  return std::none_of(all_.seats.all().begin(), all_.seats.all().end(), [&](const auto& entry) {
    const Seat& seat = entry.second;
    return seat.plays() && &seat != &lost && (seat.left || !ended_.contains(seat.rank));
  });
}

bool Losses::bear(Arrival lost, const std::string& why, TimeNs now, KeeperOutputs& out) {
  Seat& seat = all_.seats.at(lost);
  if (!seat.worker() || !all_.succession.recovers()) return false;
  if (is_cut_off() && !ended_.contains(seat.rank)) {
    if (!seat.peer) return false;
    all_.speaker.drop(seat, {Code::kDisconnected, why, {.kind = CauseKind::kSilent}}, out);
    seat.heard_ns = now;
    return true;
  }
  if (!continues_ || is_last(seat)) return false;
  vacate(lost, why, now, out);
  return true;
}

void Losses::vacate(Arrival lost, const std::string& why, TimeNs now, KeeperOutputs& out) {
  Seat& seat = all_.seats.at(lost);
  const std::uint32_t rank = seat.rank;
  Speaker::news("lost", seat, " is lost: " + why, out, {Code::kDisconnected, why});
  if (seat.peer) all_.speaker.drop(seat, went_on_without(seat.text()), out);
  all_.joining.remember_lost(seat);
  all_.seats.erase(lost, now);
  all_.succession.vacate(rank, out);
  all_.barriers.lose(rank, out);
  all_.stalls.on_left(now);
  const auto left =
      std::count_if(all_.seats.all().begin(), all_.seats.all().end(),
                    [](const auto& entry) { return entry.second.plays() && !entry.second.left; });
  Speaker::notice(LogLevel::kWarning,
                  why + "; the job goes on without it: its rank is vacant, and averages are of " +
                      (left == 1 ? "the one worker that is"
                                 : "the " + std::to_string(left) + " workers that are") +
                      " left",
                  out);
}

}  // namespace byteps
