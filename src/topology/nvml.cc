#include "topology/nvml.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <optional>

#include <dlfcn.h>

namespace byteps::topology {
namespace {

constexpr unsigned kLinksMax = 36;      // NVML_NVLINK_MAX_LINKS
constexpr unsigned kDevicesMax = 256;   // of a machine
constexpr std::size_t kUuidBytes = 96;  // NVML_DEVICE_UUID_V2_BUFFER_SIZE

template <typename Function>
bool find(void* library, const char* symbol, Function& function) {
  void* const found = ::dlsym(library, symbol);
  function = reinterpret_cast<Function>(found);
  return found != nullptr;
}

std::optional<PciAddress> address_of(Nvml::PciInfo& info) {
  info.bus_id[sizeof(info.bus_id) - 1] = '\0';
  return PciAddress::parse(info.bus_id);
}

}  // namespace

Result<Nvml> load_nvml(const std::string& path) {
  const char* const file = path.empty() ? kNvmlLibrary : path.c_str();
  void* const library = ::dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return Status(Code::kUnsupported, std::string("no NVML: ") + file + " was not found");
  }
  Nvml nvml;
  const bool is_whole = find(library, "nvmlInit_v2", nvml.init) &&
                        find(library, "nvmlShutdown", nvml.shutdown) &&
                        find(library, "nvmlDeviceGetCount_v2", nvml.device_count) &&
                        find(library, "nvmlDeviceGetHandleByIndex_v2", nvml.device_by_index) &&
                        find(library, "nvmlDeviceGetHandleByPciBusId_v2", nvml.device_by_bus_id) &&
                        find(library, "nvmlDeviceGetPciInfo_v3", nvml.pci_info) &&
                        find(library, "nvmlDeviceGetUUID", nvml.uuid) &&
                        find(library, "nvmlDeviceGetNvLinkState", nvml.link_state) &&
                        find(library, "nvmlDeviceGetNvLinkRemotePciInfo_v2", nvml.link_remote);
  if (!is_whole) {
    return Status(Code::kUnsupported, std::string("no NVML: ") + file + " lacks a function");
  }
  return nvml;
}

std::vector<ListedDevice> devices_of(const Nvml& nvml) {
  const NvmlSession session(nvml);
  std::vector<ListedDevice> devices;
  unsigned count = 0;
  if (nvml.device_count(&count) != 0) return devices;
  for (unsigned index = 0; index < std::min(count, kDevicesMax); ++index) {
    Nvml::Device* handle = nullptr;
    Nvml::PciInfo info{};
    // One that has fallen off the bus: its number is free, as it is for CUDA.
    if (nvml.device_by_index(index, &handle) != 0 || nvml.pci_info(handle, &info) != 0) continue;
    const std::optional<PciAddress> address = address_of(info);
    if (!address) continue;
    std::array<char, kUuidBytes> uuid{};
    if (nvml.uuid(handle, uuid.data(), kUuidBytes) != 0) uuid[0] = '\0';
    uuid.back() = '\0';
    devices.push_back({.address = *address, .uuid = uuid.data()});
  }
  return devices;
}

std::vector<Peer> peers_of(const Nvml& nvml, const PciAddress& device) {
  const NvmlSession session(nvml);
  std::map<PciAddress, std::uint8_t> links;
  Nvml::Device* handle = nullptr;
  const bool is_known = nvml.device_by_bus_id(device.text().c_str(), &handle) == 0;
  for (unsigned link = 0; is_known && link < kLinksMax; ++link) {
    unsigned is_active = 0;
    if (nvml.link_state(handle, link, &is_active) != 0 || is_active == 0) continue;
    Nvml::PciInfo info{};
    PciAddress remote = kUnseenSwitch;
    if (nvml.link_remote(handle, link, &info) == 0) {
      remote = address_of(info).value_or(kUnseenSwitch);
    }
    ++links[remote];
  }
  if (links.size() > kPeersMax) return {};
  std::vector<Peer> peers;
  for (const auto& [address, count] : links) peers.push_back({.address = address, .links = count});
  return peers;
}

}  // namespace byteps::topology
