// A world: one simulated job from its seed to its end, with everything that must hold looked at (docs/simulator.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sim/ledger.h"
#include "sim/plan.h"

namespace byteps::sim {

struct WorldOptions {
  std::uint64_t seed = 1;
  PlanOptions plan;
  std::size_t trace_events = 0;  // how many of the last events to tell in words
  bool trace_payloads = false;   // into the hash
  // To see that a broken network is found: called with each message just before it is given out.
  SimNetworkOptions::Tamper tamper;
  // Stages of each worker's road beside the network's (ClusterOptions).
  std::function<RoadEnds()> road_ends;
};

struct WorldResult {
  Invariant broken = Invariant::kNone;
  std::string text;                // what was found
  std::string size;                // of the world, in a line
  std::vector<std::string> trace;  // the last events
  std::uint64_t trace_hash = 0;    // equal for equal seeds
  std::uint64_t messages = 0;
  std::uint64_t payload_bytes = 0;
  std::uint64_t turns = 0;
  std::uint64_t faults = 0;
  Faults happened;               // of which kinds any did
  std::uint64_t reconnects = 0;  // of workers to shards
  std::string lost;              // who was lost, and how
  TimeNs virtual_ns = 0;
  bool ok() const { return broken == Invariant::kNone; }
};

WorldResult run_world(const WorldOptions& options);

// The same in words, as a report of a failure has it.
std::string report(const WorldOptions& options, const WorldResult& result);

}  // namespace byteps::sim
