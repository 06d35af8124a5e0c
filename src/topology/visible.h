// Which devices a process sees, and which of them is a worker's.
//
// A worker says its place when it joins, and a framework chooses the device later: torch.cuda.set_device(local_rank())
// comes after init(). So this is what it will choose by custom, not what it has chosen: one rank for each GPU, in their
// order (docs/topology.md).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/place.h"
#include "topology/nvml.h"

namespace byteps::topology {

// Those that CUDA counts, from ordinal 0. `said` is CUDA_VISIBLE_DEVICES (nullopt: it is not set): numbers of devices,
// or beginnings of their UUIDs; what stands behind one that is none is not seen (CUDA C++ Programming Guide, CUDA
// environment variables). Numbers count by address, as with CUDA_DEVICE_ORDER=PCI_BUS_ID; CUDA's own order differs
// where devices of several kinds are in one machine. Instances of MIG are none.
std::vector<PciAddress> visible_devices(const std::vector<ListedDevice>& all,
                                        const std::optional<std::string>& said);

// The only one; or, where the launcher has said local ranks, the one of this number. nullopt: it cannot be told.
std::optional<PciAddress> device_of(const std::vector<PciAddress>& visible,
                                    const LocalPlace& local);

}  // namespace byteps::topology
