#include "sim/payloads.h"

#include <cstring>
#include <optional>
#include <span>
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

// A landing may be written before the message is whole, and before its checksum is known.
void Payloads::write_landing(const Connection& connection, int side, const Flight& flight,
                             bool garbage) {
  const End& end = connection.ends[1 - side];
  if (end.owner == nullptr || flight.payload.empty() || (flight.sent && !flight.read)) return;
  const std::optional<std::span<std::byte>> landing = end.owner->landing_of(end.peer, flight);
  if (!landing) return;
  const std::size_t bytes = 1 + medium_.prng.below(flight.payload.size());
  std::memcpy(landing->data(), flight.payload.data(), bytes);
  if (!garbage) return;
  (*landing)[medium_.prng.below(bytes)] ^= static_cast<std::byte>(1 + medium_.prng.below(255));
}

}  // namespace byteps::sim
