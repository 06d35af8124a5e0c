#include "scheduler/departures.h"

#include <algorithm>
#include <utility>

namespace byteps {
namespace {

SharedBytes departed_message(std::vector<std::uint32_t> ranks, bool final) {
  std::sort(ranks.begin(), ranks.end());
  return wire::encode(wire::Leave{final, Members(ranks)});
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

}  // namespace byteps
