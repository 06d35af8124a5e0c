// Station: a transport as the network sees it: where it is, what it knows of names, and for each of its peers what
// waits to be given out, and what it has lent. The network writes, SimTransport reads.
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
#include "sim/connection.h"
#include "sim/flight.h"
#include "sim/network_options.h"

namespace byteps::sim {

struct SimTransportOptions {
  std::string name;                // for messages to people
  HostIndex host = 0;              // which machine's line it uses
  std::optional<Endpoint> listen;  // none: only connects
  Hello self;                      // said to those who connect
  Waiter* waiter = nullptr;        // woken when poll() will have something
};

// An event before poll() gives it out.
struct Ready {
  Event::Kind kind = Event::Kind::kUp;
  Hello hello;               // kUp
  Flight* flight = nullptr;  // kReceived
  bool repeated = false;     // kReceived: the flight is the receiver's own
  SendToken token = 0;       // kSent
  std::size_t charged_bytes = 0;
  Status why;  // kDown
};

class Station {
 public:
  struct Lent {
    SendToken token;
    std::span<const std::byte> payload;
  };
  // An end of a connection.
  struct Peer {
    ConnectionId connection = 0;
    int side = 0;
    std::deque<Ready> ready;
    std::deque<Lent> lent;  // accepted, kSent not given out
    bool up = false;        // kUp was given out
  };

  explicit Station(SimTransportOptions options);
  Station(const Station&) = delete;
  Station& operator=(const Station&) = delete;

  std::uint32_t number() const { return number_; }  // see Stations::attach()
  void set_number(std::uint32_t number) { number_ = number; }
  const std::string& name() const { return options_.name; }
  HostIndex host() const { return options_.host; }
  const std::optional<Endpoint>& listens_at() const { return options_.listen; }
  const Hello& self() const { return options_.self; }
  void set_self(const Hello& self) { options_.self = self; }
  NameBook& names() { return names_; }

  // ---- peers
  PeerId add_peer(ConnectionId connection, int side);
  // Null: kDown was given out, or there never was one.
  Peer* find(PeerId id);
  const Peer* find(PeerId id) const;
  void forget(PeerId id) { peers_.erase(id); }
  const std::map<PeerId, Peer>& peers() const { return peers_; }

  // ---- what waits to be given out
  void queue(PeerId id, Ready ready);
  // How many peers have something.
  std::size_t ready_count() const { return ready_peers_.size(); }
  // Takes the first that waits of the peer whose turn is `turn`, below ready_count(); then it is its turn last.
  struct Taken {
    PeerId id;
    Ready ready;
  };
  Taken take(std::size_t turn);
  // The owner closes: it hears no more of this peer but the end. Returns what it would have received.
  std::vector<Ready> drop_received(PeerId id);

  // Why this memory is not its owner's alone: a payload of it is lent; empty if it is.
  std::string claim_on(std::span<const std::byte> memory) const;
  std::size_t lent_payloads() const;

 private:
  SimTransportOptions options_;  // constant but for self
  std::uint32_t number_ = 0;
  NameBook names_;
  std::uint32_t last_peer_ = 0;
  std::map<PeerId, Peer> peers_;
  std::deque<PeerId> ready_peers_;  // each with something in `ready`
};

// The stations of a network that live.
class Stations {
 public:
  // Numbers them in the order attached, from 1.
  void attach(Station& station);
  void detach(const Station& station) { by_number_.erase(station.number()); }

  // Null: it has gone.
  Station* find(std::uint32_t number) const;
  // The first that listens there; null.
  Station* listener(const Endpoint& endpoint) const;
  bool empty() const { return by_number_.empty(); }
  // Payloads accepted and not given back.
  std::size_t lent_payloads() const;

 private:
  std::map<std::uint32_t, Station*> by_number_;
  std::uint32_t last_number_ = 0;
};

}  // namespace byteps::sim
