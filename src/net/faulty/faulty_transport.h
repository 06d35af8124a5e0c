// FaultyTransport: wraps a Transport and makes it misbehave within the contract, under a seed.
//
// What the contract allows and a good network seldom does: windows that are full for no reason,
// connections that end at any moment and take with them what was under way, events that come late. With
// duplicates off it keeps T1 to T7 of net/transport.h itself, and passes tests/conformance.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "base/prng.h"
#include "net/transport.h"

namespace byteps {

struct Faults {
  // Probabilities. send() says kAgain, though only while a kSent of that peer is still to come: the
  // caller waits for it.
  double again = 0;
  // An event waits for up to delay_polls_max later polls, and all later ones of its peer behind it.
  double delay = 0;
  std::uint32_t delay_polls_max = 8;
  // Per poll: one of the connections that are up is closed; received messages that were delayed are lost.
  double close = 0;
  // Breaks T1 on purpose: a received message comes once more. For testing that repeats do no harm.
  double duplicate = 0;
};

class FaultyTransport final : public Transport {
 public:
  FaultyTransport(std::unique_ptr<Transport> inner, Faults faults, Prng prng)
      : inner_(std::move(inner)), faults_(faults), prng_(prng) {}

  Result<PeerId> connect(const Endpoint& to, const Hello& self) override;
  bool is_naming(PeerId peer) const override { return inner_->is_naming(peer); }
  Status send(PeerId peer, const Outgoing& message) override;
  std::size_t capacity_bytes(PeerId peer) const override { return inner_->capacity_bytes(peer); }
  TimeNs round_trip_ns(PeerId peer) const override { return inner_->round_trip_ns(peer); }
  Ways ways() const override { return inner_->ways(); }
  Ways outbound_ways() const override { return inner_->outbound_ways(); }
  std::shared_ptr<BufferSource> payload_source() override { return inner_->payload_source(); }
  std::size_t poll(TimeNs now, std::span<Event> events) override;
  // At once while events are delayed, so that they come out though no input comes.
  TimeNs next_deadline() const override;
  void set_self(const Hello& self) override { inner_->set_self(self); }
  void expect_peers(std::size_t count) override { inner_->expect_peers(count); }
  void close(PeerId peer, Status reason) override;

  // What happens from now on; to end all faults before a run is checked.
  void set_faults(const Faults& faults) { faults_ = faults; }
  Transport& inner() { return *inner_; }

 private:
  // An event of the inner transport, kept. Views are copied, because the inner ones end with its next poll.
  struct Kept {
    Event event;
    std::vector<std::byte> header;
    std::vector<std::byte> payload;
    std::uint64_t due_poll = 0;
  };
  struct Peer {
    std::deque<Kept> kept;
    std::uint64_t accepted = 0;  // sends without kSent given
    bool is_up = false;          // and not closed
  };

  void keep_inner_events(TimeNs now, std::size_t events_max);
  void keep(const Event& event, Peer& peer);
  void close_one();
  void end(PeerId id, Peer& peer, Status reason);

  const std::unique_ptr<Transport> inner_;
  Faults faults_;
  Prng prng_;
  std::map<PeerId, Peer> peers_;
  std::vector<Event> inner_events_;
  std::vector<Kept> given_;  // by the last poll: the memory of its views
  PeerId first_;             // whose turn it is to give out events
  std::uint64_t poll_count_ = 0;
  std::size_t kept_count_ = 0;
  TimeNs now_ = 0;
};

}  // namespace byteps
