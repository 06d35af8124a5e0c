#include "sim/station.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace byteps::sim {
namespace {

bool overlap(std::span<const std::byte> a, std::span<const std::byte> b) {
  if (a.empty() || b.empty()) return false;
  const std::less<const std::byte*> before;
  return before(a.data(), b.data() + b.size()) && before(b.data(), a.data() + a.size());
}

}  // namespace

Station::Station(SimTransportOptions options) : options_(std::move(options)) {}

// ---- peers

PeerId Station::add_peer(ConnectionId connection, int side) {
  const PeerId id(++last_peer_);
  Peer& peer = peers_[id];
  peer.connection = connection;
  peer.side = side;
  return id;
}

Station::Peer* Station::find(PeerId id) {
  const auto found = peers_.find(id);
  return found == peers_.end() ? nullptr : &found->second;
}

const Station::Peer* Station::find(PeerId id) const {
  const auto found = peers_.find(id);
  return found == peers_.end() ? nullptr : &found->second;
}

// ---- what waits to be given out

void Station::queue(PeerId id, Ready ready) {
  Peer& peer = peers_.at(id);
  if (peer.ready.empty()) {
    if (ready_peers_.empty() && options_.waiter != nullptr) options_.waiter->wake();
    ready_peers_.push_back(id);
  }
  peer.ready.push_back(std::move(ready));
}

Station::Taken Station::take(std::size_t turn) {
  const PeerId id = ready_peers_[turn];
  ready_peers_.erase(ready_peers_.begin() + static_cast<std::ptrdiff_t>(turn));
  Peer& peer = peers_.at(id);
  Taken taken{id, std::move(peer.ready.front())};
  peer.ready.pop_front();
  if (!peer.ready.empty()) ready_peers_.push_back(id);
  return taken;
}

std::vector<Ready> Station::drop_received(PeerId id) {
  Peer& peer = peers_.at(id);
  std::deque<Ready> kept;
  std::vector<Ready> received;
  for (Ready& ready : peer.ready) {
    const bool about_the_end = ready.kind == Event::Kind::kSent || ready.kind == Event::Kind::kDown;
    if (about_the_end) {
      kept.push_back(std::move(ready));
    } else if (ready.kind == Event::Kind::kReceived) {
      received.push_back(std::move(ready));
    }
  }
  peer.ready = std::move(kept);
  if (peer.ready.empty()) std::erase(ready_peers_, id);
  return received;
}

// ---- memory

std::string Station::claim_on(std::span<const std::byte> memory) const {
  for (const auto& [id, peer] : peers_) {
    for (const Lent& lent : peer.lent) {
      if (overlap(lent.payload, memory)) return "a payload of it is lent by " + options_.name;
    }
  }
  return {};
}

std::size_t Station::lent_payloads() const {
  std::size_t count = 0;
  for (const auto& [id, peer] : peers_) count += peer.lent.size();
  return count;
}

// ---- stations

void Stations::attach(Station& station) {
  by_number_.emplace(++last_number_, &station);
  station.set_number(last_number_);
}

Station* Stations::find(std::uint32_t number) const {
  const auto found = by_number_.find(number);
  return found == by_number_.end() ? nullptr : found->second;
}

Station* Stations::listener(const Endpoint& endpoint) const {
  const auto found = std::find_if(by_number_.begin(), by_number_.end(), [&](const auto& each) {
    return each.second->listens_at() == endpoint;
  });
  return found == by_number_.end() ? nullptr : found->second;
}

std::size_t Stations::lent_payloads() const {
  std::size_t count = 0;
  for (const auto& [number, station] : by_number_) count += station->lent_payloads();
  return count;
}

}  // namespace byteps::sim
