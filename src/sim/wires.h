// Wires: the pieces of a simulated network, and what reaches which of them when it happens. A SimTransport uses them
// from its side, SimNetwork from the other.
#pragma once

#include "base/prng.h"
#include "sim/agenda.h"
#include "sim/carriage.h"
#include "sim/endings.h"
#include "sim/handshakes.h"
#include "sim/lines.h"
#include "sim/medium.h"
#include "sim/payloads.h"
#include "sim/repeats.h"
#include "sim/trace.h"

namespace byteps::sim {

struct Wires {
  Wires(SimNetworkOptions options, const Prng& prng, Trace& trace);
  ~Wires();
  Wires(const Wires&) = delete;
  Wires& operator=(const Wires&) = delete;

  Medium medium;  // what they share
  Lines lines{medium};
  Payloads payloads{medium};
  Endings endings{medium, lines, payloads};
  Handshakes handshakes{medium, endings};
  Repeats repeats{medium};
  Carriage carriage{medium, lines, payloads, endings, repeats};

  // Now it happens.
  void happen(const Scheduled& event);
};

}  // namespace byteps::sim
