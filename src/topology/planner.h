// The planner: chooses the plan (plan.h) whose slowest link takes the shortest time. A pure function of the machine, in
// whole numbers: all ranks choose the same.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "topology/machine.h"
#include "topology/plan.h"

namespace byteps::topology {

// What the user wants: BYTEPS_PCIE_SWITCH_SIZE, BYTEPS_REDUCE_ROOTS.
struct Wishes {
  std::uint32_t switch_size = 0;     // 0: none
  std::vector<std::uint32_t> roots;  // only these lead; ranks of the machine, from 0
};

// The strategies that a machine has groups for. Whoever has no device on some rank, or two ranks on one, has kHost
// alone.
std::vector<Strategy> strategies_of(const Machine& machine);
// Of this strategy, with the mix and the weights as good as they can be found.
Plan best_of(const Machine& machine, Strategy strategy);
// Of this strategy, nothing mixed, and all lead alike.
Plan even_of(const Machine& machine, Strategy strategy);

// The fastest of all strategies; of those that are about as fast, the one that copies less.
Plan plan_of(const Machine& machine, const Wishes& wishes = {});

// "2 switches x 4 GPUs, card at the root: NCCL behind each switch, the CPU adds, 20 % straight to the host, all lead;
// 65 Gbit/s expected (one ring over all: 45)"
std::string describe(const Machine& machine, const Plan& plan);

}  // namespace byteps::topology
