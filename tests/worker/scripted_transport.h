// A transport whose other side is the test: it sees what was sent, and says what arrives.
#pragma once

#include <deque>
#include <map>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "net/transport.h"
#include "net/wire.h"

namespace byteps {

class ScriptedTransport final : public Transport {
 public:
  struct Attempt {
    PeerId peer;
    Endpoint to;
    Hello hello;
  };
  struct Sent {
    PeerId peer;
    wire::Header header;
    std::vector<std::byte> payload;
  };

  std::vector<Attempt> attempts;
  std::deque<Sent> sent;
  std::map<std::pair<PeerId, LandingTag>, std::span<std::byte>> landings;
  std::vector<std::pair<PeerId, Status>> closed;
  bool hold_payloads = false;  // kSent waits until give_back() or the end of the connection
  bool full = false;           // send() says kAgain
  bool naming = false;         // attempts wait for a name server
  int no_memory = 0;           // so many polls throw
  std::size_t capacity = 0;    // of the way to each peer
  std::map<std::string, Hello> answers;  // who is at which endpoint

  // The newest attempt at this place.
  PeerId peer_at(const Endpoint& place) const {
    for (auto attempt = attempts.rbegin(); attempt != attempts.rend(); ++attempt) {
      if (attempt->to == place) return attempt->peer;
    }
    ADD_FAILURE() << "nobody connects to " << place.text();
    return PeerId(0);
  }

  const Attempt& attempt_of(PeerId peer) const { return attempts.at(peer.value - 1); }

  void up(PeerId peer) {
    up_[peer] = true;
    Incoming event;
    event.kind = Event::Kind::kUp;
    event.peer = peer;
    event.hello = answers.at(attempt_of(peer).to.text());
    incoming_.push_back(std::move(event));
  }
  void down(PeerId peer, Status why) {
    for (const auto& [owner, token] : std::exchange(lent_, {})) {
      owner == peer ? push_sent(peer, token) : lent_.push_back({owner, token});
    }
    std::erase_if(landings, [&](const auto& each) { return each.first.first == peer; });
    up_.erase(peer);
    Incoming event;
    event.kind = Event::Kind::kDown;
    event.peer = peer;
    event.why = std::move(why);
    incoming_.push_back(std::move(event));
  }
  void receive(PeerId peer, const wire::Header& header, std::vector<std::byte> payload = {}) {
    const wire::HeaderBytes bytes = wire::encode(header);
    receive_raw(peer, {bytes.begin(), bytes.end()}, std::move(payload));
  }
  void receive_raw(PeerId peer, std::vector<std::byte> header, std::vector<std::byte> payload) {
    Incoming event;
    event.kind = Event::Kind::kReceived;
    event.peer = peer;
    event.header = std::move(header);
    event.payload = std::move(payload);
    incoming_.push_back(std::move(event));
  }
  void give_back() {
    for (const auto& [owner, token] : std::exchange(lent_, {})) push_sent(owner, token);
  }
  // The oldest message of this kind that was not taken yet.
  std::optional<Sent> take(wire::Kind kind) {
    for (auto message = sent.begin(); message != sent.end(); ++message) {
      if (message->header.kind != kind) continue;
      Sent result = std::move(*message);
      sent.erase(message);
      return result;
    }
    return std::nullopt;
  }

  Result<PeerId> connect(const Endpoint& to, const Hello& self) override {
    attempts.push_back({PeerId(++last_peer_), to, self});
    return attempts.back().peer;
  }
  bool is_naming(PeerId peer) const override { return naming && !up_.contains(peer); }
  std::size_t capacity_bytes(PeerId) const override { return capacity; }
  Status send(PeerId peer, const Outgoing& message) override {
    if (!up_.contains(peer)) return {Code::kDisconnected, "no such connection"};
    if (full) return {Code::kAgain, "full"};
    sent.push_back({peer,
                    wire::decode_header(message.header).value(),
                    {message.payload.begin(), message.payload.end()}});
    if (hold_payloads) {
      lent_.push_back({peer, message.token});
    } else {
      push_sent(peer, message.token);
    }
    return Status::ok();
  }
  void land(PeerId peer, LandingTag tag, std::span<std::byte> destination) override {
    EXPECT_TRUE(up_.contains(peer));
    EXPECT_TRUE(landings.emplace(std::pair(peer, tag), destination).second);
  }
  void withdraw(PeerId peer, LandingTag tag) override {
    EXPECT_EQ(landings.erase(std::pair(peer, tag)), 1u);
  }
  std::size_t poll(TimeNs /*now*/, std::span<Event> events) override {
    if (no_memory > 0) {
      --no_memory;
      throw std::bad_alloc();
    }
    current_.clear();
    while (!incoming_.empty() && current_.size() < events.size()) {
      current_.push_back(std::move(incoming_.front()));
      incoming_.pop_front();
    }
    for (std::size_t i = 0; i < current_.size(); ++i) {
      Event& event = events[i];
      event = Event{};
      event.kind = current_[i].kind;
      event.peer = current_[i].peer;
      event.hello = current_[i].hello;
      event.header = current_[i].header;
      event.payload = current_[i].payload;
      event.token = current_[i].token;
      event.why = current_[i].why;
    }
    return current_.size();
  }
  TimeNs next_deadline() const override { return kNever; }
  void set_self(const Hello&) override { ADD_FAILURE() << "a worker accepts no connections"; }
  void close(PeerId peer, Status reason) override {
    closed.push_back({peer, reason});
    down(peer, std::move(reason));
  }

 private:
  struct Incoming {
    Event::Kind kind = Event::Kind::kUp;
    PeerId peer;
    Hello hello;
    std::vector<std::byte> header;
    std::vector<std::byte> payload;
    SendToken token = 0;
    Status why;
  };
  void push_sent(PeerId peer, SendToken token) {
    Incoming event;
    event.kind = Event::Kind::kSent;
    event.peer = peer;
    event.token = token;
    incoming_.push_back(std::move(event));
  }

  std::uint32_t last_peer_ = 0;
  std::map<PeerId, bool> up_;
  std::vector<std::pair<PeerId, SendToken>> lent_;
  std::deque<Incoming> incoming_;
  std::deque<Incoming> current_;
};

}  // namespace byteps
