#include "scheduler/departures.h"

#include <algorithm>
#include <utility>

#include "base/planted.h"

namespace byteps {
namespace {

SharedBytes departed_message(std::vector<std::uint32_t> ranks, bool final,
                             std::uint64_t barriers = 0) {
  std::sort(ranks.begin(), ranks.end());
  return wire::encode(wire::Leave{final, Members(ranks), barriers});
}

}  // namespace

void Departures::begin_epoch() {
  count_ = 0;
  for_good_.clear();
  for_a_while_.clear();
}

void Departures::add(const Seat& seat, bool is_running) {
  ++count_;
  if (is_running) (seat.left_for_good ? for_good_ : for_a_while_).push_back(seat.rank);
}

void Departures::tell(bool is_running, KeeperOutputs& out) {
  for (std::vector<std::uint32_t>* const ranks : {&for_good_, &for_a_while_}) {
    if (ranks->empty()) continue;
    const SharedBytes message = departed_message(std::exchange(*ranks, {}), ranks == &for_good_);
    if (!is_running) continue;
    for (const auto& [arrival, other] : seats_.all()) {
      if (!other.plays() || other.left || !other.peer) continue;
      speaker_.send(*other.peer, wire::Kind::kLeave, WorkerRank(), message, out);
    }
  }
}

void Departures::tell_all_to(PeerId peer, KeeperOutputs& out) const {
  if (count_ == 0) return;
  for (const bool final : {true, false}) {
    std::vector<std::uint32_t> ranks;
    for (const auto& [arrival, other] : seats_.all()) {
      if (other.in_roster && other.left && other.left_for_good == final)
        ranks.push_back(other.rank);
    }
    if (ranks.empty()) continue;
    speaker_.send(peer, wire::Kind::kLeave, WorkerRank(), departed_message(std::move(ranks), final),
                  out);
  }
}

// ---- where the job recovers

// Who is away hears of it when it is back; but somebody has to know.
std::optional<std::vector<Arrival>> Departures::witnesses(TimeNs gone_ns) const {
  std::vector<Arrival> servers;
  std::vector<Arrival> workers;
  bool has_servers = false;
  bool any_server = false;
  bool any_stays = false;
  for (const auto& [arrival, seat] : seats_.all()) {
    if (!seat.in_roster || seat.left) continue;
    has_servers |= !seat.worker() && (seat.peer || seat.heard_ns > gone_ns);
    any_stays |= seat.worker() && !seat.leaving.final;
    any_server |= !seat.worker();
    if (seat.peer) (seat.worker() ? workers : servers).push_back(arrival);
  }
  if (servers.empty() && (has_servers || (any_server && any_stays))) return std::nullopt;
  return any_server ? servers : workers;
}

void Departures::announce(std::uint64_t barriers, TimeNs gone_ns, KeeperOutputs& out) {
  const std::optional<std::vector<Arrival>> who = witnesses(gone_ns);
  if (!who) return;
  for (const bool final : {true, false}) {
    std::vector<Seat*> leaving;
    for (auto& [arrival, seat] : seats_.all()) {
      if (seat.leaving.final != final || seat.left) continue;
      seat.leaving.is_told = true;
      leaving.push_back(&seat);
    }
    std::vector<std::uint32_t> last;
    SharedBytes message;
    for (const Arrival each : *who) {
      if (PLANTED(departure_untold)) break;
      std::vector<std::uint32_t> ranks;
      for (Seat* const seat : leaving) {
        if (seat->leaving.told_to.insert(each).second) ranks.push_back(seat->rank);
      }
      if (ranks.empty()) continue;
      if (ranks != last) message = departed_message(ranks, final, barriers);
      last = std::move(ranks);
      speaker_.send(*seats_.at(each).peer, wire::Kind::kLeave, WorkerRank(), message, out);
    }
  }
}

void Departures::announce_all_to(const Seat& witness, std::uint64_t barriers, KeeperOutputs& out) {
  const Arrival self = *seats_.find(*witness.peer)->seat;
  for (const bool final : {true, false}) {
    std::vector<std::uint32_t> ranks;
    for (auto& [arrival, seat] : seats_.all()) {
      if (!seat.plays()) continue;
      if (seat.left ? seat.left_for_good == final : seat.leaving.final == final) {
        ranks.push_back(seat.rank);
        seat.leaving.told_to.insert(self);
      }
    }
    if (ranks.empty()) continue;
    speaker_.send(*witness.peer, wire::Kind::kLeave, WorkerRank(),
                  departed_message(std::move(ranks), final, barriers), out);
  }
}

void Departures::note_known(Arrival witness, const std::vector<std::uint32_t>& ranks) {
  for (auto& [arrival, seat] : seats_.all()) {
    if (!seat.plays() || !seat.leaving.final) continue;
    if (std::binary_search(ranks.begin(), ranks.end(), seat.rank)) {
      seat.leaving.known_to.insert(witness);
    }
  }
}

std::vector<Arrival> Departures::known(TimeNs gone_ns) const {
  std::vector<Arrival> leaving;
  for (const auto& [arrival, seat] : seats_.all()) {
    if (seat.leaving.final && seat.leaving.is_told && !seat.left) leaving.push_back(arrival);
  }
  if (leaving.empty()) return leaving;
  const std::optional<std::vector<Arrival>> who = witnesses(gone_ns);
  std::erase_if(leaving, [&](Arrival self) {
    return !who || !std::all_of(who->begin(), who->end(), [&](Arrival each) {
      return each == self || seats_.at(self).leaving.known_to.contains(each) ||
             PLANTED(departure_untold);
    });
  });
  return leaving;
}

}  // namespace byteps
