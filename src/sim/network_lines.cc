// SimNetwork: the hosts' lines. A lane (one direction of a connection) that has something to send stands in its host's
// queue once, sends one message when its turn comes, and goes to the end again; likewise where it is received.
#include <algorithm>

#include "base/check.h"
#include "sim/network.h"

namespace byteps::sim {

SimNetwork::Line& SimNetwork::line(HostIndex host) {
  while (host >= lines_.size()) {
    lines_.push_back({.bytes_per_second = options_.bytes_per_second, .send = {}, .receive = {}});
  }
  return lines_[host];
}

TimeNs SimNetwork::line_ns(const Line& line, std::size_t bytes) {
  if (line.bytes_per_second == 0) return 0;
  return static_cast<TimeNs>(static_cast<double>(bytes) * static_cast<double>(kSecond) /
                             static_cast<double>(line.bytes_per_second));
}

// ---- sending

// The lane takes its place at the sender's line, if it has something to send and may.
void SimNetwork::offer(Connection& connection, int side) {
  Direction& way = connection.way[side];
  if (way.at_line) return;
  way.next_depart = std::max(way.next_depart, way.first);
  while (way.next_depart < way.end() && way.flight(way.next_depart).gone) ++way.next_depart;
  if (way.next_depart == way.end()) return;
  const HostIndex host = connection.ends[side].host;
  const TimeNs not_before =
      std::max(way.depart_not_before_ns, wall_until(host, connection.ends[1 - side].host));
  if (now_ < not_before) {
    if (not_before != kNever && not_before > way.resume_at_ns) {
      way.resume_at_ns = not_before;
      schedule(not_before, Happening::kResume, connection.id, side);
    }
    return;
  }
  way.at_line = true;
  line(host).send.waiting.push_back({connection.id, side});
  serve_send(host);
}

void SimNetwork::serve_send(HostIndex host) {
  Line& own = line(host);
  while (!own.send.is_busy && !own.send.waiting.empty()) {
    const Lane lane = own.send.waiting.front();
    own.send.waiting.pop_front();
    Connection* connection = find(lane.connection);
    if (connection == nullptr) continue;
    Direction& way = connection->way[lane.side];
    way.next_depart = std::max(way.next_depart, way.first);
    while (way.next_depart < way.end() && way.flight(way.next_depart).gone) ++way.next_depart;
    if (way.next_depart == way.end()) {
      way.at_line = false;
      continue;
    }
    const Flight& flight = way.flight(way.next_depart);
    const std::size_t bytes = flight.header.size() + flight.payload.size();
    own.send.is_busy = true;
    schedule(now_ + line_ns(own, bytes), Happening::kDepart, lane.connection, lane.side, host);
  }
}

void SimNetwork::after_depart(HostIndex host, ConnectionId id, int side) {
  line(host).send.is_busy = false;
  Connection* connection = find(id);
  if (connection != nullptr) {
    Direction& way = connection->way[side];
    way.at_line = false;
    way.next_depart = std::max(way.next_depart, way.first);
    // It may have been lost while it was served, and a wall may have risen.
    const bool held = now_ < std::max(way.depart_not_before_ns,
                                      wall_until(host, connection->ends[1 - side].host));
    if (!held && way.next_depart < way.end() && !way.flight(way.next_depart).gone) {
      on_depart(*connection, side);
    }
    offer(*connection, side);
    retire(id);
  }
  serve_send(host);
}

// ---- receiving

void SimNetwork::offer_far(Connection& connection, int side) {
  Direction& way = connection.way[side];
  if (way.at_far_line || way.reached_ns.empty()) return;
  const HostIndex host = connection.ends[1 - side].host;
  way.at_far_line = true;
  line(host).receive.waiting.push_back({connection.id, side});
  serve_receive(host);
}

// A message occupies both lines at the same time when they are free: it is whole at the receiver when its last byte is.
void SimNetwork::serve_receive(HostIndex host) {
  Line& own = line(host);
  while (!own.receive.is_busy && !own.receive.waiting.empty()) {
    const Lane lane = own.receive.waiting.front();
    own.receive.waiting.pop_front();
    Connection* connection = find(lane.connection);
    if (connection == nullptr) continue;
    const Direction& way = connection->way[lane.side];
    std::uint64_t number = std::max(way.next_arrive, way.first);
    while (number < way.end() && way.flights[number - way.first]->gone) ++number;
    const std::size_t bytes = number == way.end()
                                  ? 0
                                  : way.flights[number - way.first]->header.size() +
                                        way.flights[number - way.first]->payload.size();
    const TimeNs takes = line_ns(own, bytes);
    const TimeNs begun = std::max(own.receive.free_ns, way.reached_ns.front() - takes);
    own.receive.is_busy = true;
    schedule(std::max(now_, begun + takes), Happening::kArrive, lane.connection, lane.side, host);
  }
}

void SimNetwork::after_arrive(HostIndex host, ConnectionId id, int side) {
  Queue& queue = line(host).receive;
  queue.is_busy = false;
  queue.free_ns = now_;
  Connection* connection = find(id);
  if (connection != nullptr) {
    connection->way[side].at_far_line = false;
    on_arrive(*connection, side);
    offer_far(*connection, side);
    retire(id);
  }
  serve_receive(host);
}

void SimNetwork::slow_down(HostIndex host, std::uint64_t bytes_per_second) {
  line(host).bytes_per_second = bytes_per_second;
}

}  // namespace byteps::sim
