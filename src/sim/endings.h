// Endings: how each end of a connection learns that it is over: by the other end's word behind all messages, by a loss,
// because its owner closes it, or because its process dies. Whatever the cause, an end that is told so has its payloads
// back first, and hears no more messages.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "sim/connection.h"
#include "sim/lines.h"
#include "sim/medium.h"
#include "sim/payloads.h"
#include "sim/station.h"

namespace byteps::sim {

class Endings {
 public:
  Endings(Medium& medium, Lines& lines, Payloads& payloads)
      : medium_(medium), lines_(lines), payloads_(payloads) {}

  // The end `side` learns that the connection is over, if it has not yet. The other one is not told.
  void tell(Connection& connection, int side, const Status& why);
  // The end `side` says so to the other one, behind all it has sent.
  void say(Connection& connection, int side);

  // The owner of the end closes it.
  void close(ConnectionId id, int side, const Status& reason);
  // The owner's process dies, with all ends it has.
  void leave(Station& station);
  // The end's owner was given the last event of it, and does not know it any more.
  void forget(ConnectionId id, int side);
  // The end has been behind this wall for too long, if that still stands: it gives up.
  void on_unreachable(Connection& connection, int side, std::uint64_t wall);

 private:
  void drop_received(Connection& connection, int side);

  Medium& medium_;
  Lines& lines_;
  Payloads& payloads_;
};

}  // namespace byteps::sim
