// Agenda: the network's time, and what is going to happen on it. Equal times happen in the order they were scheduled.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <queue>
#include <vector>

#include "base/time.h"
#include "sim/connection.h"

namespace byteps::sim {

enum class Happening : std::uint8_t {
  kNamed,  // argument: the look-up
  kSyn,
  kHello,
  kRefused,
  kConnectTimeout,
  kResume,       // what was held may depart
  kDepart,       // the sender's line has sent it; argument: the line
  kReach,        // it is at the receiver's host
  kArrive,       // the receiver's line has received it; argument: the line
  kHear,         // of a cut
  kUnreachable,  // argument: the wall
  kRepeat,       // argument: the repeat
};

struct Scheduled {
  TimeNs at;
  std::uint64_t number;  // in the order scheduled
  Happening what;
  std::uint8_t side;
  ConnectionId connection;
  std::uint64_t argument;
  bool operator>(const Scheduled& other) const {
    return at != other.at ? at > other.at : number > other.number;
  }
};

class Agenda {
 public:
  TimeNs now() const { return now_; }
  // When the next of it happens; kNever.
  TimeNs next_ns() const { return queue_.empty() ? kNever : queue_.top().at; }

  void schedule(TimeNs at, Happening what, ConnectionId id, int side, std::uint64_t argument = 0);
  // The next that happens until `to`, which must not be before now(): then now() is its time. Otherwise nothing, and
  // now() is `to`.
  std::optional<Scheduled> next(TimeNs to);

 private:
  TimeNs now_ = 0;
  std::uint64_t last_number_ = 0;
  std::priority_queue<Scheduled, std::vector<Scheduled>, std::greater<>> queue_;
};

}  // namespace byteps::sim
