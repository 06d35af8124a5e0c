#include "net/address.h"

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <set>
#include <string_view>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <unistd.h>

namespace byteps {
namespace {

SocketAddress copy_of(const sockaddr* address, socklen_t bytes) {
  SocketAddress copy;
  std::memcpy(&copy.storage, address, bytes);
  copy.bytes = bytes;
  return copy;
}

struct FreeAddrinfo {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};

// Empty when getaddrinfo refuses; `error` then says why.
std::vector<SocketAddress> look_up(const Endpoint& endpoint, int flags, int& error) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const std::string port = std::to_string(endpoint.port);
  error = getaddrinfo(endpoint.host.c_str(), port.c_str(), &hints, &list);
  std::vector<SocketAddress> found;
  if (error != 0) return found;
  const std::unique_ptr<addrinfo, FreeAddrinfo> owner(list);
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    found.push_back(copy_of(entry->ai_addr, entry->ai_addrlen));
  }
  return found;
}

}  // namespace

SocketAddress SocketAddress::any(int family, std::uint16_t port) {
  SocketAddress address;  // in6addr_any and INADDR_ANY are zero
  address.storage.ss_family = static_cast<sa_family_t>(family);
  address.bytes = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  address.set_port(port);
  return address;
}

bool SocketAddress::is_loopback() const {
  if (family() == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, &storage, sizeof v4);
    return (ntohl(v4.sin_addr.s_addr) >> 24) == IN_LOOPBACKNET;
  }
  if (family() != AF_INET6) return false;
  sockaddr_in6 v6{};
  std::memcpy(&v6, &storage, sizeof v6);
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) return v6.sin6_addr.s6_addr[12] == IN_LOOPBACKNET;
  return IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr);
}

bool SocketAddress::is_localhost() const {
  if (!is_loopback()) return false;
  if (family() == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, &storage, sizeof v4);
    return ntohl(v4.sin_addr.s_addr) == INADDR_LOOPBACK;
  }
  sockaddr_in6 v6{};
  std::memcpy(&v6, &storage, sizeof v6);
  return IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr);
}

void SocketAddress::set_port(std::uint16_t port) {
  // The port stands at the same place in both families.
  static_assert(offsetof(sockaddr_in, sin_port) == offsetof(sockaddr_in6, sin6_port));
  const in_port_t number = htons(port);
  std::memcpy(reinterpret_cast<std::byte*>(&storage) + offsetof(sockaddr_in, sin_port), &number,
              sizeof number);
}

Endpoint SocketAddress::endpoint() const {
  char text[INET6_ADDRSTRLEN + IF_NAMESIZE + 1] = "?";
  if (family() == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, &storage, sizeof v4);
    inet_ntop(AF_INET, &v4.sin_addr, text, sizeof text);
    return {text, ntohs(v4.sin_port)};
  }
  if (family() == AF_INET6) {
    sockaddr_in6 v6{};
    std::memcpy(&v6, &storage, sizeof v6);
    if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
      inet_ntop(AF_INET, v6.sin6_addr.s6_addr + 12, text, sizeof text);
      return {text, ntohs(v6.sin6_port)};
    }
    // getnameinfo, unlike inet_ntop, names the interface of a link-local address.
    getnameinfo(get(), bytes, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
    return {text, ntohs(v6.sin6_port)};
  }
  return {text, 0};
}

Status flaw_of(const Endpoint& endpoint) {
  if (endpoint.host.empty()) return {Code::kInvalidArgument, "an endpoint without a host"};
  if (endpoint.port != 0) return Status::ok();
  return {Code::kInvalidArgument, "the endpoint " + endpoint.host + " has no port"};
}

std::vector<SocketAddress> addresses_in_text(const Endpoint& endpoint) {
  int error = 0;
  return look_up(endpoint, AI_NUMERICHOST, error);
}

Result<std::vector<std::string>> addresses_of_name(const std::string& host) {
  int error = 0;
  std::vector<std::string> texts;
  for (const SocketAddress& address : look_up({host, 1}, 0, error)) {
    texts.push_back(address.endpoint().host);
  }
  if (!texts.empty()) return texts;
  return Status(Code::kDisconnected, std::string("cannot look up the host name: ") +
                                         (error != 0 ? gai_strerror(error) : "no address"));
}

Result<std::vector<SocketAddress>> resolve(const Endpoint& endpoint) {
  if (Status flaw = flaw_of(endpoint); !flaw.is_ok()) return flaw;
  std::vector<SocketAddress> found = addresses_in_text(endpoint);
  if (!found.empty()) return found;
  const Result<std::vector<std::string>> texts = addresses_of_name(endpoint.host);
  if (!texts.is_ok()) {
    return texts.status().in_words(endpoint.text() + ": " + texts.status().message());
  }
  for (const std::string& text : texts.value()) {
    for (const SocketAddress& address : addresses_in_text({text, endpoint.port})) {
      found.push_back(address);
    }
  }
  return found;
}

Result<std::string> local_address_towards(const Endpoint& target) {
  const Result<std::vector<SocketAddress>> addresses = resolve(target);
  if (!addresses.is_ok()) return addresses.status();
  int error_number = 0;
  for (const SocketAddress& address : addresses.value()) {
    const int descriptor = socket(address.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (descriptor < 0) {
      error_number = errno;
      continue;
    }
    SocketAddress own;
    own.bytes = sizeof own.storage;
    // connect() of a datagram socket only chooses the route (udp(7)).
    const bool chosen = ::connect(descriptor, address.get(), address.bytes) == 0 &&
                        getsockname(descriptor, own.get(), &own.bytes) == 0;
    error_number = errno;
    ::close(descriptor);
    if (chosen) return own.endpoint().host;
  }
  return system_error("no route to " + target.text(), error_number);
}

bool is_own_address(const std::string& text) {
  int error = 0;
  for (const SocketAddress& address : look_up({text, 1}, AI_NUMERICHOST, error)) {
    SocketAddress any_port = address;
    any_port.set_port(0);
    const int descriptor = socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool is_own = descriptor >= 0 && ::bind(descriptor, any_port.get(), any_port.bytes) == 0;
    if (descriptor >= 0) ::close(descriptor);
    if (is_own) return true;
  }
  return false;
}

Result<std::string> address_of_interface(const std::string& interface_name) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return system_error("getifaddrs", errno);
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  std::set<std::string_view> names;
  bool is_down = false;
  std::string v4;
  std::string v6;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    names.insert(entry->ifa_name);
    if (entry->ifa_addr == nullptr || interface_name != entry->ifa_name) continue;
    is_down = is_down || (entry->ifa_flags & IFF_UP) == 0;
    if (entry->ifa_addr->sa_family == AF_INET && v4.empty()) {
      v4 = copy_of(entry->ifa_addr, sizeof(sockaddr_in)).endpoint().host;
    }
    if (entry->ifa_addr->sa_family == AF_INET6 && v6.empty()) {
      sockaddr_in6 address{};
      std::memcpy(&address, entry->ifa_addr, sizeof address);
      if (IN6_IS_ADDR_LINKLOCAL(&address.sin6_addr)) continue;
      v6 = copy_of(entry->ifa_addr, sizeof(sockaddr_in6)).endpoint().host;
    }
  }
  if (is_down) {
    return Status(Code::kInvalidArgument, "the network interface '" + interface_name +
                                              "' is down; ip link set " + interface_name + " up");
  }
  if (!v4.empty()) return v4;
  if (!v6.empty()) return v6;
  std::string known;
  for (const std::string_view name : names) known.append(known.empty() ? "" : ", ").append(name);
  return Status(Code::kInvalidArgument,
                "the network interface '" + interface_name +
                    (names.contains(interface_name) ? "' has no IP address"
                                                    : "' does not exist; there are: " + known));
}

}  // namespace byteps
