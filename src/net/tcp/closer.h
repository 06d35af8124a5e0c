// Closer: how connections end. Their last bytes, their links, and what the other side is told; kSent and kDown are
// given out by their later turns.
#pragma once

#include "base/status.h"
#include "net/frame/staging.h"
#include "net/quiet_log.h"
#include "net/tcp/connections.h"
#include "net/tcp/linker.h"
#include "net/tcp/options.h"
#include "net/tcp/reactor.h"
#include "net/tcp/strangers.h"

namespace byteps::tcp {

class Closer {
 public:
  Closer(const TcpOptions& options, Reactor& reactor, Connections& connections,
         Strangers& strangers, Linker& linker, frame::Staging& staging, QuietLog& log)
      : options_(options),
        reactor_(reactor),
        connections_(connections),
        strangers_(strangers),
        linker_(linker),
        staging_(staging),
        log_(log) {}

  // Graceful: its tail may still get out.
  void end(Connection& connection, Status why, bool graceful);
  // The other side has said what it must not.
  void end_malformed(Connection& connection, const Status& why);
  // The link has failed; the socket may know nothing of it, and the other side is told.
  void end_of_link(Connection& connection, const Status& why);
  // The other side is gone; what it has left in the link is still to be received.
  void end_of_socket(Connection& connection, Status reason);
  // Destroys it, without a word.
  void forget(Connection& connection);

  // The socket goes on without its connection until the other side has closed too, or for a limited time.
  void linger(Connection& connection);
  void serve_lingering(Connection& connection);

 private:
  const TcpOptions& options_;
  Reactor& reactor_;
  Connections& connections_;
  Strangers& strangers_;
  Linker& linker_;
  frame::Staging& staging_;
  QuietLog& log_;
};

}  // namespace byteps::tcp
