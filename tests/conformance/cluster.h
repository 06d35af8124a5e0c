// Turns the nodes of a World and writes down what each of them saw.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "tests/conformance/transport_factory.h"

namespace byteps::conformance {

using Bytes = std::vector<std::byte>;
using Kind = Event::Kind;

// Bytes that differ for each number and from place to place.
inline Bytes pattern(std::uint64_t number, std::size_t bytes) {
  Bytes out(bytes);
  std::uint64_t word = 0;
  for (std::size_t i = 0; i < bytes; ++i) {
    if (i % 8 == 0) word = stable_mix(number * 0x10001 + i);
    out[i] = static_cast<std::byte>(word >> (8 * (i % 8)));
  }
  return out;
}

inline Bytes bytes_of(std::span<const std::byte> view) {
  return {view.begin(), view.end()};
}

// An event with its views copied.
struct Seen {
  Kind kind;
  PeerId peer;
  Hello hello;
  Bytes header;
  Bytes payload;
  bool is_shared;
  SendToken token;
  Status why;
};

class Cluster {
 public:
  explicit Cluster(World& world) : world_(world) {}

  Node listen(const Hello& self) { return adopt(world_.make_listening(self)); }
  Node make() { return adopt(world_.make_connecting()); }
  Transport& at(Node node) { return world_.transport(node); }
  World& world() { return world_; }

  void kill(Node node) {
    world_.kill(node);
    std::erase(living_, node);
  }

  // How many events a poll() may give.
  void set_span(std::size_t events_max) { events_.resize(events_max); }

  // One poll of every living node; lets time pass if none had anything.
  void turn() {
    bool quiet = true;
    for (const Node node : living_) quiet &= poll(node) == 0;
    if (quiet) world_.idle();
  }

  std::size_t poll(Node node) {
    const std::size_t count = at(node).poll(world_.now(), events_);
    for (std::size_t i = 0; i < count; ++i) {
      const Event& e = events_[i];
      seen_[node].push_back({e.kind, e.peer, e.hello, bytes_of(e.header), bytes_of(e.payload),
                             e.is_shared, e.token, e.why});
    }
    return count;
  }

  // Turns until `done`; false if that takes too long.
  bool until(const std::function<bool()>& done) {
    for (int rounds = 0; rounds < 20'000; ++rounds) {
      if (done()) return true;
      turn();
    }
    return done();
  }
  void turns(int count) {
    for (int i = 0; i < count; ++i) turn();
  }

  const std::vector<Seen>& seen(Node node) { return seen_[node]; }
  std::vector<Seen> seen(Node node, Kind kind) {
    std::vector<Seen> out;
    std::copy_if(seen_[node].begin(), seen_[node].end(), std::back_inserter(out),
                 [&](const Seen& event) { return event.kind == kind; });
    return out;
  }
  std::vector<Seen> seen(Node node, Kind kind, PeerId peer) {
    std::vector<Seen> out = seen(node, kind);
    std::erase_if(out, [&](const Seen& event) { return event.peer != peer; });
    return out;
  }
  std::size_t count(Node node, Kind kind) {
    const auto& events = seen_[node];
    return static_cast<std::size_t>(std::count_if(
        events.begin(), events.end(), [&](const Seen& event) { return event.kind == kind; }));
  }

  std::size_t count(Node node, Kind kind, PeerId peer) {
    const auto& events = seen_[node];
    return static_cast<std::size_t>(
        std::count_if(events.begin(), events.end(),
                      [&](const Seen& event) { return event.kind == kind && event.peer == peer; }));
  }

  // A connection from one node to another; the PeerId at each of them. Both have seen kUp.
  struct Link {
    Node from = 0;
    PeerId out;
    Node to = 0;
    PeerId in;
  };
  Link link(Node from, Node to, const Hello& hello) {
    const std::size_t ups_before = count(to, Kind::kUp);
    Link link{from, at(from).connect(world_.address(to), hello).value(), to, PeerId()};
    const bool up = until(
        [&] { return count(from, Kind::kUp, link.out) > 0 && count(to, Kind::kUp) > ups_before; });
    if (up) link.in = seen(to, Kind::kUp).back().peer;
    return link;
  }

 private:
  Node adopt(Node node) {
    living_.push_back(node);
    return node;
  }

  World& world_;
  std::vector<Node> living_;
  std::vector<Event> events_ = std::vector<Event>(16);
  std::map<Node, std::vector<Seen>> seen_;
};

}  // namespace byteps::conformance
