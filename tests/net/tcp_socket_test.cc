// Options of sockets, as the kernel has them.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/tcp/socket.h"

namespace byteps::tcp {
namespace {

int user_timeout_ms(std::uint32_t ipv4) {
  SocketAddress address;
  auto* const inet = reinterpret_cast<sockaddr_in*>(&address.storage);
  inet->sin_family = AF_INET;
  inet->sin_addr.s_addr = htonl(ipv4);
  address.bytes = sizeof *inet;
  const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  prepare(descriptor, address, 1500 * kMillisecond);
  int found = -1;
  socklen_t bytes = sizeof found;
  EXPECT_EQ(::getsockopt(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT, &found, &bytes), 0);
  ::close(descriptor);
  return found;
}

TEST(TcpSocket, who_reads_nothing_for_long_loses_its_connection_unless_it_is_on_this_host) {
  EXPECT_EQ(user_timeout_ms(0x0A000001), 1500) << "10.0.0.1";
  EXPECT_EQ(user_timeout_ms(INADDR_LOOPBACK + 1), 1500)
      << "a rule of the network may drop what goes there";
  EXPECT_EQ(user_timeout_ms(INADDR_LOOPBACK), 0) << "for ever, but for the end of that process";
}

}  // namespace
}  // namespace byteps::tcp
