// SimNetwork: faults.
#include <algorithm>
#include <cstring>

#include "base/planted.h"
#include "sim/network.h"
#include "sim/sim_transport.h"

namespace byteps::sim {

// ---- asked for from outside

std::vector<SimNetwork::Pair> SimNetwork::connected_pairs() const {
  std::map<std::pair<std::uint32_t, std::uint32_t>, Pair> found;
  for (const auto& connection : connections_) {
    if (connection == nullptr || connection->broken) continue;
    const End& a = connection->ends[0];
    const End& b = connection->ends[1];
    if (a.state != EndState::kUp || b.state != EndState::kUp) continue;
    found.emplace(std::minmax(a.number, b.number), Pair{a.number, b.number});
  }
  std::vector<Pair> pairs;
  for (const auto& [numbers, pair] : found) pairs.push_back(pair);
  return pairs;
}

void SimNetwork::cut(const Cut& cut) {
  for (auto& connection : connections_) {
    if (connection == nullptr || connection->broken) continue;
    const std::uint32_t first = connection->ends[0].number;
    const std::uint32_t second = connection->ends[1].number;
    if (connection->ends[1].state == EndState::kNone) continue;
    const bool straight = first == cut.pair.a && second == cut.pair.b;
    if (!straight && !(first == cut.pair.b && second == cut.pair.a)) continue;
    note(Trace::What::kCut, "is cut from", *connection, 0);
    connection->broken = true;
    for (int side = 0; side < 2; ++side) {
      Direction& way = connection->way[side];
      const std::uint64_t on_the_way = way.end() - std::min(way.end(), way.next_arrive);
      way.lost_from = std::min(way.lost_from, way.next_arrive + prng_.below(on_the_way + 1));
      way.arrive_not_before_ns =
          now_ + static_cast<TimeNs>(prng_.below(static_cast<std::uint64_t>(cut.late_ns) + 1));
      const bool is_a = connection->ends[side].number == cut.pair.a;
      schedule(now_ + (is_a ? cut.a_hears_ns : cut.b_hears_ns), Happening::kHear, connection->id,
               side);
    }
  }
}

void SimNetwork::block(Pair pair, TimeNs until, bool silent) {
  std::erase_if(blocks_, [this](const Block& block) { return block.until <= now_; });
  blocks_.push_back({pair, until, silent});
}

const SimNetwork::Block* SimNetwork::block_between(std::uint32_t a, std::uint32_t b) {
  for (const Block& block : blocks_) {
    if (block.until <= now_) continue;
    if ((block.pair.a == a && block.pair.b == b) || (block.pair.a == b && block.pair.b == a)) {
      return &block;
    }
  }
  return nullptr;
}

void SimNetwork::hold(Pair pair, TimeNs until) {
  for (auto& connection : connections_) {
    if (connection == nullptr) continue;
    const auto numbers = std::minmax(connection->ends[0].number, connection->ends[1].number);
    if (numbers != std::minmax(pair.a, pair.b)) continue;
    for (Direction& way : connection->way) {
      way.depart_not_before_ns = std::max(way.depart_not_before_ns, until);
    }
  }
}

void SimNetwork::end_chances() {
  options_.partial_landing = 0;
  options_.lost_tail_at_close = 0;
  options_.repeat = 0;
  options_.corrupt = 0;
  options_.late_look_up = 0;
}

// ---- walls

void SimNetwork::put_up(const Wall& wall) {
  std::erase_if(walls_, [this](const StandingWall& each) { return each.wall.until <= now_; });
  walls_.push_back({++last_wall_, wall});
  trace_.note(now_, Trace::What::kWall, wall.from.size(), wall.to.size(), wall.both ? 2 : 1);
  for (const auto& connection : connections_) {
    if (connection == nullptr || connection->ends[1].state == EndState::kNone) continue;
    if (!is_walled(connection->ends[0].host, connection->ends[1].host)) continue;
    for (int side = 0; side < 2; ++side) {
      const auto later = static_cast<std::uint64_t>(options_.unreachable_ns / 8) + 1;
      schedule(now_ + options_.unreachable_ns + static_cast<TimeNs>(prng_.below(later)),
               Happening::kUnreachable, connection->id, side, last_wall_);
    }
  }
}

// Until when nothing goes from one host to the other; 0 when it may.
TimeNs SimNetwork::wall_until(HostIndex from, HostIndex to) const {
  const auto has = [](const std::vector<HostIndex>& hosts, HostIndex host) {
    return std::find(hosts.begin(), hosts.end(), host) != hosts.end();
  };
  TimeNs until = 0;
  for (const auto& [number, wall] : walls_) {
    if (wall.until <= now_) continue;
    const bool straight = has(wall.from, from) && has(wall.to, to);
    const bool back = wall.both && has(wall.from, to) && has(wall.to, from);
    if (straight || back) until = std::max(until, wall.until);
  }
  return until;
}

bool SimNetwork::is_walled(HostIndex a, HostIndex b) const {
  return wall_until(a, b) > 0 || wall_until(b, a) > 0;
}

// Nothing this end sent has been acknowledged for too long: it gives up, and what has not left it is lost.
void SimNetwork::on_unreachable(Connection& connection, int side, std::uint64_t wall) {
  const auto standing = std::find_if(walls_.begin(), walls_.end(),
                                     [&](const StandingWall& each) { return each.number == wall; });
  if (standing == walls_.end() || standing->wall.until <= now_) return;
  if (connection.ends[side].state != EndState::kUp) return;
  Direction& way = connection.way[side];
  way.lost_from = std::min(way.lost_from, way.next_depart);
  end_down(connection, side,
           {Code::kTimeout, connection.ends[1 - side].name + " does not acknowledge anything"});
  enqueue_fin(connection, side);
}

void SimNetwork::freeze(std::uint32_t number, TimeNs until) {
  TimeNs& frozen = frozen_until_[number];
  frozen = std::max(frozen, until);
}

// ---- by chance

// Whether this message's bytes were changed on the way. Then its receiver's connection ends here, and what comes later
// on it is lost.
bool SimNetwork::corrupts(Connection& connection, int side, Flight& flight) {
  if (options_.corrupt == 0 || !prng_.chance(options_.corrupt)) return false;
  ++corrupted_messages_;
  note(Trace::What::kCorrupt, "gets a corrupted message of", connection, 1 - side, flight.header);
  write_landing(connection, side, flight, true);
  if (PLANTED(checksum_unchecked) && !flight.payload.empty()) {
    read(connection, side, flight);
    flight.copy[prng_.below(flight.copy.size())] ^= std::byte{1};
    flight.payload = flight.copy;
    return false;
  }
  flight.gone = true;
  give_back(connection, side, flight);
  end_down(connection, 1 - side,
           {Code::kDisconnected, "a frame from " + connection.ends[side].name +
                                     " was corrupted on the way (its checksum differs)"});
  enqueue_fin(connection, 1 - side);
  return true;
}

// A landing may be written before the message is whole, and before its checksum is known.
void SimNetwork::write_landing(Connection& connection, int from_side, const Flight& flight,
                               bool garbage) {
  const End& end = connection.ends[1 - from_side];
  if (end.owner == nullptr || flight.payload.empty() || (flight.sent && !flight.read)) return;
  const std::optional<std::span<std::byte>> landing = end.owner->landing_of(end.peer, flight);
  if (!landing) return;
  const std::size_t bytes = 1 + prng_.below(flight.payload.size());
  std::memcpy(landing->data(), flight.payload.data(), bytes);
  if (garbage) (*landing)[prng_.below(bytes)] ^= static_cast<std::byte>(1 + prng_.below(255));
}

}  // namespace byteps::sim
