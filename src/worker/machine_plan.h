// MachinePlan: by which plan the GPUs of a machine would sum (topology/planner.h), as its workers find it in their
// roster. All of a machine find the same.
//
// No exchange follows it yet: what is on GPUs is copied to the host and summed there (docs/topology.md).
#pragma once

#include <string>

#include "base/config.h"
#include "base/ids.h"
#include "net/wire.h"

namespace byteps {

// Of a machine with more workers nobody plans. The loop does nothing else meanwhile: for 8 about 10 ms, for 16 up to
// 400, for 32 seconds, and who is silent for so long is taken for lost.
inline constexpr std::size_t kPlannedWorkersMax = 8;

// What `self` says of its machine when an epoch begins, in a line, with each wish that cannot be followed. Empty: it
// says nothing, for the first worker of its machine does, or no worker there is known to have a GPU.
std::string machine_line_of(const wire::Roster& roster, WorkerRank self,
                            const DeviceConfig& wishes);

}  // namespace byteps
