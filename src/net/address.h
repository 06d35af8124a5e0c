// Addresses as the sockets interface has them, and the ways to find one's own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <netinet/in.h>
#include <sys/socket.h>

#include "base/status.h"
#include "net/transport.h"

namespace byteps {

// An IPv4 or IPv6 address with a port, ready for bind() and connect().
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t bytes = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
  bool is_loopback() const;  // 127.0.0.0/8 or ::1, also as IPv4 seen through IPv6
  // 127.0.0.1 or ::1: who connects there has the same address, so no rule of the network stands between the two.
  bool is_localhost() const;
  // Every address of the machine of that family (AF_INET, AF_INET6).
  static SocketAddress any(int family, std::uint16_t port);
  void set_port(std::uint16_t port);
  // The address as text and the port; an IPv4 address seen through an IPv6 socket is shown as IPv4.
  Endpoint endpoint() const;
};

// Ok, or kInvalidArgument: no host or no port is given.
Status flaw_of(const Endpoint& endpoint);

// The address of an endpoint whose host is one in text ("10.0.0.1", "fe80::1%eth0"); empty when it is a name. Never
// blocks.
std::vector<SocketAddress> addresses_in_text(const Endpoint& endpoint);

// The addresses of a host name, as text, at least one, in the order to try them. Asks getaddrinfo(3), which may block
// for seconds: not on a loop (net/tcp/resolver.h). kDisconnected: the name is not known (perhaps not yet).
Result<std::vector<std::string>> addresses_of_name(const std::string& host);

// All addresses of an endpoint, by one of the above: not on a loop. kInvalidArgument: see flaw_of().
Result<std::vector<SocketAddress>> resolve(const Endpoint& endpoint);

// The address of this machine that packets to `target` would come from, as text: what to advertise to
// others. Sends nothing. kSystem when there is no route.
Result<std::string> local_address_towards(const Endpoint& target);

// Whether this is an address in text, no host name, that a socket here can have.
bool is_own_address(const std::string& text);

// The first IPv4 address, else the first IPv6 address with more than link scope, of a network interface
// ("eth0"). kInvalidArgument: it is down, has none, or does not exist, and the text names those there are.
Result<std::string> address_of_interface(const std::string& interface_name);

}  // namespace byteps
