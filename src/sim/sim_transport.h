// SimTransport: the Transport on a SimNetwork. It keeps T1 to T7 (tests/conformance), unless the network was told to
// repeat messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "loop/actor.h"
#include "net/name_book.h"
#include "net/transport.h"
#include "sim/network.h"

namespace byteps::sim {

struct SimTransportOptions {
  std::string name;                // for messages to people
  HostIndex host = 0;              // which machine's line it uses
  std::optional<Endpoint> listen;  // none: only connects
  Hello self;                      // said to those who connect
  Waiter* waiter = nullptr;        // woken when poll() will have something
};

class SimTransport final : public Transport {
 public:
  // The network must outlive the transport.
  SimTransport(SimNetwork& network, SimTransportOptions options);
  ~SimTransport() override;  // die()
  SimTransport(const SimTransport&) = delete;
  SimTransport& operator=(const SimTransport&) = delete;

  // The process dies: lent payloads are the lender's again, the peers find out as if the connections had been closed.
  // No other function may be called any more. Whoever lent memory calls it before that memory goes.
  void die();

  Result<PeerId> connect(const Endpoint& to, const Hello& self) override;
  bool is_naming(PeerId peer) const override;
  Status send(PeerId peer, const Outgoing& message) override;
  void land(PeerId peer, LandingTag tag, std::span<std::byte> destination) override;
  void withdraw(PeerId peer, LandingTag tag) override;
  std::size_t poll(TimeNs now, std::span<Event> events) override;
  TimeNs next_deadline() const override { return kNever; }  // the network wakes
  void set_self(const Hello& self) override { options_.self = self; }
  void close(PeerId peer, Status reason) override;

  // poll() would give something.
  bool is_ready() const { return !ready_peers_.empty(); }
  // Numbers the transports of a network in the order made, from 1.
  std::uint32_t number() const { return number_; }
  const std::string& name() const { return options_.name; }

  // Why this memory is not its owner's alone: a payload of it is lent, or it is promised as a landing; empty if it is.
  std::string claim_on(std::span<const std::byte> memory) const;
  std::size_t lent_payloads() const;

 private:
  friend class SimNetwork;
  using Flight = SimNetwork::Flight;

  struct Ready {
    Event::Kind kind = Event::Kind::kUp;
    Hello hello;               // kUp
    Flight* flight = nullptr;  // kReceived
    bool repeated = false;     // kReceived: the flight is the receiver's own
    SendToken token = 0;       // kSent
    std::size_t charged_bytes = 0;
    Status why;  // kDown
  };
  struct Lent {
    SendToken token;
    std::span<const std::byte> payload;
  };
  struct Peer {
    SimNetwork::ConnectionId connection = 0;
    int side = 0;
    std::deque<Ready> ready;
    std::map<LandingTag, std::span<std::byte>> landings;
    std::deque<Lent> lent;  // accepted, kSent not given out
    bool up = false;        // kUp was given out
  };

  // For SimNetwork.
  PeerId add_peer(SimNetwork::ConnectionId connection, int side);
  void queue(PeerId peer, Ready ready);
  void drop_received(PeerId peer);
  // Where the payload goes; nothing when there is no landing for it.
  std::optional<std::span<std::byte>> landing_of(PeerId peer, const Flight& flight);

  // False: there is no event after all.
  bool give_out(PeerId id, Peer& peer, Ready& ready, Event& event);
  bool give_received(Peer& peer, PeerId id, Ready& ready, Event& event);
  bool tamper(const Event& event);
  void end_views();

  SimNetwork& network_;
  SimTransportOptions options_;  // constant but for self, see set_self()
  std::uint32_t number_ = 0;
  bool is_dead_ = false;
  NameBook names_;
  std::uint32_t last_peer_ = 0;
  std::map<PeerId, Peer> peers_;
  std::deque<PeerId> ready_peers_;             // each with something in `ready`
  std::vector<std::vector<std::byte>> views_;  // headers and payloads given out by the last poll
  std::size_t views_used_ = 0;
};

}  // namespace byteps::sim
