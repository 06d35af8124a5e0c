// Lines: the hosts' bandwidth. A lane (one direction of a connection) that has something to send stands in its host's
// queue once, sends one message when its turn comes, and goes to the end again; likewise where it is received. So a
// heartbeat does not wait behind megabytes.
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

  // This host's line has so many bytes per second from now on, in both directions; 0: no limit.
  void slow_down(HostIndex host, std::uint64_t bytes_per_second);

  // The lane takes its place at the sender's line, if it has something to send and may. Its turn ends with kDepart.
  void offer(Connection& connection, int side);
  // The sender's line has served a lane, and serves the next one after serve_send().
  void end_send(HostIndex host) { line(host).send.is_busy = false; }
  void serve_send(HostIndex host);

  // Likewise at the receiver's line, if something of it has reached that. Its turn ends with kArrive.
  void offer_far(Connection& connection, int side);
  void end_receive(HostIndex host);
  void serve_receive(HostIndex host);

 private:
  struct Lane {
    ConnectionId connection;
    int side;
  };
  // What a host sends, or what it receives: one message after the other, of each lane in turn.
  struct Queue {
    std::deque<Lane> waiting;
    bool is_busy = false;
    TimeNs free_ns = 0;  // since when it is not
  };
  struct Line {
    std::uint64_t bytes_per_second = 0;
    Queue send;
    Queue receive;
    TimeNs takes_ns(std::size_t bytes) const;
  };
  Line& line(HostIndex host);

  Medium& medium_;
  std::vector<Line> lines_;  // by host
};

}  // namespace byteps::sim
