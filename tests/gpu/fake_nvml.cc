#include "tests/gpu/fake_nvml.h"

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

struct NvmlDevice {
  unsigned number = 0;  // as the machine counts
  int node = 0;
  int pcie_switch = 0;
  std::vector<NvmlDevice*> links;  // what is at the other end of each
};

namespace {

constexpr unsigned kLinksMax = 18;

std::string variable(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? "" : text;
}

// NVML of the process. A handle stays valid for ever, so that one that is used too late is not a crash.
struct Machine {
  std::mutex mutex;
  unsigned uses = 0;
  std::vector<std::unique_ptr<NvmlDevice>> devices;

  void read() {
    devices.clear();
    const std::string count = variable("FAKE_GPU_COUNT");
    const unsigned long all = count.empty() ? 2 : std::strtoul(count.c_str(), nullptr, 10);
    std::istringstream places(variable("FAKE_GPU_PLACES"));
    for (unsigned i = 0; i < all; ++i) {
      devices.push_back(std::make_unique<NvmlDevice>());
      devices.back()->number = i;
      std::string place;
      if (!std::getline(places, place, ',')) continue;
      std::sscanf(place.c_str(), "%d.%d", &devices.back()->node, &devices.back()->pcie_switch);
    }
    std::istringstream links(variable("FAKE_GPU_LINKS"));
    for (std::string link; std::getline(links, link, ',');) {
      std::size_t a = 0;
      std::size_t b = 0;
      unsigned times = 0;
      const bool is_one = std::sscanf(link.c_str(), "%zu-%zu:%u", &a, &b, &times) == 3;
      if (!is_one || a >= devices.size() || b >= devices.size() || a == b) {
        std::fprintf(stderr, "fake gpu: FAKE_GPU_LINKS: %s is not a-b:n of devices\n",
                     link.c_str());
        std::_Exit(2);
      }
      for (; times > 0; --times) {
        devices[a]->links.push_back(devices[b].get());
        devices[b]->links.push_back(devices[a].get());
      }
    }
  }
};

Machine& machine() {
  static auto* const one = new Machine;  // never destroyed: threads may outlive main
  return *one;
}

// Runs with NVML initialised, and with devices that are there.
template <typename Body>
NvmlResult with(std::initializer_list<const NvmlDevice*> devices, const Body& body) {
  Machine& all = machine();
  const std::lock_guard guard(all.mutex);
  if (all.uses == 0) return kNvmlUninitialized;
  for (const NvmlDevice* const device : devices) {
    if (device == nullptr) return kNvmlInvalidArgument;
  }
  return body(all);
}

void tell(const NvmlDevice& device, NvmlPciInfo* info) {
  *info = NvmlPciInfo{};
  info->bus = (device.number + 1) & 0xFFU;
  std::snprintf(info->legacy_bus_id, sizeof info->legacy_bus_id, "0000:%02X:00.0", info->bus);
  std::snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", info->bus);
}

}  // namespace

NvmlResult nvmlInit_v2() {
  Machine& all = machine();
  const std::lock_guard guard(all.mutex);
  if (all.uses++ == 0) all.read();
  return kNvmlSuccess;
}

NvmlResult nvmlShutdown() {
  return with({}, [](Machine& all) {
    --all.uses;
    return kNvmlSuccess;
  });
}

const char* nvmlErrorString(NvmlResult result) {
  switch (result) {
    case kNvmlSuccess:
      return "Success";
    case kNvmlUninitialized:
      return "Uninitialized";
    case kNvmlInvalidArgument:
      return "Invalid Argument";
    case kNvmlNotSupported:
      return "Not Supported";
    case kNvmlNotFound:
      return "Not Found";
    case kNvmlInsufficientSize:
      return "Insufficient Size";
  }
  return "Unknown Error";
}

NvmlResult nvmlDeviceGetCount_v2(unsigned* count) {
  return with({}, [&](Machine& all) {
    if (count == nullptr) return kNvmlInvalidArgument;
    *count = static_cast<unsigned>(all.devices.size());
    return kNvmlSuccess;
  });
}

NvmlResult nvmlDeviceGetHandleByIndex_v2(unsigned index, NvmlDevice** device) {
  return with({}, [&](Machine& all) {
    if (device == nullptr || index >= all.devices.size()) return kNvmlInvalidArgument;
    *device = all.devices[index].get();
    return kNvmlSuccess;
  });
}

NvmlResult nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, NvmlDevice** device) {
  return with({}, [&](Machine& all) {
    unsigned domain = 0;
    unsigned bus = 0;
    unsigned slot = 0;
    const bool is_id =
        bus_id != nullptr && std::sscanf(bus_id, "%x:%x:%x", &domain, &bus, &slot) == 3;
    if (device == nullptr || !is_id) return kNvmlInvalidArgument;
    if (domain != 0 || slot != 0 || bus == 0 || bus > all.devices.size()) return kNvmlNotFound;
    *device = all.devices[bus - 1].get();
    return kNvmlSuccess;
  });
}

NvmlResult nvmlDeviceGetPciInfo_v3(NvmlDevice* device, NvmlPciInfo* info) {
  return with({device}, [&](Machine&) {
    if (info == nullptr) return kNvmlInvalidArgument;
    tell(*device, info);
    return kNvmlSuccess;
  });
}

NvmlResult nvmlDeviceGetUUID(NvmlDevice* device, char* uuid, unsigned length) {
  return with({device}, [&](Machine&) {
    if (uuid == nullptr) return kNvmlInvalidArgument;
    const int bytes = std::snprintf(uuid, length, "GPU-%08x-0000-4000-8000-000000000000",
                                    0x12345678U * (device->number + 1));
    return static_cast<unsigned>(bytes) < length ? kNvmlSuccess : kNvmlInsufficientSize;
  });
}

NvmlResult nvmlDeviceGetNvLinkState(NvmlDevice* device, unsigned link, unsigned* is_active) {
  return with({device}, [&](Machine&) {
    if (link >= kLinksMax || is_active == nullptr) return kNvmlInvalidArgument;
    if (device->links.empty()) return kNvmlNotSupported;  // it has none
    *is_active = link < device->links.size() ? 1 : 0;
    return kNvmlSuccess;
  });
}

NvmlResult nvmlDeviceGetNvLinkRemotePciInfo_v2(NvmlDevice* device, unsigned link,
                                               NvmlPciInfo* info) {
  return with({device}, [&](Machine&) {
    if (link >= kLinksMax || info == nullptr) return kNvmlInvalidArgument;
    if (link >= device->links.size()) return kNvmlNotSupported;
    tell(*device->links[link], info);
    return kNvmlSuccess;
  });
}

NvmlResult nvmlDeviceGetTopologyCommonAncestor(NvmlDevice* one, NvmlDevice* other,
                                               NvmlLevel* level) {
  return with({one, other}, [&](Machine&) {
    if (level == nullptr) return kNvmlInvalidArgument;
    const bool is_one_node = one->node == other->node;
    const bool is_one_switch = is_one_node && one->pcie_switch == other->pcie_switch;
    *level = one == other    ? kNvmlInternal
             : is_one_switch ? kNvmlSingle
             : is_one_node   ? kNvmlHostBridge
                             : kNvmlSystem;
    return kNvmlSuccess;
  });
}
