#include "topology/nvml.h"

#include <cstddef>
#include <map>

#include <dlfcn.h>

namespace byteps::topology {
namespace {

constexpr unsigned kLinksMax = 36;  // NVML_NVLINK_MAX_LINKS

template <typename Function>
bool find(void* library, const char* symbol, Function& function) {
  void* const found = ::dlsym(library, symbol);
  function = reinterpret_cast<Function>(found);
  return found != nullptr;
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
                        find(library, "nvmlDeviceGetHandleByPciBusId_v2", nvml.device_by_bus_id) &&
                        find(library, "nvmlDeviceGetNvLinkState", nvml.link_state) &&
                        find(library, "nvmlDeviceGetNvLinkRemotePciInfo_v2", nvml.link_remote);
  if (!is_whole) {
    return Status(Code::kUnsupported, std::string("no NVML: ") + file + " lacks a function");
  }
  return nvml;
}

std::vector<Peer> peers_of(const Nvml& nvml, const PciAddress& device) {
  std::map<PciAddress, std::uint8_t> links;
  if (nvml.init() != 0) return {};
  Nvml::Device* handle = nullptr;
  const bool is_known = nvml.device_by_bus_id(device.text().c_str(), &handle) == 0;
  for (unsigned link = 0; is_known && link < kLinksMax; ++link) {
    unsigned is_active = 0;
    if (nvml.link_state(handle, link, &is_active) != 0 || is_active == 0) continue;
    Nvml::PciInfo info{};
    PciAddress remote = kUnseenSwitch;
    if (nvml.link_remote(handle, link, &info) == 0) {
      info.bus_id[sizeof(info.bus_id) - 1] = '\0';
      remote = PciAddress::parse(info.bus_id).value_or(kUnseenSwitch);
    }
    ++links[remote];
  }
  (void)nvml.shutdown();
  if (links.size() > kPeersMax) return {};
  std::vector<Peer> peers;
  for (const auto& [address, count] : links) peers.push_back({.address = address, .links = count});
  return peers;
}

}  // namespace byteps::topology
