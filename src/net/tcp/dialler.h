// Dialler: begins connections: looks their host's name up, tries its addresses one after the other, and has them say
// who we are when a socket is connected.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "loop/actor.h"
#include "net/endpoint.h"
#include "net/name_book.h"
#include "net/tcp/closer.h"
#include "net/tcp/connections.h"
#include "net/tcp/greeter.h"
#include "net/tcp/options.h"
#include "net/tcp/reactor.h"
#include "net/tcp/resolver.h"

namespace byteps::tcp {

class Dialler {
 public:
  // `waiter` is woken by names that were found.
  Dialler(const TcpOptions& options, Reactor& reactor, Connections& connections, Greeter& greeter,
          Closer& closer, Waiter& waiter)
      : options_(options),
        reactor_(reactor),
        connections_(connections),
        greeter_(greeter),
        closer_(closer),
        waiter_(waiter) {}

  // As Transport::connect().
  Result<PeerId> connect(const Endpoint& to, const Hello& self);
  // An attempt has come to nothing, in whatever state it is.
  void fail(Connection& connection, Status why);

  // What the look-ups have found since the last poll.
  void hear_names();
  // connect() is not told the time, so an attempt's limit counts from the poll after it.
  void stamp_deadlines();
  bool wants_poll() const { return !unstamped_.empty(); }
  // Its socket may be connected.
  void finish_connect(Connection& connection);

  // Nobody is woken any more.
  void stop() { resolver_.reset(); }

 private:
  void connect_by_name(Connection& connection);
  void name(Connection& connection, const NameBook::Addresses& texts);
  Status may_connect_to(const Connection& connection) const;
  Status start_connect(Connection& connection);
  Status leave_by_card(Connection& connection);
  void try_next_address(Connection& connection, Status why);

  const TcpOptions& options_;
  Reactor& reactor_;
  Connections& connections_;
  Greeter& greeter_;
  Closer& closer_;
  Waiter& waiter_;
  NameBook names_;
  std::unique_ptr<Resolver> resolver_;  // null: no name was looked up yet
  std::map<std::string, std::vector<std::uint64_t>>
      awaiting_;                          // serials, by the name they wait for
  std::vector<std::uint64_t> unstamped_;  // serials: their deadline starts with the next poll
};

}  // namespace byteps::tcp
