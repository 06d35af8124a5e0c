#include "sim/connections.h"

#include <algorithm>
#include <map>
#include <utility>

namespace byteps::sim {

Connection& Connections::make() {
  const auto id = static_cast<ConnectionId>(by_id_.size());
  Connection& connection = *by_id_.emplace_back(std::make_unique<Connection>());
  connection.id = id;
  return connection;
}

std::vector<Connection*> Connections::all() const {
  std::vector<Connection*> all;
  for (const auto& connection : by_id_) {
    if (connection != nullptr) all.push_back(connection.get());
  }
  return all;
}

std::vector<Obstacles::Pair> Connections::connected_pairs() const {
  std::map<std::pair<std::uint32_t, std::uint32_t>, Obstacles::Pair> found;
  for (const auto& connection : by_id_) {
    if (connection == nullptr || connection->broken) continue;
    const End& a = connection->ends[0];
    const End& b = connection->ends[1];
    if (a.state != EndState::kUp || b.state != EndState::kUp) continue;
    found.emplace(std::minmax(a.number, b.number), Obstacles::Pair{a.number, b.number});
  }
  std::vector<Obstacles::Pair> pairs;
  for (const auto& [numbers, pair] : found) pairs.push_back(pair);
  return pairs;
}

void Connections::retire(ConnectionId id) {
  Connection* connection = find(id);
  if (connection == nullptr) return;
  for (Direction& way : connection->way) {
    while (!way.flights.empty() && way.flights.front()->gone && way.flights.front()->sent) {
      flights_.put_back(way.flights.front());
      way.flights.pop_front();
      ++way.first;
    }
  }
  if (!connection->ends[0].is_over() || !connection->ends[1].is_over()) return;
  if (!connection->way[0].flights.empty() || !connection->way[1].flights.empty()) return;
  by_id_[id].reset();
}

}  // namespace byteps::sim
