// Addresses as the sockets interface has them, and the ways to find one's own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <netinet/in.h>
#include <sys/socket.h>

#include "base/status.h"
#include "net/transport.h"

namespace byteps::tcp {

// An IPv4 or IPv6 address with a port, ready for bind() and connect().
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t bytes = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
  bool is_loopback() const;  // 127.0.0.0/8 or ::1, also as IPv4 seen through IPv6
  // Every address of the machine of that family (AF_INET, AF_INET6).
  static SocketAddress any(int family, std::uint16_t port);
  void set_port(std::uint16_t port);
  // The address as text and the port; an IPv4 address seen through an IPv6 socket is shown as IPv4.
  Endpoint endpoint() const;
};

// All addresses of an endpoint, at least one, in the order to try them. Addresses in text ("10.0.0.1",
// "fe80::1%eth0") are answered at once; a host name is looked up with getaddrinfo(3), which may block for
// seconds. kInvalidArgument: no host or port given. kDisconnected: the name is not known (perhaps not
// yet).
Result<std::vector<SocketAddress>> resolve(const Endpoint& endpoint);

// The address of this machine that packets to `target` would come from, as text: what to advertise to
// others. Sends nothing. kSystem when there is no route.
Result<std::string> local_address_towards(const Endpoint& target);

// The first IPv4 address, else the first IPv6 address with more than link scope, of a network interface
// ("eth0"). kInvalidArgument names the interfaces there are.
Result<std::string> address_of_interface(const std::string& interface_name);

}  // namespace byteps::tcp
