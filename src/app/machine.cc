#include "app/machine.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <memory>

#include <ifaddrs.h>
#include <sched.h>
#include <sys/stat.h>

#include "base/ids.h"
#include "net/address.h"
#include "net/cards.h"
#include "topology/machine.h"
#include "topology/sysfs.h"

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

// On which this process may run.
std::vector<std::uint32_t> own_cpus() {
  std::vector<std::uint32_t> cpus;
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cpus;  // more than 1024 of them
  for (std::uint32_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

// net.ipv4.conf: of several settings of it the larger one of an interface and of all counts.
int setting_of(const std::string& interface, const char* name) {
  int largest = 0;
  for (const std::string& who : {std::string("all"), interface}) {
    std::ifstream file("/proc/sys/net/ipv4/conf/" + who + "/" + name);
    int value = 0;
    if (file >> value) largest = std::max(largest, value);
  }
  return largest;
}

}  // namespace

std::vector<std::string> interfaces_of_worker(const std::vector<std::string>& interfaces,
                                              const LocalPlace& local) {
  const topology::Sysfs sysfs("/sys");
  std::vector<topology::Found> cards;
  for (const std::string& name : interfaces) cards.push_back(sysfs.card(name));
  const topology::RankHere rank{
      .index = local.rank, .count = local.size, .device = {}, .node = sysfs.node_of(own_cpus())};
  std::vector<std::string> own;
  for (const std::size_t card : topology::cards_of_rank(rank, cards)) {
    own.push_back(interfaces[card]);
  }
  return own;
}

std::string trouble_of_one_subnet(const CardList& cards) {
  const auto pair = cards_of_one_subnet(cards, interface_addresses());
  if (!pair) return {};
  const bool are_apart = [&] {
    for (const std::string& each : {pair->first, pair->second}) {
      if (setting_of(each, "arp_ignore") < 1 || setting_of(each, "arp_announce") < 2) return false;
      if (setting_of(each, "rp_filter") == 1) return false;
    }
    return true;
  }();
  if (are_apart) return {};
  return pair->first + " and " + pair->second +
         " (DMLC_INTERFACE) are in one subnet, and the kernel takes what is sent to one of them at "
         "the other as well, or drops it: sysctl -w net.ipv4.conf.all.arp_ignore=1 "
         "net.ipv4.conf.all.arp_announce=2 net.ipv4.conf.all.rp_filter=2, or give them subnets of "
         "their own (docs/topology.md)";
}

std::uint64_t machine_number() {
  const std::string boot = first_line("/proc/sys/kernel/random/boot_id");
  struct stat network {};
  if (boot.empty() || stat("/proc/self/ns/net", &network) != 0) return 0;
  return stable_hash(boot + " " + std::to_string(network.st_ino));
}

NetworkCard card_of(const std::string& own_address) {
  const std::string interface = interface_of(own_address);
  if (interface.empty()) return {};
  NetworkCard card{.number = stable_hash(std::to_string(machine_number()) + " " + interface),
                   .rate_mbps = 0};
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
