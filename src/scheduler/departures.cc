#include "scheduler/departures.h"

#include <algorithm>
#include <array>
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
  announced_.clear();
  for (auto& [arrival, seat] : seats_.all()) {
    seat.leaving.is_told = false;
    seat.leaving.told_count = 0;
    seat.leaving.knows.clear();
  }
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
  for (auto& [arrival, seat] : seats_.all()) {
    if (!seat.leaving.final || seat.left || seat.leaving.is_told) continue;
    seat.leaving.is_told = true;
    announced_.push_back(arrival);
  }
  std::size_t last = announced_.size();  // the messages are for who has been told of so many
  std::array<SharedBytes, 2> messages;   // for good, for a while
  for (const Arrival each : *who) {
    Seat& seat = seats_.at(each);
    const std::size_t told_count = std::exchange(seat.leaving.told_count, announced_.size());
    if (told_count == announced_.size() || PLANTED(departure_untold)) continue;
    if (told_count != last) messages = departures_since(told_count, barriers);
    last = told_count;
    for (const SharedBytes& message : messages) {
      if (!message.empty()) speaker_.send(*seat.peer, wire::Kind::kLeave, WorkerRank(), message, out);
    }
  }
}

std::array<SharedBytes, 2> Departures::departures_since(std::size_t count,
                                                        std::uint64_t barriers) const {
  std::array<std::vector<std::uint32_t>, 2> ranks;
  for (std::size_t i = count; i < announced_.size(); ++i) {
    const auto found = seats_.all().find(announced_[i]);
    if (found == seats_.all().end() || found->second.left) continue;
    ranks[*found->second.leaving.final ? 0 : 1].push_back(found->second.rank);
  }
  std::array<SharedBytes, 2> messages;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (!ranks[i].empty()) messages[i] = departed_message(std::move(ranks[i]), i == 0, barriers);
  }
  return messages;
}

void Departures::announce_all_to(Seat& witness, std::uint64_t barriers, KeeperOutputs& out) {
  if (count_ == 0 && announced_.empty()) return;
  witness.leaving.told_count = announced_.size();
  for (const bool final : {true, false}) {
    std::vector<std::uint32_t> ranks;
    for (const auto& [arrival, seat] : seats_.all()) {
      if (!seat.plays()) continue;
      if (seat.left ? seat.left_for_good == final : seat.leaving.final == final) {
        ranks.push_back(seat.rank);
      }
    }
    if (ranks.empty()) continue;
    speaker_.send(*witness.peer, wire::Kind::kLeave, WorkerRank(),
                  departed_message(std::move(ranks), final, barriers), out);
  }
}

void Departures::note_known(Seat& witness, const std::vector<std::uint32_t>& ranks) {
  std::vector<bool>& knows = witness.leaving.knows;
  for (const auto& [arrival, seat] : seats_.all()) {
    if (!seat.plays() || !seat.leaving.final) continue;
    if (!std::binary_search(ranks.begin(), ranks.end(), seat.rank)) continue;
    if (knows.size() <= seat.rank) knows.resize(seat.rank + 1);
    knows[seat.rank] = true;
  }
}

std::vector<Arrival> Departures::known(TimeNs gone_ns) const {
  std::vector<Arrival> leaving;
  for (const auto& [arrival, seat] : seats_.all()) {
    if (seat.leaving.final && seat.leaving.is_told && !seat.left) leaving.push_back(arrival);
  }
  if (leaving.empty()) return leaving;
  const std::optional<std::vector<Arrival>> who = witnesses(gone_ns);
  if (!who) return {};
  for (const Arrival each : *who) {
    const std::vector<bool>& knows = seats_.at(each).leaving.knows;
    std::erase_if(leaving, [&](Arrival self) {
      const std::uint32_t rank = seats_.at(self).rank;
      return self != each && !(rank < knows.size() && knows[rank]) && !PLANTED(departure_untold);
    });
    if (leaving.empty()) break;
  }
  return leaving;
}

}  // namespace byteps
