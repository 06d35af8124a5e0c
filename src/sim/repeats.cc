#include "sim/repeats.h"

#include <utility>

#include "sim/station.h"

namespace byteps::sim {

void Repeats::maybe_repeat(const Connection& connection, int side, const Flight& flight) {
  const NetworkChances& chances = medium_.options.chances;
  if (chances.repeat == 0 || connection.is_within_host()) return;
  if (!medium_.prng.chance(chances.repeat)) return;
  if (!chances.may_repeat || !chances.may_repeat(flight.header)) return;
  Flight* repeat = medium_.flights.take();
  repeat->header = flight.header;
  repeat->copy.assign(flight.payload.begin(), flight.payload.end());
  repeat->payload = repeat->copy;
  repeat->read = repeat->done = repeat->sent = repeat->gone = true;
  const std::uint64_t number = ++medium_.counts.repeated_messages;
  scheduled_.emplace(number, repeat);
  medium_.agenda.schedule(medium_.now() + medium_.random_up_to(chances.repeat_within_ns),
                          Happening::kRepeat, connection.id, side, number);
}

void Repeats::on_repeat(const Connection* connection, int side, std::uint64_t number) {
  Flight* flight = scheduled_.extract(number).mapped();
  if (connection == nullptr) return medium_.flights.put_back(flight);
  const End& end = connection->ends[side];
  if (end.owner == nullptr || end.state != EndState::kUp) return medium_.flights.put_back(flight);
  medium_.note(Trace::What::kRepeat, "receives again", *connection, side, flight->header);
  Ready ready;
  ready.kind = Event::Kind::kReceived;
  ready.flight = flight;
  ready.repeated = true;
  end.owner->queue(end.peer, std::move(ready));
}

}  // namespace byteps::sim
