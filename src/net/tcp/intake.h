// Intake: what connections that are up bring, as events: the frames of their sockets and of their links, and which of
// their own were sent.
#pragma once

#include <cstddef>

#include "base/status.h"
#include "net/frame/events.h"
#include "net/frame/staging.h"
#include "net/tcp/closer.h"
#include "net/tcp/connection.h"
#include "net/tcp/linker.h"
#include "net/tcp/reactor.h"

namespace byteps::tcp {

class Intake {
 public:
  // batch_bytes: of each connection in a poll, about.
  Intake(std::size_t batch_bytes, Reactor& reactor, Linker& linker, Closer& closer,
         frame::Staging& staging)
      : batch_bytes_(batch_bytes),
        reactor_(reactor),
        linker_(linker),
        closer_(closer),
        staging_(staging) {}

  // Its turn. It may end in it.
  void serve(Connection& connection, frame::EventSpan& out);
  static void report_sent(Connection& connection, frame::EventSpan& out);

 private:
  void receive(Connection& connection, frame::EventSpan& out);
  // False: the connection has ended, or only its link has more.
  bool receive_link(Connection& connection, frame::EventSpan& out);
  void receive_socket(Connection& connection, frame::EventSpan& out);
  Status parse(Connection& connection, frame::EventSpan& out);

  const std::size_t batch_bytes_;
  Reactor& reactor_;
  Linker& linker_;
  Closer& closer_;
  frame::Staging& staging_;
};

}  // namespace byteps::tcp
