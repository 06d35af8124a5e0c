#include "sim/payloads.h"

#include <utility>

#include "sim/station.h"

namespace byteps::sim {

void Payloads::read(const Connection& connection, int side, Flight& flight) {
  if (flight.read || flight.fin) return;
  flight.copy.assign(flight.payload.begin(), flight.payload.end());
  flight.payload = flight.copy;
  flight.read = true;
  if (medium_.options.check_lent_memory && hash_of(flight.payload) != flight.lent_hash) {
    breaches_.push_back("a payload lent by " + connection.ends[side].name +
                        " was changed before it came back");
  }
}

void Payloads::give_back(Connection& connection, int side, Flight& flight) {
  flight.done = true;
  Direction& way = connection.way[side];
  const End& end = connection.ends[side];
  for (; way.next_sent < way.end() && way.flight(way.next_sent).done; ++way.next_sent) {
    Flight& next = way.flight(way.next_sent);
    next.sent = true;
    if (end.owner == nullptr || next.fin) continue;
    Ready ready;
    ready.kind = Event::Kind::kSent;
    ready.token = next.token;
    ready.charged_bytes = next.payload.size() + kMessageBytes;
    end.owner->queue(end.peer, std::move(ready));
  }
}

}  // namespace byteps::sim
