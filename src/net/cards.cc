#include "net/cards.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

namespace byteps {
namespace {

// Of an address of either family, in the order of the network.
std::vector<std::uint8_t> bytes_of(const SocketAddress& address) {
  std::vector<std::uint8_t> bytes;
  if (address.family() == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, &address.storage, sizeof v4);
    bytes.resize(sizeof v4.sin_addr);
    std::memcpy(bytes.data(), &v4.sin_addr, bytes.size());
  } else if (address.family() == AF_INET6) {
    sockaddr_in6 v6{};
    std::memcpy(&v6, &address.storage, sizeof v6);
    bytes.resize(sizeof v6.sin6_addr);
    std::memcpy(bytes.data(), &v6.sin6_addr, bytes.size());
  }
  return bytes;
}

bool is_of_link(const SocketAddress& address) {
  if (address.family() != AF_INET6) return false;
  sockaddr_in6 v6{};
  std::memcpy(&v6, &address.storage, sizeof v6);
  return IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr);
}

bool is_in_subnet(const InterfaceAddress& own, const SocketAddress& other) {
  const std::vector<std::uint8_t> a = bytes_of(own.address);
  const std::vector<std::uint8_t> b = bytes_of(other);
  if (a.size() != b.size()) return false;
  const std::size_t whole = std::min<std::size_t>(own.subnet_bits / 8, a.size());
  if (!std::equal(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(whole), b.begin()))
    return false;
  const unsigned rest = own.subnet_bits % 8;
  return whole == a.size() || rest == 0 || ((a[whole] ^ b[whole]) >> (8 - rest)) == 0;
}

const InterfaceAddress* find(const std::vector<InterfaceAddress>& machine,
                             const SocketAddress& address) {
  const std::vector<std::uint8_t> wanted = bytes_of(address);
  const auto found =
      std::find_if(machine.begin(), machine.end(),
                   [&](const InterfaceAddress& each) { return bytes_of(each.address) == wanted; });
  return found == machine.end() ? nullptr : &*found;
}

bool stays_here(const std::vector<InterfaceAddress>& machine, const SocketAddress& there) {
  return there.is_loopback() || find(machine, there) != nullptr;
}

// An address of this interface for connections to `to`: in one subnet with it, if that is asked for.
const InterfaceAddress* address_towards(const std::vector<InterfaceAddress>& machine,
                                        const std::string& interface, const SocketAddress& to,
                                        bool in_subnet) {
  for (const InterfaceAddress& each : machine) {
    if (!each.is_up || each.interface != interface) continue;
    if (each.address.family() != to.family() || (in_subnet && !is_in_subnet(each, to))) continue;
    return &each;
  }
  return nullptr;
}

}  // namespace

std::vector<InterfaceAddress> interface_addresses() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  std::vector<InterfaceAddress> found;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_netmask == nullptr) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    InterfaceAddress each;
    each.interface = entry->ifa_name;
    each.address.bytes = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&each.address.storage, entry->ifa_addr, each.address.bytes);
    if (is_of_link(each.address)) continue;
    SocketAddress mask;
    std::memcpy(&mask.storage, entry->ifa_netmask, each.address.bytes);
    mask.storage.ss_family = static_cast<sa_family_t>(family);
    for (const std::uint8_t byte : bytes_of(mask)) {
      each.subnet_bits += static_cast<std::uint32_t>(std::popcount(byte));
    }
    each.is_up = (entry->ifa_flags & IFF_UP) != 0 && (entry->ifa_flags & IFF_RUNNING) != 0;
    found.push_back(std::move(each));
  }
  return found;
}

std::optional<CardChoice> choose_card(const CardList& cards,
                                      const std::vector<InterfaceAddress>& machine,
                                      const SocketAddress& to,
                                      const ConnectionsOf& connections_of) {
  if (cards.empty() || is_of_link(to) || stays_here(machine, to)) return std::nullopt;
  for (const bool in_subnet : {true, false}) {
    for (const auto* names : {&cards.own, &cards.all}) {
      const InterfaceAddress* best = nullptr;
      for (const std::string& name : *names) {
        const InterfaceAddress* const each = address_towards(machine, name, to, in_subnet);
        if (each == nullptr) continue;
        if (best == nullptr || connections_of(name) < connections_of(best->interface)) best = each;
      }
      if (best != nullptr) return CardChoice{best->interface, best->address};
    }
  }
  return std::nullopt;
}

std::string card_to_hold(const CardList& cards, const std::vector<InterfaceAddress>& machine,
                         const SocketAddress& here, const SocketAddress& there) {
  if (cards.empty() || is_of_link(there) || stays_here(machine, there)) return {};
  const InterfaceAddress* const own = find(machine, here);
  if (own == nullptr || !is_in_subnet(*own, there)) return {};
  if (std::find(cards.all.begin(), cards.all.end(), own->interface) == cards.all.end()) return {};
  const bool is_ambiguous =
      std::any_of(machine.begin(), machine.end(), [&](const InterfaceAddress& each) {
        return each.interface != own->interface && is_in_subnet(each, there);
      });
  return is_ambiguous ? own->interface : "";
}

std::optional<std::pair<std::string, std::string>> cards_of_one_subnet(
    const CardList& cards, const std::vector<InterfaceAddress>& machine) {
  const auto is_listed = [&](const std::string& name) {
    return std::find(cards.all.begin(), cards.all.end(), name) != cards.all.end();
  };
  for (const InterfaceAddress& one : machine) {
    for (const InterfaceAddress& other : machine) {
      if (one.interface >= other.interface || one.address.family() != AF_INET) continue;
      if (!is_listed(one.interface) || !is_listed(other.interface)) continue;
      if (is_in_subnet(one, other.address)) return std::pair(one.interface, other.interface);
    }
  }
  return std::nullopt;
}

}  // namespace byteps
