// A Transport whose other side is a script: a test, a fuzz target, or a Switchboard (switchboard.h), which connects
// several of them. It keeps T1 to T7 of net/transport.h towards its owner, as badly for the owner as they allow, and
// holds the owner to its side of them:
//  - each view is memory of its own, of the exact size, spoilt and freed by the next poll() or close();
//  - lent payloads are read when they come back, so that one that was freed or changed too early is found.
// tests/conformance holds it to the contract as it does all the others.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernels/crc32c.h"
#include "net/transport.h"
#include "net/wire.h"

namespace byteps {

class ScriptedTransport : public Transport {
 public:
  struct Attempt {
    PeerId peer;
    Endpoint to;
    Hello hello;
  };
  struct Sent {
    PeerId peer;
    wire::Header header;           // unless `forgiving`, it can be read
    std::vector<std::byte> bytes;  // the same as it was sent
    std::vector<std::byte> payload;
    bool bulk = false;
  };
  struct Lent {
    SendToken token = 0;
    std::span<const std::byte> payload;
    std::uint32_t crc = 0;
  };
  struct Peer {
    Endpoint to;              // connections that the owner began
    bool is_up = false;       // the owner may not know it yet
    bool is_closing = false;  // by the owner, while `closes_late`
    std::deque<Lent> lent;
  };

  explicit ScriptedTransport(std::size_t window_messages = SIZE_MAX) : window(window_messages) {}

  // ---- what the owner did; the script may take it out

  std::map<PeerId, Peer> peers;  // those that are not down
  std::vector<Attempt> attempts;
  std::deque<Sent> sent;
  std::size_t sent_count = 0;  // ever
  std::map<PeerId, Status> closed;
  std::size_t vain_closes = 0;  // of strangers, or of what it had closed
  std::optional<Hello> told;    // what it says of itself to those who connect

  // ---- how the network is

  std::size_t window;  // messages lent per peer, then kAgain
  std::size_t events_per_poll = SIZE_MAX;
  std::size_t capacity = 0;              // of the way to each peer
  std::map<std::string, Hello> answers;  // who is at which endpoint, for up(peer)
  bool gives_back_at_once = false;       // else when told, and at the end of the connection
  bool deliver_after_close = true;       // what was on the way when the owner closed still arrives
  bool closes_late = false;      // a connection that the owner closes ends when the script ends it
  bool refuse_attempts = false;  // connect() finds no descriptor
  bool is_slow_to_name = false;  // attempts wait for a name server
  int no_memory = 0;             // so many polls throw
  bool answers_overwrite_pushes = false;  // so that what is lent may change
  bool forgiving =
      false;  // of what the contract allows and no owner of ours does: words to strangers, odd headers

  // ---- the script's side

  PeerId arrive(const Hello& hello) {
    const PeerId peer = new_peer({});
    up(peer, hello);
    return peer;
  }
  // Somebody begins to connect here: up() follows.
  PeerId attempt() { return new_peer({}); }
  // An attempt succeeds, unless it has ended.
  void up(PeerId peer, const Hello& hello) {
    const auto found = peers.find(peer);
    if (found == peers.end() || found->second.is_closing) return;
    CHECK(!found->second.is_up) << "a mistake of the script";
    found->second.is_up = true;
    add(Event::Kind::kUp, peer).hello = hello;
  }
  void up(PeerId peer) {
    if (peers.contains(peer)) up(peer, answers.at(peers.at(peer).to.text()));
  }
  void say(PeerId peer, std::span<const std::byte> header, std::span<const std::byte> payload = {},
           bool is_shared = false) {
    if (!peers.contains(peer) || !peers.at(peer).is_up) return;
    add(Event::Kind::kReceived, peer);
    Pending& pending = pending_.back();
    const auto head = header.first(std::min(header.size(), kHeaderBytesMax));
    pending.header.assign(head.begin(), head.end());
    pending.payload.assign(payload.begin(), payload.end());
    pending.event.is_shared = is_shared;
  }
  void say(PeerId peer, const wire::Header& header, std::span<const std::byte> payload = {},
           bool is_shared = false) {
    say(peer, std::span<const std::byte>(wire::encode(header)), payload, is_shared);
  }
  void end(PeerId peer, Status why = {Code::kDisconnected, "gone"}) {
    const auto found = peers.find(peer);
    if (found == peers.end()) return;
    give_back(peer, found->second, SIZE_MAX);
    peers.erase(found);
    add(Event::Kind::kDown, peer).why = std::move(why);
  }
  void give_back(PeerId peer, std::size_t count_max) {
    if (peers.contains(peer)) give_back(peer, peers.at(peer), count_max);
  }
  void give_back_all() {
    for (auto& [peer, state] : peers) give_back(peer, state, SIZE_MAX);
  }
  std::deque<Sent> take_sent() {
    give_back_all();
    return std::exchange(sent, {});
  }
  // The oldest message of this kind that was not taken yet.
  std::optional<Sent> take(wire::Kind kind) {
    const auto is_it = [kind](const Sent& message) { return message.header.kind == kind; };
    const auto found = std::ranges::find_if(sent, is_it);
    if (found == sent.end()) return std::nullopt;
    Sent message = std::move(*found);
    sent.erase(found);
    return message;
  }
  // The newest attempt at this place.
  PeerId peer_at(const Endpoint& place) const {
    const auto is_it = [&](const Attempt& attempt) { return attempt.to == place; };
    const auto found = std::find_if(attempts.rbegin(), attempts.rend(), is_it);
    CHECK(found != attempts.rend()) << "nobody connects to " << place.text();
    return found->peer;
  }
  // Payloads that the owner does not know to be its own again.
  std::size_t lent_count() const { return sent_count - returned_count_; }
  bool quiet() const { return pending_.empty(); }

  // ---- Transport

  Result<PeerId> connect(const Endpoint& to, const Hello& self) override {
    if (to.host.empty()) return Status(Code::kInvalidArgument, "an endpoint without a host");
    if (refuse_attempts) return Status(Code::kSystem, "no descriptor is free");
    const PeerId peer = new_peer(to);
    known_[peer] = {};
    attempts.push_back({peer, to, self});
    return peer;
  }
  bool is_naming(PeerId peer) const override { return is_slow_to_name && !knows_up(peer); }
  std::size_t capacity_bytes(PeerId /*peer*/) const override { return capacity; }
  Status send(PeerId peer, const Outgoing& message) override {
    const auto found = peers.find(peer);
    if (found == peers.end() || found->second.is_closing || !knows_up(peer)) {
      return {Code::kDisconnected, "no such peer"};
    }
    if (found->second.lent.size() >= window) return {Code::kAgain, "full"};
    CHECK_LE(message.header.size(), kHeaderBytesMax);
    CHECK_LE(message.payload.size(), kPayloadBytesMax);
    const Result<wire::Header> header = wire::decode_header(message.header);
    CHECK(forgiving || header.is_ok()) << "the owner sends a header that nobody can read";
    const std::uint32_t crc = crc32c(0, message.payload);
    if (message.payload_crc != nullptr) {
      if (!*message.payload_crc) *message.payload_crc = crc;
      CHECK_EQ(**message.payload_crc, crc) << "changed since it was sent to another";
    }
    sent.push_back({peer,
                    header.is_ok() ? header.value() : wire::Header{},
                    {message.header.begin(), message.header.end()},
                    {message.payload.begin(), message.payload.end()},
                    message.bulk});
    ++sent_count;
    found->second.lent.push_back({message.token, message.payload, crc});
    if (gives_back_at_once) give_back(peer, found->second, 1);
    return Status::ok();
  }
  std::size_t poll(TimeNs /*now*/, std::span<Event> events) override {
    spoil_views();
    if (no_memory > 0) {
      --no_memory;
      throw std::bad_alloc();
    }
    const std::size_t count_max =
        std::min(events.size(), std::max<std::size_t>(1, events_per_poll));
    std::size_t count = 0;
    for (; count < count_max && !pending_.empty(); ++count) {
      shown_.push_back(std::move(pending_.front()));
      pending_.pop_front();
      tell(shown_.back());
      events[count] = shown_.back().event;
    }
    return count;
  }
  TimeNs next_deadline() const override { return kNever; }
  void set_self(const Hello& hello) override { told = hello; }
  void close(PeerId peer, Status reason) override {
    spoil_views();
    const auto known = known_.find(peer);
    const bool is_open = known != known_.end() && !known->second.is_closed;
    if (!is_open) {
      ++vain_closes;
      return;
    }
    known->second.is_closed = true;
    closed.emplace(peer, reason);
    const auto found = peers.find(peer);
    if (found == peers.end()) return;  // down, and the owner will hear of it
    found->second.is_closing = true;
    if (!known->second.is_up || !deliver_after_close) {
      std::erase_if(pending_, [&](const Pending& pending) {
        const Event::Kind kind = pending.event.kind;
        return pending.event.peer == peer &&
               (kind == Event::Kind::kReceived || kind == Event::Kind::kUp);
      });
    }
    if (!closes_late) end(peer, std::move(reason));
  }

 private:
  struct Pending {
    Event event;
    std::vector<std::byte> header;
    std::vector<std::byte> payload;
  };
  // What the owner knows of a peer, from connect() or kUp to kDown.
  struct Known {
    bool is_up = false;
    bool is_closed = false;
  };

  PeerId new_peer(const Endpoint& to) {
    const PeerId peer(++peer_count_);
    peers[peer].to = to;
    return peer;
  }
  bool knows_up(PeerId peer) const {
    const auto known = known_.find(peer);
    return known != known_.end() && known->second.is_up;
  }
  Event& add(Event::Kind kind, PeerId peer) {
    Event& event = pending_.emplace_back().event;
    event.kind = kind;
    event.peer = peer;
    return event;
  }
  // The owner learns of it now.
  void tell(Pending& pending) {
    Event& event = pending.event;
    if (event.kind == Event::Kind::kUp) known_[event.peer].is_up = true;
    if (event.kind == Event::Kind::kDown) known_.erase(event.peer);
    if (event.kind == Event::Kind::kSent) ++returned_count_;
    event.header = pending.header;
    event.payload = pending.payload;
  }
  void spoil_views() {
    for (Pending& pending : shown_) {
      std::ranges::fill(pending.header, std::byte{0xdd});
      std::ranges::fill(pending.payload, std::byte{0xdd});
      asm volatile("" ::: "memory");  // so that it is done, although nobody may look at it
    }
    shown_.clear();
  }
  void give_back(PeerId peer, Peer& state, std::size_t count_max) {
    for (; count_max > 0 && !state.lent.empty(); --count_max) {
      const Lent lent = state.lent.front();
      state.lent.pop_front();
      const bool is_the_same = crc32c(0, lent.payload) == lent.crc;
      CHECK(is_the_same || answers_overwrite_pushes) << "changed while it was lent";
      add(Event::Kind::kSent, peer).token = lent.token;
    }
  }

  std::uint32_t peer_count_ = 0;
  std::size_t returned_count_ = 0;
  std::map<PeerId, Known> known_;
  std::deque<Pending> pending_;
  std::deque<Pending> shown_;  // of the last poll()
};

}  // namespace byteps
