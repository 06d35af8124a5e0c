#include "sim/sim_transport.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace byteps::sim {
namespace {

constexpr std::byte kPoison{0xdb};

// The lender's memory, for a network that is broken on purpose; empty when the payload was read out of it before.
std::span<std::byte> lent_memory(const Flight& flight) {
  if (flight.read) return {};
  return {const_cast<std::byte*>(flight.payload.data()), flight.payload.size()};
}

}  // namespace

SimTransport::SimTransport(SimNetwork& network, SimTransportOptions options)
    : wires_(network.wires()), station_(std::move(options)) {
  wires_.medium.stations.attach(station_);
}

SimTransport::~SimTransport() {
  die();
}

void SimTransport::die() {
  if (is_dead_) return;
  is_dead_ = true;
  wires_.endings.leave(station_);
}

void SimTransport::let_leave(std::size_t count, std::function<void()> then) {
  leaving_ = count;
  then_ = std::move(then);
}

Result<PeerId> SimTransport::connect(const Endpoint& to, const Hello& self) {
  return wires_.handshakes.connect(station_, to, self);
}

bool SimTransport::is_naming(PeerId id) const {
  const Station::Peer* peer = station_.find(id);
  return peer != nullptr && wires_.handshakes.is_naming(peer->connection);
}

Status SimTransport::send(PeerId id, const Outgoing& message) {
  Station::Peer* peer = station_.find(id);
  // Up for the owner is what the owner has heard of.
  if (peer == nullptr || !peer->up) return {Code::kDisconnected, "not connected"};
  if (leaving_ == 0) return {Code::kAgain, "its process dies"};
  Status sent = wires_.carriage.send(peer->connection, peer->side, message);
  if (!sent.is_ok()) return sent;
  peer->lent.push_back({message.token, message.payload});
  if (leaving_ != SIZE_MAX && --leaving_ == 0) std::exchange(then_, nullptr)();
  return sent;
}

void SimTransport::close(PeerId id, Status reason) {
  end_views();
  const Station::Peer* peer = station_.find(id);
  if (peer != nullptr) wires_.endings.close(peer->connection, peer->side, reason);
}

// ---- what the owner gets

void SimTransport::end_views() {
  if (wires_.medium.options.poison_views) {
    for (std::size_t i = 0; i < views_used_; ++i) {
      std::fill(views_[i].begin(), views_[i].end(), kPoison);
    }
  }
  views_used_ = 0;
}

std::size_t SimTransport::poll(TimeNs /*now*/, std::span<Event> events) {
  end_views();
  const SimNetworkOptions& options = wires_.medium.options;
  const std::size_t events_max = std::min(events.size(), options.events_per_poll_max);
  std::size_t count = 0;
  while (count < events_max && station_.ready_count() > 0) {
    const std::size_t turn =
        options.mix_peers ? wires_.medium.prng.below(station_.ready_count()) : 0;
    auto [id, ready] = station_.take(turn);
    if (give_out(id, ready, events[count])) ++count;
  }
  return count;
}

bool SimTransport::give_out(PeerId id, Ready& ready, Event& event) {
  Station::Peer& peer = *station_.find(id);
  event = Event{};
  event.kind = ready.kind;
  event.peer = id;
  switch (ready.kind) {
    case Event::Kind::kUp:
      peer.up = true;
      event.hello = ready.hello;
      break;
    case Event::Kind::kReceived: {
      const bool given = give_received(*ready.flight, event);
      wires_.carriage.given_out(peer.connection, peer.side, ready);
      return given;
    }
    case Event::Kind::kSent:
      CHECK(!peer.lent.empty() && peer.lent.front().token == ready.token);
      peer.lent.pop_front();
      event.token = ready.token;
      wires_.carriage.sent_given_out(peer.connection, peer.side, ready.charged_bytes);
      break;
    case Event::Kind::kDown:
      CHECK(peer.lent.empty()) << "kDown before all payloads are back";
      event.why = std::move(ready.why);
      wires_.endings.forget(peer.connection, peer.side);
      station_.forget(id);
      break;
  }
  return true;
}

bool SimTransport::give_received(const Flight& flight, Event& event) {
  if (views_.size() < views_used_ + 2) views_.resize(views_used_ + 2);
  std::vector<std::byte>& header = views_[views_used_++];
  header.assign(flight.header.begin(), flight.header.end());
  event.header = header;
  std::vector<std::byte>& payload = views_[views_used_++];
  payload.assign(flight.payload.begin(), flight.payload.end());
  event.payload = payload;
  event.is_shared = flight.is_shared;
  const Medium& medium = wires_.medium;
  const bool given =
      !medium.options.tamper || medium.options.tamper(event, payload, lent_memory(flight));
  if (medium.probes.on_receive) medium.probes.on_receive(event.header, event.payload);
  return given;
}

}  // namespace byteps::sim
