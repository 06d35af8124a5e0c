#include "sim/network.h"

#include <algorithm>
#include <optional>

namespace byteps::sim {

void SimNetwork::advance(TimeNs to) {
  while (const std::optional<Scheduled> event = wires_.medium.agenda.next(to)) {
    wires_.happen(*event);
  }
}

bool SimNetwork::is_within_host(Pair pair) const {
  const std::vector<Connection*> all = medium().connections.all();
  return std::any_of(all.begin(), all.end(), [&](const Connection* each) {
    return each->is_between(pair.a, pair.b) && each->is_within_host();
  });
}

void SimNetwork::cut(const Cut& cut) {
  Medium& medium = wires_.medium;
  for (Connection* connection : medium.connections.all()) {
    if (connection->broken || connection->ends[1].state == EndState::kNone) continue;
    if (!connection->is_between(cut.pair.a, cut.pair.b)) continue;
    medium.note(Trace::What::kCut, "is cut from", *connection, 0);
    connection->broken = true;
    for (int side = 0; side < 2; ++side) {
      Direction& way = connection->way[side];
      medium.lose_tail(way, way.next_arrive);
      way.arrive_not_before_ns = now() + medium.random_up_to(cut.late_ns);
      const bool is_a = connection->ends[side].number == cut.pair.a;
      medium.agenda.schedule(now() + (is_a ? cut.a_hears_ns : cut.b_hears_ns), Happening::kHear,
                             connection->id, side);
    }
  }
}

void SimNetwork::block(Pair pair, TimeNs until, bool silent) {
  wires_.medium.obstacles.block(pair, until, silent, now());
}

void SimNetwork::hold(Pair pair, TimeNs until) {
  for (Connection* connection : medium().connections.all()) {
    if (!connection->is_between(pair.a, pair.b)) continue;
    for (Direction& way : connection->way) {
      way.depart_not_before_ns = std::max(way.depart_not_before_ns, until);
    }
  }
}

void SimNetwork::put_up(const Wall& wall) {
  Medium& medium = wires_.medium;
  const std::uint64_t number = medium.obstacles.put_up(wall, now());
  medium.trace.note(now(), Trace::What::kWall, wall.from.size(), wall.to.size(), wall.both ? 2 : 1);
  for (const Connection* connection : medium.connections.all()) {
    const End* ends = connection->ends;
    if (ends[1].state == EndState::kNone) continue;
    if (!medium.obstacles.is_walled(ends[0].host, ends[1].host, now())) continue;
    for (int side = 0; side < 2; ++side) {
      const TimeNs stands_ns = medium.options.unreachable_ns;
      medium.agenda.schedule(now() + stands_ns + medium.random_up_to(stands_ns / 8),
                             Happening::kUnreachable, connection->id, side, number);
    }
  }
}

void SimNetwork::slow_down(HostIndex host, std::uint64_t bytes_per_second) {
  wires_.lines.slow_down(host, bytes_per_second);
}

void SimNetwork::freeze(std::uint32_t number, TimeNs until) {
  wires_.medium.obstacles.freeze(number, until);
}

void SimNetwork::end_chances() {
  wires_.medium.options.chances = {};
}

}  // namespace byteps::sim
