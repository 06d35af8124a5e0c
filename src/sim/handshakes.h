// Handshakes: how connections come about: the host's name is looked up, which may take long; then an attempt flies to
// the listener, again and again where nobody answers; it lets the connection in or refuses it, and the answer flies
// back.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/status.h"
#include "net/transport.h"
#include "sim/connection.h"
#include "sim/endings.h"
#include "sim/medium.h"
#include "sim/station.h"

namespace byteps::sim {

class Handshakes {
 public:
  Handshakes(Medium& medium, Endings& endings) : medium_(medium), endings_(endings) {}

  // As Transport::connect() and is_naming().
  Result<PeerId> connect(Station& from, const Endpoint& to, const Hello& self);
  bool is_naming(ConnectionId id) const;

  // A late look-up has its answer: who waits for it begins.
  void on_named(std::uint64_t look_up);
  // The attempt is at the listener.
  void on_syn(Connection& connection);
  // The answer is at the one who connects: yes, no, or none in time.
  void on_hello(Connection& connection);
  void on_refused(Connection& connection);
  void on_timeout(Connection& connection);

 private:
  struct LookUp {
    std::uint32_t number;  // of the station that asks
    std::string host;
  };

  void look_up(Connection& connection, Station& from);
  void begin(Connection& connection);
  void try_again(const Connection& connection);
  void refuse(Connection& connection, Status why);
  void let_in(Connection& connection, Station& listener);

  Medium& medium_;
  Endings& endings_;
  std::map<std::uint64_t, LookUp> look_ups_;  // late ones, under way, by number, counted from 1
};

}  // namespace byteps::sim
