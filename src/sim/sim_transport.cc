#include "sim/sim_transport.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace byteps::sim {
namespace {

constexpr std::byte kPoison{0xdb};

bool overlap(std::span<const std::byte> a, std::span<const std::byte> b) {
  if (a.empty() || b.empty()) return false;
  const std::less<const std::byte*> before;
  return before(a.data(), b.data() + b.size()) && before(b.data(), a.data() + a.size());
}

}  // namespace

SimTransport::SimTransport(SimNetwork& network, SimTransportOptions options)
    : network_(network), options_(std::move(options)), number_(network.attach(*this)) {}

SimTransport::~SimTransport() {
  die();
}

void SimTransport::die() {
  if (is_dead_) return;
  is_dead_ = true;
  network_.detach(*this);
  for (auto& [id, peer] : peers_) {
    for (Ready& ready : peer.ready) {
      if (ready.repeated) network_.return_flight(ready.flight);
    }
  }
}

PeerId SimTransport::add_peer(SimNetwork::ConnectionId connection, int side) {
  const PeerId id(++last_peer_);
  Peer& peer = peers_[id];
  peer.connection = connection;
  peer.side = side;
  return id;
}

Result<PeerId> SimTransport::connect(const Endpoint& to, const Hello& self) {
  return network_.connect(*this, to, self);
}

bool SimTransport::is_naming(PeerId id) const {
  const auto found = peers_.find(id);
  return found != peers_.end() && network_.is_naming(found->second.connection);
}

Status SimTransport::send(PeerId id, const Outgoing& message) {
  const auto found = peers_.find(id);
  // Up for the owner is what the owner has heard of.
  if (found == peers_.end() || !found->second.up) return {Code::kDisconnected, "not connected"};
  Status sent = network_.send(found->second.connection, found->second.side, message);
  if (sent.is_ok()) found->second.lent.push_back({message.token, message.payload});
  return sent;
}

void SimTransport::land(PeerId id, LandingTag tag, std::span<std::byte> destination) {
  end_views();
  const auto found = peers_.find(id);
  if (found != peers_.end()) found->second.landings[tag] = destination;
}

void SimTransport::withdraw(PeerId id, LandingTag tag) {
  end_views();
  const auto found = peers_.find(id);
  if (found != peers_.end()) found->second.landings.erase(tag);
}

void SimTransport::close(PeerId id, Status reason) {
  end_views();
  const auto found = peers_.find(id);
  if (found != peers_.end()) {
    network_.close(found->second.connection, found->second.side, reason);
  }
}

// ---- what the network brings

void SimTransport::queue(PeerId id, Ready ready) {
  Peer& peer = peers_.at(id);
  if (peer.ready.empty()) {
    if (ready_peers_.empty() && options_.waiter != nullptr) options_.waiter->wake();
    ready_peers_.push_back(id);
  }
  peer.ready.push_back(std::move(ready));
}

// The owner closes: it hears no more of this peer but the end.
void SimTransport::drop_received(PeerId id) {
  Peer& peer = peers_.at(id);
  std::deque<Ready> kept;
  std::vector<Ready> dropped;
  for (Ready& ready : peer.ready) {
    const bool about_the_end = ready.kind == Event::Kind::kSent || ready.kind == Event::Kind::kDown;
    if (about_the_end) {
      kept.push_back(std::move(ready));
    } else {
      dropped.push_back(std::move(ready));
    }
  }
  peer.ready = std::move(kept);
  if (peer.ready.empty()) std::erase(ready_peers_, id);
  for (Ready& ready : dropped) {
    if (ready.kind != Event::Kind::kReceived) continue;
    if (ready.repeated) {
      network_.return_flight(ready.flight);
    } else {
      network_.given_out(peer.connection, peer.side, *ready.flight, true);
    }
  }
}

std::optional<std::span<std::byte>> SimTransport::landing_of(PeerId id, const Flight& flight) {
  const Peer& peer = peers_.at(id);
  const auto found = peer.landings.find(flight.landing);
  if (flight.landing == kNoLanding || found == peer.landings.end()) return std::nullopt;
  const std::size_t landing_bytes = found->second.size();
  if (flight.landing_offset > landing_bytes) return std::nullopt;
  if (flight.payload.size() > landing_bytes - flight.landing_offset) return std::nullopt;
  return found->second.subspan(flight.landing_offset, flight.payload.size());
}

// ---- what the owner gets

void SimTransport::end_views() {
  if (network_.options_.poison_views) {
    for (std::size_t i = 0; i < views_used_; ++i) {
      std::fill(views_[i].begin(), views_[i].end(), kPoison);
    }
  }
  views_used_ = 0;
}

std::size_t SimTransport::poll(TimeNs /*now*/, std::span<Event> events) {
  end_views();
  const std::size_t events_max = std::min(events.size(), network_.options_.events_per_poll_max);
  std::size_t count = 0;
  while (count < events_max && !ready_peers_.empty()) {
    const std::size_t turn =
        network_.options_.mix_peers ? network_.prng_.below(ready_peers_.size()) : 0;
    const PeerId id = ready_peers_[turn];
    ready_peers_.erase(ready_peers_.begin() + static_cast<std::ptrdiff_t>(turn));
    Peer& peer = peers_.at(id);
    Ready ready = std::move(peer.ready.front());
    peer.ready.pop_front();
    if (!peer.ready.empty()) ready_peers_.push_back(id);
    if (give_out(id, peer, ready, events[count])) ++count;
  }
  return count;
}

bool SimTransport::give_out(PeerId id, Peer& peer, Ready& ready, Event& event) {
  event = Event{};
  event.kind = ready.kind;
  event.peer = id;
  switch (ready.kind) {
    case Event::Kind::kUp:
      peer.up = true;
      event.hello = ready.hello;
      break;
    case Event::Kind::kReceived:
      return give_received(peer, id, ready, event);
    case Event::Kind::kSent:
      CHECK(!peer.lent.empty() && peer.lent.front().token == ready.token);
      peer.lent.pop_front();
      event.token = ready.token;
      network_.sent_given_out(peer.connection, peer.side, ready.charged_bytes);
      break;
    case Event::Kind::kDown:
      CHECK(peer.lent.empty()) << "kDown before all payloads are back";
      event.why = std::move(ready.why);
      network_.down_given_out(peer.connection, peer.side);
      peers_.erase(id);
      break;
  }
  return true;
}

bool SimTransport::give_received(Peer& peer, PeerId id, Ready& ready, Event& event) {
  Flight& flight = *ready.flight;
  if (views_.size() < views_used_ + 2) views_.resize(views_used_ + 2);
  std::vector<std::byte>& header = views_[views_used_++];
  header.assign(flight.header.begin(), flight.header.end());
  event.header = header;
  const std::optional<std::span<std::byte>> landing = landing_of(id, flight);
  event.landed = landing.has_value();
  if (landing) {
    if (!flight.payload.empty()) {
      std::memcpy(landing->data(), flight.payload.data(), flight.payload.size());
    }
    event.payload = *landing;
  } else {
    std::vector<std::byte>& view = views_[views_used_++];
    view.assign(flight.payload.begin(), flight.payload.end());
    event.payload = view;
  }
  const bool given = !network_.options_.tamper || tamper(event);
  if (network_.receive_probe_) network_.receive_probe_(event.header, event.payload, event.landed);
  if (ready.repeated) {
    network_.return_flight(&flight);
  } else {
    network_.given_out(peer.connection, peer.side, flight, false);
  }
  return given;
}

bool SimTransport::tamper(const Event& event) {
  // Landing or view: this transport has just written it.
  std::byte* const first = const_cast<std::byte*>(event.payload.data());
  return network_.options_.tamper(event, {first, event.payload.size()});
}

// ---- questions

std::string SimTransport::claim_on(std::span<const std::byte> memory) const {
  for (const auto& [id, peer] : peers_) {
    for (const Lent& lent : peer.lent) {
      if (overlap(lent.payload, memory)) return "a payload of it is lent by " + options_.name;
    }
    for (const auto& [tag, landing] : peer.landings) {
      if (overlap(landing, memory)) return "it is still a landing of " + options_.name;
    }
  }
  return {};
}

std::size_t SimTransport::lent_payloads() const {
  std::size_t count = 0;
  for (const auto& [id, peer] : peers_) count += peer.lent.size();
  return count;
}

}  // namespace byteps::sim
