#include "sim/endings.h"

#include <algorithm>
#include <utility>

namespace byteps::sim {

void Endings::tell(Connection& connection, int side, const Status& why) {
  End& end = connection.ends[side];
  if (end.is_over()) return;
  Direction& out = connection.way[side];
  for (std::uint64_t number = out.first; number < out.end(); ++number) {
    Flight& flight = out.flight(number);
    if (flight.done) continue;
    if (!flight.gone && number < out.lost_from) payloads_.read(connection, side, flight);
    if (number >= out.lost_from && number >= out.next_depart) flight.gone = true;
    payloads_.give_back(connection, side, flight);
  }
  if (side == 0 && end.state == EndState::kConnecting && !connection.is_naming) {
    end.owner->names().failed(connection.to.host);
  }
  end.state = EndState::kDown;
  medium_.note(Trace::What::kDown, "is down", connection, side, {}, why);
  Ready ready;
  ready.kind = Event::Kind::kDown;
  ready.why = why;
  end.owner->queue(end.peer, std::move(ready));
}

void Endings::say(Connection& connection, int side) {
  if (connection.ends[1 - side].state == EndState::kNone) return;  // nobody answered yet
  Flight* fin = medium_.flights.take();
  fin->fin = true;
  connection.way[side].flights.push_back(fin);
  lines_.offer(connection, side);
  payloads_.give_back(connection, side, *fin);
}

void Endings::close(ConnectionId id, int side, const Status& reason) {
  Connection* connection = medium_.connections.find(id);
  if (connection == nullptr || connection->ends[side].is_over()) return;
  medium_.note(Trace::What::kClose, "closes", *connection, side, {}, reason);
  drop_received(*connection, side);
  Direction& way = connection->way[side];
  if (medium_.prng.chance(medium_.options.chances.lost_tail_at_close)) {
    medium_.lose_tail(way, way.next_depart);
  }
  tell(*connection, side, reason);
  say(*connection, side);
  medium_.connections.retire(id);
}

void Endings::leave(Station& station) {
  for (const auto& [peer_id, peer] : station.peers()) {
    Connection* connection = medium_.connections.find(peer.connection);
    if (connection == nullptr) continue;
    End& end = connection->ends[peer.side];
    drop_received(*connection, peer.side);
    if (end.state != EndState::kDown) {
      // What has departed still arrives; of the rest, what its kernel had.
      Direction& way = connection->way[peer.side];
      medium_.lose_tail(way, way.next_depart);
      tell(*connection, peer.side, Status::ok());
      say(*connection, peer.side);
    }
    end.owner = nullptr;
    medium_.connections.retire(connection->id);
  }
  for (const auto& [peer_id, peer] : station.peers()) {
    for (const Ready& ready : peer.ready) {
      if (ready.repeated) medium_.flights.put_back(ready.flight);
    }
  }
  medium_.stations.detach(station);
}

void Endings::forget(ConnectionId id, int side) {
  Connection* connection = medium_.connections.find(id);
  if (connection != nullptr) connection->ends[side].owner = nullptr;
}

// Nothing this end sent has been acknowledged for too long: what has not left it is lost.
void Endings::on_unreachable(Connection& connection, int side, std::uint64_t wall) {
  if (!medium_.obstacles.stands(wall, medium_.now())) return;
  if (connection.ends[side].state != EndState::kUp) return;
  Direction& way = connection.way[side];
  way.lost_from = std::min(way.lost_from, way.next_depart);
  tell(connection, side,
       {Code::kTimeout, connection.ends[1 - side].name + " does not acknowledge anything"});
  say(connection, side);
}

// What waited to be received is received by nobody.
void Endings::drop_received(Connection& connection, int side) {
  const End& end = connection.ends[side];
  for (const Ready& ready : end.owner->drop_received(end.peer)) {
    if (ready.repeated) {
      medium_.flights.put_back(ready.flight);
    } else {
      ready.flight->gone = true;
      payloads_.give_back(connection, 1 - side, *ready.flight);
    }
  }
}

}  // namespace byteps::sim
