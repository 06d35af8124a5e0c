#include "sim/wires.h"

#include <utility>

#include "base/check.h"

namespace byteps::sim {

Wires::Wires(SimNetworkOptions options, const Prng& prng, Trace& trace)
    : medium(std::move(options), prng, trace) {}

Wires::~Wires() {
  CHECK(medium.stations.empty()) << "the network ended before its transports";
}

void Wires::happen(const Scheduled& event) {
  // These have something to do for others, also when the connection is over.
  if (event.what == Happening::kDepart) {
    return carriage.on_depart(event.argument, event.connection, event.side);
  }
  if (event.what == Happening::kArrive) {
    return carriage.on_arrive(event.argument, event.connection, event.side);
  }
  if (event.what == Happening::kNamed) return handshakes.on_named(event.argument);
  Connection* connection = medium.connections.find(event.connection);
  if (event.what == Happening::kRepeat) {
    repeats.on_repeat(connection, event.side, event.argument);
  }
  if (connection == nullptr) return;
  switch (event.what) {
    case Happening::kSyn:
      handshakes.on_syn(*connection);
      break;
    case Happening::kHello:
      handshakes.on_hello(*connection);
      break;
    case Happening::kRefused:
      handshakes.on_refused(*connection);
      break;
    case Happening::kConnectTimeout:
      handshakes.on_timeout(*connection);
      break;
    case Happening::kResume:
      lines.offer(*connection, event.side);
      break;
    case Happening::kReach:
      carriage.on_reach(*connection, event.side);
      break;
    case Happening::kHear:
      endings.tell(*connection, event.side, {Code::kDisconnected, "the connection was reset"});
      break;
    case Happening::kUnreachable:
      endings.on_unreachable(*connection, event.side, event.argument);
      break;
    case Happening::kNamed:
    case Happening::kDepart:
    case Happening::kArrive:
    case Happening::kRepeat:
      break;  // above
  }
  medium.connections.retire(event.connection);
}

}  // namespace byteps::sim
