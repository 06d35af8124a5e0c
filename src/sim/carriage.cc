#include "sim/carriage.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/planted.h"

namespace byteps::sim {

Status Carriage::send(ConnectionId id, int side, const Outgoing& message) {
  Connection* connection = medium_.connections.find(id);
  if (connection == nullptr || connection->ends[side].state != EndState::kUp) {
    return {Code::kDisconnected, "not connected"};
  }
  CHECK_LE(message.header.size(), kHeaderBytesMax);
  CHECK_LE(message.payload.size(), kPayloadBytesMax);
  Direction& way = connection->way[side];
  const std::size_t charge = message.payload.size() + kMessageBytes;
  if (way.charged_bytes > 0 && way.charged_bytes + charge > medium_.options.window_bytes) {
    return {Code::kAgain, "the window is full"};
  }
  way.charged_bytes += charge;
  Flight* flight = medium_.flights.take();
  flight->header.assign(message.header.begin(), message.header.end());
  flight->payload = message.payload;
  flight->token = message.token;
  flight->is_shared = message.bulk && !message.payload.empty() && connection->is_within_host();
  if (medium_.options.check_lent_memory) flight->lent_hash = hash_of(message.payload);
  if (medium_.probes.on_send) medium_.probes.on_send(message.header, message.payload);
  if (way.lending == Lending::kCopyAtSend) payloads_.read(*connection, side, *flight);
  medium_.note(Trace::What::kSend, "sends", *connection, side, flight->header);
  if (medium_.options.trace_payloads) {
    medium_.trace.note(medium_.now(), Trace::What::kSend, 0, 0, hash_of(message.payload));
  }
  way.flights.push_back(flight);
  lines_.offer(*connection, side);
  return Status::ok();
}

// ---- out

void Carriage::on_depart(Lines::LineId line, ConnectionId id, int side) {
  lines_.end_send(line);
  Connection* connection = medium_.connections.find(id);
  if (connection != nullptr) {
    Direction& way = connection->way[side];
    way.next_depart = std::max(way.next_depart, way.first);
    // It may have been lost while it was served, and a wall may have risen.
    const bool held = medium_.now() < medium_.held_until(*connection, side);
    if (!held && way.next_depart < way.end() && !way.flight(way.next_depart).gone) {
      depart(*connection, side);
    }
    lines_.offer(*connection, side);
    medium_.connections.retire(id);
  }
  lines_.serve_send(line);
}

void Carriage::depart(Connection& connection, int side) {
  Direction& way = connection.way[side];
  const std::uint64_t number = way.next_depart++;
  Flight& flight = way.flight(number);
  if (way.has_lost(number, connection.broken)) {
    flight.gone = true;
    // In the third way of lending it is held until its connection ends.
    if (way.lending != Lending::kReadAtArrive) payloads_.give_back(connection, side, flight);
    return;
  }
  if (way.lending == Lending::kReadAtDepart) payloads_.read(connection, side, flight);
  if (way.lending != Lending::kReadAtArrive) payloads_.give_back(connection, side, flight);
  way.last_arrival = std::max(medium_.now() + medium_.flight_ns(connection), way.last_arrival);
  medium_.agenda.schedule(way.last_arrival, Happening::kReach, connection.id, side);
}

// ---- in

void Carriage::on_reach(Connection& connection, int side) {
  Direction& way = connection.way[side];
  if (medium_.now() < way.arrive_not_before_ns) {
    return medium_.agenda.schedule(way.arrive_not_before_ns, Happening::kReach, connection.id,
                                   side);
  }
  way.reached_ns.push_back(medium_.now());
  lines_.offer_far(connection, side);
}

void Carriage::on_arrive(Lines::LineId line, ConnectionId id, int side) {
  lines_.end_receive(line);
  Connection* connection = medium_.connections.find(id);
  if (connection != nullptr) {
    arrive(*connection, side);
    lines_.offer_far(*connection, side);
    medium_.connections.retire(id);
  }
  lines_.serve_receive(line);
}

void Carriage::arrive(Connection& connection, int side) {
  Direction& way = connection.way[side];
  way.reached_ns.pop_front();
  // Those that were lost before they departed have no arrival.
  way.next_arrive = std::max(way.next_arrive, way.first);
  while (way.flight(way.next_arrive).gone) ++way.next_arrive;
  const std::uint64_t number = way.next_arrive++;
  Flight& flight = way.flight(number);
  const End& receiver = connection.ends[1 - side];
  const bool lost = way.has_lost(number, connection.broken);
  if (flight.fin || lost || receiver.owner == nullptr || receiver.state != EndState::kUp) {
    flight.gone = true;
    if (flight.fin && !lost) {
      endings_.tell(connection, 1 - side,
                    {Code::kDisconnected, connection.ends[side].name + " closed the connection"});
    }
    return payloads_.give_back(connection, side, flight);
  }
  if (corrupts(connection, side, flight)) return;
  Ready ready;
  ready.kind = Event::Kind::kReceived;
  ready.flight = &flight;
  receiver.owner->queue(receiver.peer, std::move(ready));
  if (medium_.probes.on_arrival) {
    medium_.probes.on_arrival(connection.ends[side].number, receiver.number, flight.header);
  }
}

// Whether this message's bytes were changed on the way. Then its receiver's connection ends here, and what comes later
// on it is lost.
bool Carriage::corrupts(Connection& connection, int side, Flight& flight) {
  if (medium_.options.chances.corrupt == 0 || connection.is_within_host()) return false;
  if (!medium_.prng.chance(medium_.options.chances.corrupt)) return false;
  ++medium_.counts.corrupted_messages;
  medium_.note(Trace::What::kCorrupt, "gets a corrupted message of", connection, 1 - side,
               flight.header);
  if (PLANTED(checksum_unchecked) && !flight.payload.empty()) {
    payloads_.read(connection, side, flight);
    flight.copy[medium_.prng.below(flight.copy.size())] ^= std::byte{1};
    flight.payload = flight.copy;
    return false;
  }
  flight.gone = true;
  payloads_.give_back(connection, side, flight);
  endings_.tell(connection, 1 - side,
                {Code::kDisconnected, "a frame from " + connection.ends[side].name +
                                          " was corrupted on the way (its checksum differs)"});
  endings_.say(connection, 1 - side);
  return true;
}

// ---- what poll() has given out

void Carriage::given_out(ConnectionId id, int side, const Ready& received) {
  Flight& flight = *received.flight;
  if (received.repeated) return medium_.flights.put_back(&flight);
  Connection& connection = *medium_.connections.find(id);
  flight.gone = true;
  medium_.note(Trace::What::kReceive, "receives", connection, side, flight.header);
  ++medium_.counts.delivered_messages;
  medium_.counts.delivered_bytes += flight.payload.size();
  repeats_.maybe_repeat(connection, side, flight);
  payloads_.give_back(connection, 1 - side, flight);
  medium_.connections.retire(id);
}

void Carriage::sent_given_out(ConnectionId id, int side, std::size_t charged_bytes) {
  Connection* connection = medium_.connections.find(id);
  if (connection != nullptr) connection->way[side].charged_bytes -= charged_bytes;
}

}  // namespace byteps::sim
