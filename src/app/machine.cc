#include "app/machine.h"

#include <cstring>
#include <fstream>
#include <memory>

#include <ifaddrs.h>
#include <sys/stat.h>

#include "base/ids.h"
#include "net/address.h"

namespace byteps {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string interface_of(const std::string& own_address) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    SocketAddress address;
    address.bytes = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&address.storage, entry->ifa_addr, address.bytes);
    if (address.endpoint().host == own_address) return entry->ifa_name;
  }
  return {};
}

}  // namespace

std::uint64_t machine_number() {
  const std::string boot = first_line("/proc/sys/kernel/random/boot_id");
  struct stat network {};
  if (boot.empty() || stat("/proc/self/ns/net", &network) != 0) return 0;
  return stable_hash(boot + " " + std::to_string(network.st_ino));
}

NetworkCard card_of(const std::string& own_address) {
  const std::string interface = interface_of(own_address);
  if (interface.empty()) return {};
  NetworkCard card{.number = stable_hash(std::to_string(machine_number()) + " " + interface)};
  struct stat device {};
  const std::string folder = "/sys/class/net/" + interface;
  if (stat((folder + "/device").c_str(), &device) != 0) return card;
  std::int64_t mbps = 0;
  std::ifstream file(folder + "/speed");
  if (file >> mbps && mbps > 0 && mbps <= 10'000'000) {
    card.rate_mbps = static_cast<std::uint32_t>(mbps);
  }
  return card;
}

}  // namespace byteps
