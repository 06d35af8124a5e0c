// Carriage: a message's road.
//
//   send() -> waits for its line -> departs -> flies -> reaches the other host, waits for the receiver's line
//          -> arrives -> poll() gives it out -> given_out()
//
// A connection keeps its order, two connections do not. In all functions `side` is the end that has sent the message,
// unless they say something else.
#pragma once

#include <cstddef>

#include "base/status.h"
#include "net/transport.h"
#include "sim/connection.h"
#include "sim/endings.h"
#include "sim/flight.h"
#include "sim/lines.h"
#include "sim/medium.h"
#include "sim/payloads.h"
#include "sim/repeats.h"
#include "sim/station.h"

namespace byteps::sim {

class Carriage {
 public:
  Carriage(Medium& medium, Lines& lines, Payloads& payloads, Endings& endings, Repeats& repeats)
      : medium_(medium), lines_(lines), payloads_(payloads), endings_(endings), repeats_(repeats) {}

  // As Transport::send().
  Status send(ConnectionId id, int side, const Outgoing& message);
  // The sender's line is done with a message of this lane.
  void on_depart(Lines::LineId line, ConnectionId id, int side);
  void on_reach(Connection& connection, int side);
  // The receiver's line is.
  void on_arrive(Lines::LineId line, ConnectionId id, int side);
  // The end `side` was given this message.
  void given_out(ConnectionId id, int side, const Ready& received);
  // The end `side` was given a kSent: there is room in its window.
  void sent_given_out(ConnectionId id, int side, std::size_t charged_bytes);

 private:
  void depart(Connection& connection, int side);
  void arrive(Connection& connection, int side);
  bool corrupts(Connection& connection, int side, Flight& flight);

  Medium& medium_;
  Lines& lines_;
  Payloads& payloads_;
  Endings& endings_;
  Repeats& repeats_;
};

}  // namespace byteps::sim
