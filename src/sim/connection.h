// Connection: two ends and what is under way between them, each way. Records: what happens to them is in endings.h,
// handshakes.h and carriage.h.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

#include "base/status.h"
#include "base/time.h"
#include "net/transport.h"
#include "sim/flight.h"
#include "sim/network_options.h"

namespace byteps::sim {

class Station;

using ConnectionId = std::uint32_t;

// From one end to the other. Flights are numbered in the order sent.
struct Direction {
  static constexpr std::uint64_t kNoNumber = ~std::uint64_t{0};

  std::deque<Flight*> flights;
  std::uint64_t first = 0;  // number of flights.front()
  std::uint64_t next_depart = 0;
  std::uint64_t next_arrive = 0;
  std::uint64_t next_sent = 0;
  std::uint64_t lost_from = kNoNumber;
  TimeNs last_arrival = 0;  // no message of it reaches the other host earlier
  TimeNs depart_not_before_ns = 0;
  TimeNs arrive_not_before_ns = 0;
  TimeNs resume_at_ns = 0;        // a kResume is scheduled for then
  std::size_t at_line = 0;        // places at its sender's line, with the one that is served
  std::size_t at_far_line = 0;    // ... its receiver's
  std::deque<TimeNs> reached_ns;  // of messages that wait for the receiver's line: since when
  std::size_t charged_bytes = 0;  // of its window
  Lending lending = Lending::kCopyAtSend;

  std::uint64_t end() const { return first + flights.size(); }
  Flight& flight(std::uint64_t number) const { return *flights[number - first]; }
  // How many there are from this number on.
  std::uint64_t count_from(std::uint64_t number) const { return end() - std::min(end(), number); }
  // Whether this one is lost. The end behind all messages is only when the connection is broken.
  bool has_lost(std::uint64_t number, bool is_broken) const {
    return number >= lost_from && (is_broken || !flight(number).fin);
  }
  // Moves next_depart to the next one that is still to be sent; false when there is none.
  bool seek_departure() {
    next_depart = std::max(next_depart, first);
    while (next_depart < end() && flight(next_depart).gone) ++next_depart;
    return next_depart < end();
  }
};

enum class EndState : std::uint8_t { kNone, kConnecting, kUp, kDown };

struct End {
  Station* owner = nullptr;  // null: it has gone, or knows no more of this connection
  std::uint32_t number = 0;  // of the owner, this and the next two also when that has gone
  HostIndex host = 0;
  std::string name;
  PeerId peer;
  EndState state = EndState::kNone;

  bool is_over() const { return state == EndState::kDown || state == EndState::kNone; }
};

// ends[0] connects, ends[1] listens. way[i] goes from ends[i] to the other.
struct Connection {
  ConnectionId id = 0;
  End ends[2];
  Direction way[2];
  Endpoint to;
  Hello hello;   // of ends[0]
  Hello answer;  // of ends[1]
  Status refused;
  TimeNs delay_ns = 0;
  bool is_naming = false;  // ends[0] waits for the look-up of the host's name
  bool broken = false;

  // Both ends are on one host, so what goes between them goes through memory. Not known before somebody listens.
  bool is_within_host() const { return ends[1].number != 0 && ends[0].host == ends[1].host; }
  // The owners of its ends have these numbers, one way or the other.
  bool is_between(std::uint32_t a, std::uint32_t b) const {
    return std::minmax(ends[0].number, ends[1].number) == std::minmax(a, b);
  }
};

}  // namespace byteps::sim
