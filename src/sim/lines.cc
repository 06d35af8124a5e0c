#include "sim/lines.h"

#include <algorithm>

namespace byteps::sim {

Lines::LineId Lines::line_of(const Connection& connection, int side) {
  const End& end = connection.ends[side];
  return connection.is_within_host() ? kMemory + end.number : end.host;
}

Lines::Line& Lines::line(LineId id) {
  const bool is_memory = id >= kMemory;
  std::vector<Line>& lines = is_memory ? memory_ : cards_;
  const SimNetworkOptions& options = medium_.options;
  const std::size_t number = is_memory ? id - kMemory : id;
  while (number >= lines.size()) {
    lines.push_back(
        {.bytes_per_second = is_memory ? options.memory_bytes_per_second : options.bytes_per_second,
         .send = {},
         .receive = {}});
  }
  return lines[number];
}

TimeNs Lines::Line::takes_ns(std::size_t bytes) const {
  if (bytes_per_second == 0) return 0;
  return static_cast<TimeNs>(static_cast<double>(bytes) * static_cast<double>(kSecond) /
                             static_cast<double>(bytes_per_second));
}

void Lines::slow_down(HostIndex host, std::uint64_t bytes_per_second) {
  line(host).bytes_per_second = bytes_per_second;
}

Direction* Lines::end_turn(Queue& queue) {
  queue.is_busy = false;
  Connection* const connection = medium_.connections.find(queue.served.connection);
  return connection == nullptr ? nullptr : &connection->way[queue.served.side];
}

// ---- sending

void Lines::offer(Connection& connection, int side) {
  Direction& way = connection.way[side];
  if (way.at_line >= medium_.options.at_sender || !way.seek_departure()) return;
  if (is_held(connection, side)) return;
  const LineId id = line_of(connection, side);
  const std::size_t most =
      std::min<std::uint64_t>(medium_.options.at_sender, way.count_from(way.next_depart));
  for (; way.at_line < most; ++way.at_line) line(id).send.waiting.push_back({connection.id, side});
  serve_send(id);
}

// It is offered again when it is not.
bool Lines::is_held(Connection& connection, int side) {
  Direction& way = connection.way[side];
  const TimeNs not_before = medium_.held_until(connection, side);
  if (medium_.now() >= not_before) return false;
  if (not_before != kNever && not_before > way.resume_at_ns) {
    way.resume_at_ns = not_before;
    medium_.agenda.schedule(not_before, Happening::kResume, connection.id, side);
  }
  return true;
}

void Lines::end_send(LineId id) {
  Direction* const way = end_turn(line(id).send);
  if (way != nullptr) --way->at_line;
}

void Lines::serve_send(LineId id) {
  Line& own = line(id);
  while (!own.send.is_busy && !own.send.waiting.empty()) {
    const Lane lane = own.send.waiting.front();
    own.send.waiting.pop_front();
    Connection* connection = medium_.connections.find(lane.connection);
    if (connection == nullptr) continue;
    Direction& way = connection->way[lane.side];
    if (!way.seek_departure() || is_held(*connection, lane.side)) {
      --way.at_line;
      continue;
    }
    const TimeNs takes = own.takes_ns(way.flight(way.next_depart).bytes());
    own.send.is_busy = true;
    own.send.served = lane;
    medium_.agenda.schedule(medium_.now() + takes, Happening::kDepart, lane.connection, lane.side,
                            id);
  }
}

// ---- receiving

void Lines::offer_far(Connection& connection, int side) {
  Direction& way = connection.way[side];
  const LineId id = line_of(connection, 1 - side);
  const std::size_t most = std::min(medium_.options.at_receiver, way.reached_ns.size());
  for (; way.at_far_line < most; ++way.at_far_line) {
    line(id).receive.waiting.push_back({connection.id, side});
  }
  serve_receive(id);
}

// A message occupies both lines at the same time when they are free: it is whole at the receiver when its last byte is.
void Lines::serve_receive(LineId id) {
  Line& own = line(id);
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
    own.receive.served = lane;
    medium_.agenda.schedule(std::max(medium_.now(), begun + takes), Happening::kArrive,
                            lane.connection, lane.side, id);
  }
}

void Lines::end_receive(LineId id) {
  Queue& queue = line(id).receive;
  Direction* const way = end_turn(queue);
  if (way != nullptr) --way->at_far_line;
  queue.free_ns = medium_.now();
}

}  // namespace byteps::sim
