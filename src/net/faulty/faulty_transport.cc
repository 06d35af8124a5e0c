#include "net/faulty/faulty_transport.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace byteps {

Result<PeerId> FaultyTransport::connect(const Endpoint& to, const Hello& self) {
  Result<PeerId> peer = inner_->connect(to, self);
  if (peer.is_ok()) peers_[peer.value()];
  return peer;
}

Status FaultyTransport::send(PeerId peer, const Outgoing& message) {
  const auto found = peers_.find(peer);
  if (found == peers_.end() || !found->second.is_up) {
    return {Code::kDisconnected, "this peer is not connected"};
  }
  if (found->second.accepted > 0 && prng_.chance(faults_.again)) {
    return {Code::kAgain, "injected: the window is full"};
  }
  Status status = inner_->send(peer, message);
  if (status.is_ok()) ++found->second.accepted;
  return status;
}

void FaultyTransport::close(PeerId peer, Status reason) {
  const auto found = peers_.find(peer);
  if (found != peers_.end()) {
    end(peer, found->second, std::move(reason));
  } else {
    inner_->close(peer, std::move(reason));
  }
}

void FaultyTransport::end(PeerId id, Peer& peer, Status reason) {
  peer.is_up = false;
  const auto received = [](const Kept& kept) { return kept.event.kind == Event::Kind::kReceived; };
  kept_count_ -= std::erase_if(peer.kept, received);
  inner_->close(id, std::move(reason));
}

void FaultyTransport::close_one() {
  std::vector<PeerId> up;
  for (const auto& [id, peer] : peers_) {
    if (peer.is_up) up.push_back(id);
  }
  if (up.empty()) return;
  const PeerId id = up[prng_.below(up.size())];
  end(id, peers_.at(id), {Code::kDisconnected, "injected: the connection ended"});
}

TimeNs FaultyTransport::next_deadline() const {
  return kept_count_ > 0 ? now_ : inner_->next_deadline();
}

std::size_t FaultyTransport::poll(TimeNs now, std::span<Event> events) {
  now_ = now;
  ++poll_count_;
  given_.clear();
  if (prng_.chance(faults_.close)) close_one();
  // What is kept is bounded: no more is asked for while much of it waits.
  if (kept_count_ < 4 * events.size()) keep_inner_events(now, events.size());
  given_.reserve(events.size());
  std::size_t count = 0;
  // Peers take turns in being first.
  auto at = peers_.upper_bound(first_);
  for (std::size_t left = peers_.size(); left > 0 && count < events.size(); --left) {
    if (at == peers_.end()) at = peers_.begin();
    Peer& peer = at->second;
    first_ = at->first;
    bool down = false;
    while (!peer.kept.empty() && count < events.size() &&
           peer.kept.front().due_poll <= poll_count_) {
      given_.push_back(std::move(peer.kept.front()));
      peer.kept.pop_front();
      --kept_count_;
      events[count] = given_.back().event;
      if (events[count].kind == Event::Kind::kSent) --peer.accepted;
      if (events[count].kind == Event::Kind::kUp) peer.is_up = true;
      down |= events[count].kind == Event::Kind::kDown;
      ++count;
    }
    at = down ? peers_.erase(at) : std::next(at);
  }
  return count;
}

void FaultyTransport::keep_inner_events(TimeNs now, std::size_t events_max) {
  inner_events_.resize(events_max);
  const std::size_t count = inner_->poll(now, inner_events_);
  for (std::size_t i = 0; i < count; ++i) {
    const Event& event = inner_events_[i];
    Peer& peer = peers_[event.peer];
    keep(event, peer);
    if (event.kind == Event::Kind::kReceived && prng_.chance(faults_.duplicate)) keep(event, peer);
  }
}

void FaultyTransport::keep(const Event& event, Peer& peer) {
  Kept& kept = peer.kept.emplace_back();
  ++kept_count_;
  kept.event = event;
  kept.header.assign(event.header.begin(), event.header.end());
  kept.event.header = kept.header;
  kept.payload.assign(event.payload.begin(), event.payload.end());
  kept.event.payload = kept.payload;
  kept.event.is_shared = false;
  kept.due_poll = poll_count_;
  if (prng_.chance(faults_.delay)) kept.due_poll += 1 + prng_.below(faults_.delay_polls_max);
}

}  // namespace byteps
