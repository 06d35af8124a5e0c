// Neighbours: on which machine each worker is, and which of its machine's workers this one is. One source for both, so
// that local ranks and the machines' numbers fit together.
//
// A launcher that says local ranks counts machines itself: it may take one for several (containers), or several for
// one. Where it says none, workers to whom the kernel says the same number are on one machine (app/machine.h).
#pragma once

#include <cstdint>
#include <vector>

#include "base/config.h"
#include "net/wire.h"

namespace byteps {

struct Neighbours {
  std::vector<std::uint32_t> machines;  // of the workers, by rank
  std::uint32_t local_rank = 0;
  std::uint32_t local_size = 1;
};

// What the worker your_rank of this roster, whose settings these are, has to know.
Neighbours neighbours_of(const wire::Roster& roster, const JobConfig& job);

}  // namespace byteps
