#include "scheduler/adoption.h"

#include <algorithm>
#include <string>
#include <tuple>

namespace byteps {

bool Adoption::is_answerable(const Call& call) const {
  const auto seat = call.asked ? seats_.all().find(*call.asked) : seats_.all().end();
  return seat != seats_.all().end() && seat->second.peer;
}

const Seat* Adoption::asked(std::uint32_t rank) const {
  const auto call = calls_.find(rank);
  if (call == calls_.end() || !is_answerable(call->second)) return nullptr;
  return &seats_.at(*call->second.asked);
}

TimeNs Adoption::due_ns(std::uint32_t rank) const {
  const auto call = calls_.find(rank);
  return call == calls_.end() ? 0 : call->second.due_ns;
}

// All slots of its process, with those that it was asked to take.
std::size_t Adoption::slots_of(const Seat& seat, const wire::Roster& roster) const {
  const auto count = [&](std::uint32_t rank) {
    return static_cast<std::size_t>(
        std::count_if(roster.slots.begin(), roster.slots.end(),
                      [&](const wire::Slot& slot) { return slot.server == rank; }));
  };
  std::size_t slots = 0;
  for (const auto& [arrival, other] : seats_.all()) {
    if (other.worker() || other.join.host != seat.join.host) continue;
    if (other.in_roster) slots += count(other.rank);
    for (const auto& [rank, call] : calls_) {
      if (call.asked == arrival) slots += count(rank);
    }
  }
  return slots;
}

// Of those that were not tried yet the one that serves least; only if there is nobody else another unit of the same
// process, for that is mostly about to be lost as well, or one that leaves, for what is lost.
std::optional<Arrival> Adoption::best(const Seat& lost, const std::set<Arrival>& tried,
                                      const wire::Roster& roster, TimeNs now) const {
  std::optional<std::tuple<bool, bool, std::size_t, Arrival>> found;
  for (const auto& [arrival, seat] : seats_.all()) {
    if (seat.worker() || tried.contains(arrival) || !is_well(seat, timeout_, now)) continue;
    if (seat.leaves && lost.peer) continue;
    const std::tuple each(seat.leaves, seat.join.host == lost.join.host, slots_of(seat, roster),
                          arrival);
    if (!found || each < *found) found = each;
  }
  return found ? std::optional(std::get<3>(*found)) : std::nullopt;
}

void Adoption::call(const Seat& lost, std::uint32_t shards, const wire::Roster& roster, TimeNs now,
                    KeeperOutputs& out) {
  Call& call = calls_[lost.rank];
  if (now < call.due_ns && (!call.asked || is_answerable(call))) return;
  call.asked.reset();
  std::optional<Arrival> chosen = best(lost, call.tried, roster, now);
  if (!chosen && !call.tried.empty()) {
    call.tried.clear();
    chosen = best(lost, call.tried, roster, now);
  }
  call.due_ns = now + (chosen ? timeout_.failure_ns / 3 : timeout_.heartbeat_ns());
  if (!chosen) return;
  call.asked = chosen;
  call.tried.insert(*chosen);
  const Seat& seat = seats_.at(*chosen);
  Speaker::notice(LogLevel::kInfo, seat.text() + " is asked to take the place of " + lost.text(),
                  out);
  speaker_.send(*seat.peer, wire::Kind::kAdopt, WorkerRank(),
                wire::encode(wire::Adopt{.rank = lost.rank, .shards = shards}), out);
}

}  // namespace byteps
