// A Transport whose other side is a fuzz target. It keeps T1 to T7 of net/transport.h towards its owner, as
// badly for the owner as they allow, and holds the owner to its side of them:
//  - each view is memory of its own, of the exact size, freed by the next poll(), close(), land() or withdraw();
//  - a landing is written when its message is given out, and in between by scribble(); never after withdraw();
//  - lent payloads are read when they come back, so that one that was freed too early is found.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "net/transport.h"
#include "net/wire.h"

namespace byteps::fuzz {

class ScriptedTransport final : public Transport {
 public:
  struct Sent {
    PeerId peer;
    wire::Header header;
    std::vector<std::byte> payload;
    LandingTag landing = kNoLanding;
    std::uint64_t landing_offset = 0;
  };
  struct Peer {
    Endpoint to;  // connections that the owner began
    Hello hello;  // what the owner said, or what we said
    bool up = false;
    std::deque<std::pair<SendToken, std::span<const std::byte>>> lent;
    std::map<LandingTag, std::span<std::byte>> landings;
  };

  // ---- the target's side
  std::map<PeerId, Peer> peers;  // those that are not down
  std::deque<Sent> sent;         // what the owner said, in order; taken by the target
  std::size_t sent_count = 0;    // ever
  std::size_t window = 64;       // messages lent per peer, then kAgain
  std::size_t events_per_poll = 64;
  bool deliver_after_close = false;  // what was on the way when the owner closed still arrives

  PeerId arrive(const Hello& hello) {
    const PeerId peer = new_peer();
    up(peer, hello);
    return peer;
  }
  void up(PeerId peer, const Hello& hello) {
    Peer& state = peers.at(peer);
    CHECK(!state.up) << "a mistake of the target";
    state.up = true;
    state.hello = hello;
    Pending pending;
    pending.event.kind = Event::Kind::kUp;
    pending.event.peer = peer;
    pending.event.hello = hello;
    pending_.push_back(std::move(pending));
  }
  void say(PeerId peer, std::span<const std::byte> header, std::span<const std::byte> payload,
           LandingTag landing = kNoLanding, std::uint64_t landing_offset = 0) {
    if (!peers.contains(peer) || !peers.at(peer).up) return;
    Pending pending;
    pending.event.kind = Event::Kind::kReceived;
    pending.event.peer = peer;
    pending.header = copy(header.first(std::min(header.size(), kHeaderBytesMax)));
    pending.payload = copy(payload);
    pending.landing = landing;
    pending.landing_offset = landing_offset;
    pending_.push_back(std::move(pending));
  }
  void say(PeerId peer, const wire::Header& header, std::span<const std::byte> payload = {},
           LandingTag landing = kNoLanding, std::uint64_t landing_offset = 0) {
    const wire::HeaderBytes bytes = wire::encode(header);
    say(peer, std::span<const std::byte>(bytes), payload, landing, landing_offset);
  }
  // Half of a payload comes and its message never does.
  void scribble(PeerId peer, std::size_t landing_index, std::byte value) {
    if (!peers.contains(peer) || peers.at(peer).landings.empty()) return;
    auto& landings = peers.at(peer).landings;
    const auto chosen =
        std::next(landings.begin(), static_cast<std::ptrdiff_t>(landing_index % landings.size()));
    std::fill(chosen->second.begin(), chosen->second.end(), value);
  }
  void end(PeerId peer, Status why) { end(peer, std::move(why), false); }
  void give_back(PeerId peer, std::size_t count_max = SIZE_MAX) {
    if (peers.contains(peer)) give_back(peer, peers.at(peer), count_max);
  }
  void give_back_all() {
    for (auto& [peer, state] : peers) give_back(peer, state, SIZE_MAX);
  }
  bool quiet() const { return pending_.empty(); }

  // ---- Transport
  Result<PeerId> connect(const Endpoint& to, const Hello& self) override {
    if (refuse_attempts) return Status(Code::kSystem, "no descriptor is free");
    const PeerId peer = new_peer();
    peers[peer].to = to;
    peers[peer].hello = self;
    return peer;
  }
  Status send(PeerId peer, const Outgoing& message) override {
    const auto found = peers.find(peer);
    // Up means for the owner: it has been told.
    if (found == peers.end() || !told_up_[peer]) return {Code::kDisconnected, "no such peer"};
    if (found->second.lent.size() >= window) return {Code::kAgain, "full"};
    CHECK_LE(message.header.size(), kHeaderBytesMax);
    CHECK_LE(message.payload.size(), kPayloadBytesMax);
    const Result<wire::Header> header = wire::decode_header(message.header);
    CHECK(header.is_ok()) << "the owner sends a header that nobody can read";
    found->second.lent.emplace_back(message.token, message.payload);
    sent.push_back({peer,
                    header.value(),
                    {message.payload.begin(), message.payload.end()},
                    message.landing,
                    message.landing_offset});
    ++sent_count;
    return Status::ok();
  }
  void land(PeerId peer, LandingTag tag, std::span<std::byte> destination) override {
    shown_.clear();
    CHECK(told_up_[peer]) << "a landing for nobody";
    CHECK_NE(tag, kNoLanding);
    if (!peers.contains(peer)) return;  // down, and the owner will hear of it
    CHECK(peers.at(peer).landings.emplace(tag, destination).second) << "landed twice";
  }
  void withdraw(PeerId peer, LandingTag tag) override {
    shown_.clear();
    const auto found = peers.find(peer);
    if (found == peers.end()) return;  // down, and the owner will hear of it
    CHECK_EQ(found->second.landings.erase(tag), 1U) << "withdrawn without a landing";
  }
  std::size_t poll(TimeNs, std::span<Event> events) override {
    shown_.clear();
    const std::size_t count_max =
        std::min(events.size(), std::max<std::size_t>(1, events_per_poll));
    std::size_t count = 0;
    while (count < count_max && !pending_.empty()) {
      Pending pending = std::move(pending_.front());
      pending_.pop_front();
      Event& event = pending.event;
      if (event.kind == Event::Kind::kUp) told_up_[event.peer] = true;
      if (event.kind == Event::Kind::kDown) told_up_[event.peer] = false;
      if (event.kind == Event::Kind::kReceived) place(pending);
      events[count++] = event;
      shown_.push_back(std::move(pending));
    }
    return count;
  }
  TimeNs next_deadline() const override { return kNever; }
  void set_self(const Hello&) override {}  // the script does not look at it
  void close(PeerId peer, Status reason) override {
    shown_.clear();
    end(peer, std::move(reason), true);
  }

  bool refuse_attempts = false;

 private:
  struct Block {
    std::unique_ptr<std::byte[]> memory;
    std::size_t bytes = 0;
    std::span<std::byte> span() const { return {memory.get(), bytes}; }
  };
  struct Pending {
    Event event;
    Block header;
    Block payload;
    LandingTag landing = kNoLanding;
    std::uint64_t landing_offset = 0;
  };

  static Block copy(std::span<const std::byte> bytes) {
    Block block;
    if (bytes.empty()) return block;
    block.memory.reset(new std::byte[bytes.size()]);
    block.bytes = bytes.size();
    std::memcpy(block.memory.get(), bytes.data(), bytes.size());
    return block;
  }
  PeerId new_peer() {
    const PeerId peer(++peer_count_);
    peers[peer];
    return peer;
  }
  // Where the payload goes, now that the message is given out.
  void place(Pending& pending) {
    Event& event = pending.event;
    event.header = pending.header.span();
    event.payload = pending.payload.span();
    const auto found = peers.find(event.peer);
    if (found == peers.end() || pending.payload.bytes == 0) return;
    const auto landing = found->second.landings.find(pending.landing);
    if (landing == found->second.landings.end()) return;
    const std::span<std::byte> whole = landing->second;
    if (pending.landing_offset > whole.size()) return;
    if (pending.payload.bytes > whole.size() - pending.landing_offset) return;
    const auto destination = whole.subspan(pending.landing_offset, pending.payload.bytes);
    std::memcpy(destination.data(), pending.payload.memory.get(), pending.payload.bytes);
    event.payload = destination;
    event.landed = true;
  }
  void give_back(PeerId peer, Peer& state, std::size_t count_max) {
    for (; count_max > 0 && !state.lent.empty(); --count_max) {
      const auto [token, payload] = state.lent.front();
      state.lent.pop_front();
      std::size_t sum = 0;
      for (const std::byte byte : payload) sum += static_cast<std::size_t>(byte);
      sum_of_lent_ = sum_of_lent_ + sum;
      Pending pending;
      pending.event.kind = Event::Kind::kSent;
      pending.event.peer = peer;
      pending.event.token = token;
      pending_.push_back(std::move(pending));
    }
  }
  void end(PeerId peer, Status why, bool by_owner) {
    const auto found = peers.find(peer);
    if (found == peers.end()) return;
    if (by_owner && !deliver_after_close) {
      std::erase_if(pending_, [&](const Pending& pending) {
        return pending.event.peer == peer && (pending.event.kind == Event::Kind::kReceived ||
                                              pending.event.kind == Event::Kind::kUp);
      });
    }
    give_back(peer, found->second, SIZE_MAX);
    peers.erase(found);
    Pending down;
    down.event.kind = Event::Kind::kDown;
    down.event.peer = peer;
    down.event.why = std::move(why);
    pending_.push_back(std::move(down));
  }

  std::uint32_t peer_count_ = 0;
  std::map<PeerId, bool> told_up_;
  std::deque<Pending> pending_;
  std::vector<Pending> shown_;  // of the last poll()
  volatile std::size_t sum_of_lent_ = 0;
};

}  // namespace byteps::fuzz
