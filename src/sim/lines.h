// Lines: bandwidth. A line serves its queue first in, first out, as a card and the port of a switch do. Of a lane (one
// direction of a connection) only so many messages stand there at a time (SimNetworkOptions::at_sender, at_receiver);
// what is behind them gets a place at the end when one of them was served. So it is with a kernel's TCP, which hands a
// card two packets of a connection and the next when one has left; and what a port has no room for stays with its
// sender. Where it is one message, lanes take turns, and a heartbeat does not wait behind megabytes.
//
// What hosts send each other goes over their cards, one for all that is on a host. What stays on a host goes through
// memory, where each transport moves its own, as its thread does: no card and no other transport has to do with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "base/time.h"
#include "sim/connection.h"
#include "sim/medium.h"
#include "sim/network_options.h"

namespace byteps::sim {

class Lines {
 public:
  explicit Lines(Medium& medium) : medium_(medium) {}

  // A card by its host, or the memory that a transport moves by kMemory and that one's number.
  using LineId = std::uint64_t;

  // This host's card has so many bytes per second from now on, in both directions; 0: no limit.
  void slow_down(HostIndex host, std::uint64_t bytes_per_second);

  // The lane takes its places at the sender's line, if it has something to send and may. Each turn ends with kDepart.
  void offer(Connection& connection, int side);
  // The sender's line has served a lane, and serves the next one after serve_send().
  void end_send(LineId id);
  void serve_send(LineId id);
  bool is_held(Connection& connection, int side);

  // Likewise at the receiver's line, if something of it has reached that. Each turn ends with kArrive.
  void offer_far(Connection& connection, int side);
  void end_receive(LineId id);
  void serve_receive(LineId id);

 private:
  static constexpr LineId kMemory = LineId{1} << 32;

  struct Lane {
    ConnectionId connection;
    int side;
  };
  // What is sent, or what is received, one message after the other.
  struct Queue {
    std::deque<Lane> waiting;
    bool is_busy = false;
    Lane served{};       // while it is
    TimeNs free_ns = 0;  // since when it is not
  };
  struct Line {
    std::uint64_t bytes_per_second = 0;
    Queue send;
    Queue receive;
    TimeNs takes_ns(std::size_t bytes) const;
  };
  // Where this end of the connection sends and receives.
  static LineId line_of(const Connection& connection, int side);
  Line& line(LineId id);
  // The lane's place is free; null: nothing is left of it.
  Direction* end_turn(Queue& queue);

  Medium& medium_;
  std::vector<Line> cards_;   // by host
  std::vector<Line> memory_;  // by the transports' numbers
};

}  // namespace byteps::sim
