#include "sim/lines.h"

#include <algorithm>

namespace byteps::sim {

Lines::Line& Lines::line(HostIndex host) {
  while (host >= lines_.size()) {
    lines_.push_back(
        {.bytes_per_second = medium_.options.bytes_per_second, .send = {}, .receive = {}});
  }
  return lines_[host];
}

TimeNs Lines::Line::takes_ns(std::size_t bytes) const {
  if (bytes_per_second == 0) return 0;
  return static_cast<TimeNs>(static_cast<double>(bytes) * static_cast<double>(kSecond) /
                             static_cast<double>(bytes_per_second));
}

void Lines::slow_down(HostIndex host, std::uint64_t bytes_per_second) {
  line(host).bytes_per_second = bytes_per_second;
}

// ---- sending

void Lines::offer(Connection& connection, int side) {
  Direction& way = connection.way[side];
  if (way.at_line || !way.seek_departure()) return;
  const TimeNs not_before = medium_.held_until(connection, side);
  if (medium_.now() < not_before) {
    if (not_before != kNever && not_before > way.resume_at_ns) {
      way.resume_at_ns = not_before;
      medium_.agenda.schedule(not_before, Happening::kResume, connection.id, side);
    }
    return;
  }
  way.at_line = true;
  const HostIndex host = connection.ends[side].host;
  line(host).send.waiting.push_back({connection.id, side});
  serve_send(host);
}

void Lines::serve_send(HostIndex host) {
  Line& own = line(host);
  while (!own.send.is_busy && !own.send.waiting.empty()) {
    const Lane lane = own.send.waiting.front();
    own.send.waiting.pop_front();
    Connection* connection = medium_.connections.find(lane.connection);
    if (connection == nullptr) continue;
    Direction& way = connection->way[lane.side];
    if (!way.seek_departure()) {
      way.at_line = false;
      continue;
    }
    const TimeNs takes = own.takes_ns(way.flight(way.next_depart).bytes());
    own.send.is_busy = true;
    medium_.agenda.schedule(medium_.now() + takes, Happening::kDepart, lane.connection, lane.side,
                            host);
  }
}

// ---- receiving

void Lines::offer_far(Connection& connection, int side) {
  Direction& way = connection.way[side];
  if (way.at_far_line || way.reached_ns.empty()) return;
  const HostIndex host = connection.ends[1 - side].host;
  way.at_far_line = true;
  line(host).receive.waiting.push_back({connection.id, side});
  serve_receive(host);
}

// A message occupies both lines at the same time when they are free: it is whole at the receiver when its last byte is.
void Lines::serve_receive(HostIndex host) {
  Line& own = line(host);
  while (!own.receive.is_busy && !own.receive.waiting.empty()) {
    const Lane lane = own.receive.waiting.front();
    own.receive.waiting.pop_front();
    Connection* connection = medium_.connections.find(lane.connection);
    if (connection == nullptr) continue;
    const Direction& way = connection->way[lane.side];
    std::uint64_t number = std::max(way.next_arrive, way.first);
    while (number < way.end() && way.flight(number).gone) ++number;
    const TimeNs takes = own.takes_ns(number == way.end() ? 0 : way.flight(number).bytes());
    const TimeNs begun = std::max(own.receive.free_ns, way.reached_ns.front() - takes);
    own.receive.is_busy = true;
    medium_.agenda.schedule(std::max(medium_.now(), begun + takes), Happening::kArrive,
                            lane.connection, lane.side, host);
  }
}

void Lines::end_receive(HostIndex host) {
  Queue& queue = line(host).receive;
  queue.is_busy = false;
  queue.free_ns = medium_.now();
}

}  // namespace byteps::sim
