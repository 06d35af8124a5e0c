// Connections: those that something is left of, by id. Ids are never used again.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "sim/connection.h"
#include "sim/flight.h"
#include "sim/obstacles.h"

namespace byteps::sim {

class Connections {
 public:
  // Flights that are over go back to `flights`.
  explicit Connections(FlightPool& flights) : flights_(flights) {}

  Connection& make();
  // Null: nothing is left of it.
  Connection* find(ConnectionId id) const { return by_id_[id].get(); }
  // In the order made.
  std::vector<Connection*> all() const;
  // Pairs of transports with a connection between them that is up at both ends, each once, in order.
  std::vector<Obstacles::Pair> connected_pairs() const;
  // Forgets flights that are over, and the connection when nothing of it is left.
  void retire(ConnectionId id);

 private:
  FlightPool& flights_;
  std::vector<std::unique_ptr<Connection>> by_id_;  // null when over
};

}  // namespace byteps::sim
