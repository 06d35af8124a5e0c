// MachineRun: an exchange inside a machine in virtual time, event by event, by a plan that is given. It knows nothing
// of the planner's formula (topology/plan.h), and judges it: it has what that leaves out.
//
// M bytes are cut into pieces, and each goes its way at its own pace:
//
//     begin      in order, as memory of the host comes free: what is reduced finds it there, and no group runs ahead
//     reduce     from rank to rank along the ring of each group, to the piece's leader there. A group has so many
// pieces
//                under way at a time, as NCCL has launches
//     copy out   by the leader's engine, one after the other with a pause between two, then over the wires to the host.
//     sum        by the rank that leads the group that leads, once all groups have brought it
//     network    over that rank's card, and back from the other machines, which do the same at the same time
//     copy in, spread    as the way out, in the other direction
//
// or, of the share that goes straight to the host, copy out and copy in by every rank. A link (topology/machine.h)
// moves one piece at a time, first in, first out; a piece is moved over one link of its way after the other.
#pragma once

#include <cstdint>
#include <vector>

#include "base/time.h"
#include "topology/machine.h"
#include "topology/plan.h"

namespace byteps::sim {

struct MachineRunOptions {
  std::uint64_t bytes = std::uint64_t{256} << 20;  // M
  std::uint32_t pieces = 512;
  std::uint32_t pieces_under_way = 128;  // at a time: so many have memory of the host
  std::uint32_t launches = 0;  // of a group, in each direction; 0: four for each of its ranks
  TimeNs pause_ns = 500;       // of a copy engine, between two copies
  TimeNs network_ns = 20 * kMicrosecond;
};

struct MachineRunResult {
  TimeNs ns = 0;
  std::vector<std::uint64_t> carried;  // bytes, by link
  std::uint64_t bytes = 0;             // M, of whole pieces
};

MachineRunResult run_machine(const topology::Machine& machine, const topology::Plan& plan,
                             const MachineRunOptions& options = {});

}  // namespace byteps::sim
