// Switchboard: Transports in memory, for tests of shells. It keeps the contract of net/transport.h (T1 to T5; landings
// are not needed here), delays under a Prng, and drops a connection when told. Views die as early as they may.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/prng.h"
#include "net/transport.h"

namespace byteps {

class SwitchTransport;

class Switchboard {
 public:
  explicit Switchboard(std::uint64_t seed) : prng_(seed) {}

  std::unique_ptr<SwitchTransport> transport(Hello self);
  void set_now(TimeNs now) { now_ = now; }
  TimeNs now() const { return now_; }
  // Ends a connection picked at random, with all that is on the way. False: there is none.
  bool drop_one();

 private:
  friend class SwitchTransport;
  struct Line {  // one connection
    SwitchTransport* ends[2] = {nullptr, nullptr};
    PeerId peers[2];
    TimeNs latest[2] = {0, 0};  // arrival of the last event at each end
    bool down = false;
  };
  // `closer`: the end that closed it; what it has sent still arrives. -1: the network broke it.
  void end(Line& line, const Status& why, int closer = -1);
  TimeNs delay() { return static_cast<TimeNs>(prng_.below(3 * kMillisecond)) + 10 * kMicrosecond; }

  Prng prng_;
  TimeNs now_ = 0;
  std::uint32_t next_peer_ = 1;
  std::map<std::string, SwitchTransport*> listeners_;
  std::deque<Line> lines_;
  std::map<PeerId, std::pair<Line*, int>> places_;
};

class SwitchTransport final : public Transport {
 public:
  static constexpr std::size_t kWindow = 4;  // small, so that kAgain is met

  SwitchTransport(Switchboard& board, Hello self) : board_(board), self_(self) {}
  ~SwitchTransport() override {
    std::erase_if(board_.listeners_, [&](const auto& entry) { return entry.second == this; });
    for (Switchboard::Line& line : board_.lines_) {
      if (line.ends[0] != this && line.ends[1] != this) continue;
      board_.end(line, {Code::kDisconnected, "the peer's process ended"});
      for (SwitchTransport*& end : line.ends) {
        if (end == this) end = nullptr;
      }
    }
  }

  void listen(const Endpoint& at) { board_.listeners_[at.text()] = this; }
  std::size_t lent() const { return lent_total_; }

  Result<PeerId> connect(const Endpoint& to, const Hello& self) override {
    const PeerId peer(board_.next_peer_++);
    const TimeNs at = board_.now_ + board_.delay();
    const auto listener = board_.listeners_.find(to.text());
    if (listener == board_.listeners_.end()) {
      Stored down;
      down.event.kind = Event::Kind::kDown;
      down.event.peer = peer;
      down.event.why = Status(Code::kDisconnected, "connection refused");
      inbox_.emplace(at, std::move(down));
      return peer;
    }
    Switchboard::Line& line = board_.lines_.emplace_back();
    line.ends[0] = this;
    line.ends[1] = listener->second;
    line.peers[0] = peer;
    line.peers[1] = PeerId(board_.next_peer_++);
    for (const int side : {0, 1}) {
      board_.places_[line.peers[side]] = {&line, side};
      Stored up;
      up.event.kind = Event::Kind::kUp;
      up.event.peer = line.peers[side];
      up.event.hello = side == 0 ? listener->second->self_ : self;
      line.ends[side]->deliver(line, side, std::move(up), at);
    }
    return peer;
  }

  Status send(PeerId peer, const Outgoing& message) override {
    const auto [line, side] = find(peer);
    if (line == nullptr || line->down || !up_.contains(peer)) {
      return {Code::kDisconnected, "no such connection"};
    }
    std::multiset<SendToken>& lent = lent_[peer];
    if (lent.size() >= kWindow) return {Code::kAgain, "the window is full"};
    lent.insert(message.token);
    ++lent_total_;
    Stored sent;
    sent.event.kind = Event::Kind::kSent;
    sent.event.peer = peer;
    sent.event.token = message.token;
    deliver(*line, side, std::move(sent), board_.now_ + board_.delay());
    Stored received;
    received.event.kind = Event::Kind::kReceived;
    received.event.peer = line->peers[1 - side];
    received.header.assign(message.header.begin(), message.header.end());
    received.payload.assign(message.payload.begin(), message.payload.end());
    line->ends[1 - side]->deliver(*line, 1 - side, std::move(received),
                                  board_.now_ + board_.delay());
    return Status::ok();
  }

  void land(PeerId, LandingTag, std::span<std::byte>) override {}
  void withdraw(PeerId, LandingTag) override {}

  std::size_t poll(TimeNs now, std::span<Event> events) override {
    shown_.clear();
    std::size_t count = 0;
    while (count < events.size() && !inbox_.empty() && inbox_.begin()->first <= now) {
      Stored stored = std::move(inbox_.begin()->second);
      inbox_.erase(inbox_.begin());
      Stored& shown = shown_.emplace_back(std::move(stored));
      Event& event = shown.event;
      event.header = shown.header;
      event.payload = shown.payload;
      if (event.kind == Event::Kind::kUp) up_.insert(event.peer);
      if (event.kind == Event::Kind::kDown) up_.erase(event.peer);
      if (event.kind == Event::Kind::kSent) {
        lent_[event.peer].erase(lent_[event.peer].find(event.token));
        --lent_total_;
      }
      events[count++] = event;
    }
    return count;
  }

  TimeNs next_deadline() const override { return inbox_.empty() ? kNever : inbox_.begin()->first; }

  void set_self(const Hello&) override { ADD_FAILURE() << "only a shard has news of itself"; }

  void close(PeerId peer, Status reason) override {
    shown_.clear();
    const auto [line, side] = find(peer);
    if (line != nullptr) board_.end(*line, reason, side);
  }

 private:
  friend class Switchboard;
  struct Stored {
    Event event;
    std::vector<std::byte> header;
    std::vector<std::byte> payload;
  };

  std::pair<Switchboard::Line*, int> find(PeerId peer) {
    const auto place = board_.places_.find(peer);
    if (place == board_.places_.end()) return {nullptr, 0};
    return place->second;
  }
  void deliver(Switchboard::Line& line, int side, Stored stored, TimeNs at) {
    line.latest[side] = std::max(line.latest[side] + 1, at);
    inbox_.emplace(line.latest[side], std::move(stored));
  }

  Switchboard& board_;
  const Hello self_;
  std::multimap<TimeNs, Stored> inbox_;
  std::deque<Stored> shown_;  // of the last poll()
  std::set<PeerId> up_;
  std::map<PeerId, std::multiset<SendToken>> lent_;
  std::size_t lent_total_ = 0;
};

inline std::unique_ptr<SwitchTransport> Switchboard::transport(Hello self) {
  return std::make_unique<SwitchTransport>(*this, self);
}

inline void Switchboard::end(Line& line, const Status& why, int closer) {
  if (line.down) return;
  line.down = true;
  for (const int side : {0, 1}) {
    SwitchTransport* end = line.ends[side];
    if (end == nullptr) continue;
    // T3: what has not arrived is lost; a random part of it, so that tails differ.
    const bool keeps_all = closer == 1 - side;
    const TimeNs cut = keeps_all ? kNever : now_ + (prng_.chance(0.5) ? 0 : delay());
    for (auto it = end->inbox_.begin(); it != end->inbox_.end();) {
      const bool lost = it->second.event.peer == line.peers[side] && it->first > cut &&
                        it->second.event.kind == Event::Kind::kReceived;
      it = lost ? end->inbox_.erase(it) : std::next(it);
    }
    SwitchTransport::Stored down;
    down.event.kind = Event::Kind::kDown;
    down.event.peer = line.peers[side];
    down.event.why = why;
    end->deliver(line, side, std::move(down), now_ + delay());
  }
}

inline bool Switchboard::drop_one() {
  std::vector<Line*> open;
  for (Line& line : lines_) {
    if (!line.down) open.push_back(&line);
  }
  if (open.empty()) return false;
  end(*open[prng_.below(open.size())], {Code::kDisconnected, "dropped by the test"});
  return true;
}

}  // namespace byteps
