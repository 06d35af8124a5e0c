// Greeter: takes connections through the handshake (handshake.h), on either side.
#pragma once

#include <cstddef>
#include <span>

#include "base/status.h"
#include "net/auth.h"
#include "net/endpoint.h"
#include "net/quiet_log.h"
#include "net/tcp/closer.h"
#include "net/tcp/connections.h"
#include "net/tcp/listener.h"
#include "net/tcp/options.h"
#include "net/tcp/reactor.h"
#include "net/tcp/strangers.h"

namespace byteps::tcp {

class Greeter {
 public:
  Greeter(const TcpOptions& options, Reactor& reactor, Connections& connections,
          Strangers& strangers, Listener& listener, Closer& closer, QuietLog& log)
      : options_(options),
        reactor_(reactor),
        connections_(connections),
        strangers_(strangers),
        listener_(listener),
        closer_(closer),
        log_(log) {}

  // The connecting side's first words: its socket is connected.
  Status greet(Connection& connection);
  // As far as the bytes reach that are here. True: it is up now. An error: one that we began has failed. One that was
  // accepted and fails has ended when this returns.
  Result<bool> advance(Connection& connection);

 private:
  Status begin(Connection& connection, auth::Side side, const Hello& self);
  void say(Connection& connection, std::span<const std::byte> record);
  Result<bool> take_record(Connection& connection);
  void finish(Connection& connection);
  void hold_to_card(const Connection& connection);
  Status fail(Connection& connection, const Status& why);

  const TcpOptions& options_;
  Reactor& reactor_;
  Connections& connections_;
  Strangers& strangers_;
  Listener& listener_;
  Closer& closer_;
  QuietLog& log_;
};

}  // namespace byteps::tcp
