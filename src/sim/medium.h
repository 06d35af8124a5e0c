// Medium: what the pieces of a simulated network share: options and chance, the time and what is to happen on it, the
// connections and what stands in their way, and what was seen. The pieces are in wires.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/prng.h"
#include "base/status.h"
#include "base/time.h"
#include "sim/agenda.h"
#include "sim/connections.h"
#include "sim/flight.h"
#include "sim/network_options.h"
#include "sim/obstacles.h"
#include "sim/station.h"
#include "sim/trace.h"

namespace byteps::sim {

// What a message costs of the window beside its payload.
inline constexpr std::size_t kMessageBytes = 512;

struct Medium {
  Medium(SimNetworkOptions network_options, const Prng& chance, Trace& events);

  SimNetworkOptions options;
  Prng prng;
  Trace& trace;
  Agenda agenda;
  FlightPool flights;
  Connections connections{flights};
  Obstacles obstacles;
  Stations stations;  // those that live
  NetworkProbes probes;
  NetworkCounts counts;

  TimeNs now() const { return agenda.now(); }
  TimeNs random_up_to(TimeNs most) {
    return static_cast<TimeNs>(prng.below(static_cast<std::uint64_t>(most) + 1));
  }
  // How long what leaves now is on the way.
  TimeNs flight_ns(const Connection& connection) {
    if (connection.is_within_host()) {
      return options.memory_delay_ns + random_up_to(options.memory_delay_ns);
    }
    return connection.delay_ns + random_up_to(options.jitter_ns);
  }
  // Of those of this direction from number `from` on, only some are not lost: chance says how many.
  void lose_tail(Direction& way, std::uint64_t from);
  // Until when nothing may depart from this end.
  TimeNs held_until(const Connection& connection, int side) const;

  // Into the trace: what the end `side` does or hears.
  void note(Trace::What what, const char* word, const Connection& connection, int side,
            std::span<const std::byte> header = {}, const Status& why = {});
};

// Of bytes that are sent.
std::uint64_t hash_of(std::span<const std::byte> bytes);

}  // namespace byteps::sim
