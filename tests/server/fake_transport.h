// A Transport of which the test plays the network and all peers. Strict where the contract is: views
// are spoilt by the next poll() or close(), and lent payloads are looked at only when they come back.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/crc32c.h"
#include "net/transport.h"
#include "net/wire.h"

namespace byteps {

class FakeTransport final : public Transport {
 public:
  struct Sent {
    PeerId peer;
    wire::Header header;
    std::vector<std::byte> payload;  // as it was when it came back
    LandingTag landing = kNoLanding;
    std::uint64_t landing_offset = 0;
  };

  // ---- the test's side
  PeerId arrive(const Hello& hello) {
    const PeerId peer = new_peer();
    up(peer, hello);
    return peer;
  }
  void up(PeerId peer, const Hello& hello) {
    peers_[peer].up = true;
    Event event;
    event.kind = Event::Kind::kUp;
    event.peer = peer;
    event.hello = hello;
    pending_.push_back({event, nullptr});
  }
  void say(PeerId peer, const wire::Header& header, std::vector<std::byte> payload = {}) {
    const wire::HeaderBytes bytes = wire::encode(header);
    say_bytes(peer, {bytes.begin(), bytes.end()}, std::move(payload));
  }
  void say_bytes(PeerId peer, std::vector<std::byte> header, std::vector<std::byte> payload = {}) {
    auto views = std::make_unique<Views>(Views{std::move(header), std::move(payload)});
    Event event;
    event.kind = Event::Kind::kReceived;
    event.peer = peer;
    event.header = views->header;
    event.payload = views->payload;
    pending_.push_back({event, std::move(views)});
  }
  void vanish(PeerId peer) { end(peer, {Code::kDisconnected, "gone"}); }
  // What is lent comes back. Its content is in sent() from now on.
  void give_back_all() {
    for (auto& [peer, state] : peers_) give_back(peer, state);
  }
  std::vector<Sent> take_sent() {
    give_back_all();
    return std::exchange(sent_, {});
  }
  std::size_t window = 1'000'000;  // messages lent per peer, then kAgain
  std::vector<Endpoint> connected_to;
  std::vector<Hello> hellos;
  Hello told;  // what the owner says of itself to those who connect
  std::map<PeerId, Status> closed;
  std::size_t lent_count() const {
    std::size_t count = 0;
    for (const auto& [peer, state] : peers_) count += state.lent.size();
    return count;
  }
  PeerId last_peer() const { return PeerId(peer_count_); }

  // ---- Transport
  Result<PeerId> connect(const Endpoint& to, const Hello& self) override {
    connected_to.push_back(to);
    hellos.push_back(self);
    return new_peer();
  }
  Status send(PeerId peer, const Outgoing& message) override {
    const auto found = peers_.find(peer);
    if (found == peers_.end() || !found->second.up) return {Code::kDisconnected, "no such peer"};
    if (found->second.lent.size() >= window) return {Code::kAgain, "full"};
    Lent lent;
    lent.sent.peer = peer;
    lent.sent.header = wire::decode_header(message.header).value();
    lent.sent.landing = message.landing;
    lent.sent.landing_offset = message.landing_offset;
    lent.payload = message.payload;
    if (message.payload_crc != nullptr) {
      if (!*message.payload_crc) *message.payload_crc = crc32c(0, message.payload);
      lent.payload_crc = *message.payload_crc;
    }
    lent.token = message.token;
    found->second.lent.push_back(std::move(lent));
    return Status::ok();
  }
  void land(PeerId, LandingTag, std::span<std::byte>) override {}
  void withdraw(PeerId, LandingTag) override {}
  std::size_t poll(TimeNs, std::span<Event> events) override {
    views_.clear();
    std::size_t count = 0;
    while (count < events.size() && !pending_.empty()) {
      events[count++] = pending_.front().event;
      if (pending_.front().views) views_.push_back(std::move(pending_.front().views));
      pending_.pop_front();
    }
    return count;
  }
  TimeNs next_deadline() const override { return kNever; }
  void set_self(const Hello& hello) override { told = hello; }
  void close(PeerId peer, Status reason) override {
    for (auto& views : views_) {
      std::fill(views->header.begin(), views->header.end(), std::byte{0xdd});
      std::fill(views->payload.begin(), views->payload.end(), std::byte{0xdd});
    }
    EXPECT_TRUE(peers_.contains(peer)) << "closed twice, or never there";
    closed[peer] = reason;
    end(peer, std::move(reason));
  }

 private:
  struct Views {
    std::vector<std::byte> header;
    std::vector<std::byte> payload;
  };
  struct Pending {
    Event event;
    std::unique_ptr<Views> views;
  };
  struct Lent {
    Sent sent;
    std::span<const std::byte> payload;
    std::optional<std::uint32_t> payload_crc;
    SendToken token = 0;
  };
  struct Peer {
    bool up = false;
    std::deque<Lent> lent;
  };

  PeerId new_peer() {
    const PeerId peer(++peer_count_);
    peers_[peer];
    return peer;
  }
  void give_back(PeerId peer, Peer& state) {
    for (Lent& lent : state.lent) {
      if (lent.payload_crc) {
        EXPECT_EQ(*lent.payload_crc, crc32c(0, lent.payload)) << "changed while it was lent";
      }
      lent.sent.payload.assign(lent.payload.begin(), lent.payload.end());
      sent_.push_back(std::move(lent.sent));
      Event event;
      event.kind = Event::Kind::kSent;
      event.peer = peer;
      event.token = lent.token;
      pending_.push_back({event, nullptr});
    }
    state.lent.clear();
  }
  void end(PeerId peer, Status why) {
    const auto found = peers_.find(peer);
    if (found == peers_.end()) return;
    give_back(peer, found->second);
    peers_.erase(found);
    Event event;
    event.kind = Event::Kind::kDown;
    event.peer = peer;
    event.why = std::move(why);
    pending_.push_back({event, nullptr});
  }

  std::uint32_t peer_count_ = 0;
  std::map<PeerId, Peer> peers_;
  std::deque<Pending> pending_;
  std::vector<std::unique_ptr<Views>> views_;  // of the last poll()
  std::vector<Sent> sent_;
};

}  // namespace byteps
