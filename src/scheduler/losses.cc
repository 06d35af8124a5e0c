#include "scheduler/losses.h"

#include <algorithm>

namespace byteps {

std::vector<Arrival> Losses::ended_seats() const {
  std::vector<Arrival> found;
  for (const auto& [arrival, seat] : seats_.all()) {
    if (seat.plays() && !seat.left && ended_.contains(seat.rank)) found.push_back(arrival);
  }
  return found;
}

bool Losses::is_last(const Seat& lost) const {
  return std::none_of(seats_.all().begin(), seats_.all().end(), [&](const auto& entry) {
    const Seat& seat = entry.second;
    return seat.plays() && &seat != &lost && (seat.left || !ended_.contains(seat.rank));
  });
}

void Losses::look(TimeNs now) {
  std::size_t count = 0;
  std::size_t away = 0;
  for (const auto& [arrival, seat] : seats_.all()) {
    const bool is_known_to_be_gone = seat.plays() && ended_.contains(seat.rank);
    if (!seat.in_roster || seat.left || is_known_to_be_gone) continue;
    ++count;
    if (!seat.peer || now >= seat.heard_ns + timeout_.silence_ns()) ++away;
  }
  is_cut_off_ = 2 * away > count;
}

TimeNs Losses::patience_ns() const {
  if (!continues_) return timeout_.failure_ns;
  return is_cut_off_ ? timeout_.recovery_ns : timeout_.failure_ns / 3;
}

}  // namespace byteps
