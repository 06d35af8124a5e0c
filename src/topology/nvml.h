// Nvml: which devices a machine has, and which of them NVLink joins, by NVIDIA's management library. It is found at run
// time, and where it is not, nobody has NVLink, and a job does not know its devices: bps doctor makes the plan of what
// the kernel says. Unlike CUDA's driver it may be asked before a fork: it makes no context.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/place.h"
#include "base/status.h"

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
  Code (*device_count)(unsigned* count) = nullptr;
  Code (*device_by_index)(unsigned index, Device**) = nullptr;
  Code (*device_by_bus_id)(const char* bus_id, Device**) = nullptr;
  Code (*pci_info)(Device*, PciInfo*) = nullptr;
  Code (*uuid)(Device*, char* text, unsigned capacity) = nullptr;
  Code (*link_state)(Device*, unsigned link, unsigned* is_active) = nullptr;
  Code (*link_remote)(Device*, unsigned link, PciInfo*) = nullptr;
};

inline constexpr const char* kNvmlLibrary = "libnvidia-ml.so.1";

// The library's table; it stays loaded. kUnsupported: it is not there, or lacks a function. `path`: a file, or empty
// for where the system has it.
Result<Nvml> load_nvml(const std::string& path);

// While there is one NVML stays initialised: what is asked then does not begin it anew, which may take a second where
// nobody else has the devices open.
class NvmlSession {
 public:
  explicit NvmlSession(const Nvml& nvml) : nvml_(nvml), is_begun_(nvml.init() == 0) {}
  ~NvmlSession() {
    if (is_begun_) (void)nvml_.shutdown();
  }
  NvmlSession(const NvmlSession&) = delete;
  NvmlSession& operator=(const NvmlSession&) = delete;

 private:
  const Nvml& nvml_;
  const bool is_begun_;
};

// A device that this process may use: in a container, those that it was given.
struct ListedDevice {
  PciAddress address;
  std::string uuid;  // "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"; empty: NVML does not say
};
// All of them, in the order of NVML, which is that of their addresses.
std::vector<ListedDevice> devices_of(const Nvml& nvml);

// At the other end of a link of which NVML says only that it is there: an NVSwitch that a virtual machine does not see.
inline constexpr PciAddress kUnseenSwitch{.domain = 0xffffffff, .bus = 0xff, .slot = 0};

// What is at the other ends of the device's links, in order of address. Empty where NVML does not know the device, or
// it has no links.
std::vector<Peer> peers_of(const Nvml& nvml, const PciAddress& device);

}  // namespace byteps::topology
