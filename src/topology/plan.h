// Plan: how the ranks of a machine bring their gradients to its network cards, and the results back; and what that
// takes. The planner (planner.h) chooses one.
//
// M bytes on each rank become one sum for the machine, which goes to the servers, and the result comes back:
//
//     a share 1 - f   is reduced in groups (by NCCL), each part to its leader in the group; the leader copies it to
// host
//                     memory, the leader of one of the groups adds what the groups have, and sends it. On the way back
//                     each group's leader copies the result to its device, and NCCL spreads it in the group
//     a share f       is copied to the host by every rank, added there, and copied back by every rank
//
// With weights X_i of a group's leaders (they add up to 1 in each group of l), Y_i = X_i x the group's weight, and G
// groups, N ranks in all, in units of M, what crosses on the way out; on the way back the same in the other direction:
//
//     from i to the next of its ring   (1 - f) ((1 - X_i) + (1 - X_next)), for spreading takes the same ring
//     i to the host                    (1 - f) X_i + f
//     sums of i                        Y_i ((1 - f) G + f N), without what has one contribution only
//     card of i                        Y_i
//     from node to node                what a leader adds and has from another node, what it sends through a card there
//
// With equal weights the ring is (1 - f) 2 (l - 1)/l, and a device's wire (1 - f)(2l - 1)/l + f: OSDI'20, section 4.2.
// The time is that of the link which takes longest. Copies, launches and the filling of pipelines are not in it; the
// simulated machine (sim/machine_run.h) has them, and judges.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "topology/machine.h"

namespace byteps::topology {

inline constexpr std::int64_t kWhole = std::int64_t{1} << 20;  // M, and a weight of 1

enum class Strategy : std::uint8_t {
  kAll,       // one group: NCCL over all
  kSwitches,  // a group behind each switch, the CPU adds: CPU-assisted aggregation
  kIslands,   // a group for each island of NVLink
  kHost,      // no groups: all is copied to the host and added there
  kGiven,     // groups of a size that the user gave
};

struct Plan {
  Strategy strategy = Strategy::kHost;
  std::vector<std::vector<std::uint32_t>> groups;  // of ranks, in order of the ring
  std::int64_t direct = 0;                         // f
  std::vector<std::int64_t> weights;               // X, by rank
  std::vector<std::int64_t> group_weights;         // what the leaders of each group send
  std::vector<std::string> remarks;                // about wishes that could not be followed

  // At which M goes out and its sum comes back; above 0.
  std::uint32_t rate_mbps = 0;
  std::string slowest;  // the link

  // Y of a rank of this group.
  std::int64_t lead(std::size_t group, std::uint32_t rank) const {
    return group_weights[group] * weights[rank] / kWhole;
  }
  // Bytes that are copied from devices, in parts of M.
  std::int64_t copies() const;
};

// What each link carries in an exchange, on the way out and back, in parts of M.
std::vector<std::int64_t> loads_of(const Machine& machine, const Plan& plan);
// The same plan with its rate.
Plan rated(const Machine& machine, Plan plan);

// Of a load of a link, in parts of M, in units that are the same for all links.
inline constexpr int kTimeBits = 24;
std::int64_t time_of(std::int64_t load, std::uint32_t rate_mbps);

}  // namespace byteps::topology
