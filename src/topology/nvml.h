// Nvml: which devices NVLink joins, by NVIDIA's management library. It is found at run time, and where it is not,
// nobody has NVLink: then plans are made of what the kernel says.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "topology/place.h"

namespace byteps::topology {

// The functions that are used, as nvml.h declares them (tests/topology/nvml_test.cc compares).
struct Nvml {
  using Code = unsigned;  // nvmlReturn_t; 0: success
  struct Device;          // what nvmlDevice_t points to
  struct PciInfo {        // nvmlPciInfo_t
    char legacy_bus_id[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
  };

  Code (*init)() = nullptr;
  Code (*shutdown)() = nullptr;
  Code (*device_by_bus_id)(const char* bus_id, Device**) = nullptr;
  Code (*link_state)(Device*, unsigned link, unsigned* is_active) = nullptr;
  Code (*link_remote)(Device*, unsigned link, PciInfo*) = nullptr;
};

inline constexpr const char* kNvmlLibrary = "libnvidia-ml.so.1";

// The library's table; it stays loaded. kUnsupported: it is not there, or lacks a function. `path`: a file, or empty
// for where the system has it.
Result<Nvml> load_nvml(const std::string& path);

// At the other end of a link of which NVML says only that it is there: an NVSwitch that a virtual machine does not see.
inline constexpr PciAddress kUnseenSwitch{.domain = 0xffffffff, .bus = 0xff, .slot = 0};

// What is at the other ends of the device's links, in order of address. Empty where NVML does not know the device, or
// it has no links.
std::vector<Peer> peers_of(const Nvml& nvml, const PciAddress& device);

}  // namespace byteps::topology
