// Options of sockets, as the kernel has them.
#include <string>

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

// A connection over loopback, and its other end.
class Pair {
 public:
  Pair() {
    const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof address;
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(listener, any, bytes), 0);
    EXPECT_EQ(::listen(listener, 1), 0);
    EXPECT_EQ(::getsockname(listener, any, &bytes), 0);
    EXPECT_EQ(::connect(here, any, bytes), 0);
    there = ::accept(listener, nullptr, nullptr);
    ::close(listener);
  }
  ~Pair() {
    ::close(here);
    ::close(there);
  }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  int here = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int there = -1;
};

std::string congestion_control(int descriptor) {
  char name[16] = {};
  socklen_t bytes = sizeof name - 1;
  EXPECT_EQ(::getsockopt(descriptor, IPPROTO_TCP, TCP_CONGESTION, name, &bytes), 0);
  return name;
}

bool can_have(int descriptor, const std::string& control) {
  const auto bytes = static_cast<socklen_t>(control.size());
  return ::setsockopt(descriptor, IPPROTO_TCP, TCP_CONGESTION, control.data(), bytes) == 0;
}

TEST(TcpSocket, the_round_trip_is_known_on_both_sides_once_they_are_connected) {
  const Pair pair;
  for (const int end : {pair.here, pair.there}) {
    EXPECT_GT(round_trip_ns(end), 0);
    EXPECT_LT(round_trip_ns(end), kSecond) << "on loopback";
  }
  const int alone = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(round_trip_ns(alone), 0) << "not connected";
  ::close(alone);
  EXPECT_EQ(round_trip_ns(-1), 0);
}

TEST(TcpSocket, on_a_long_line_bbr_takes_the_place_of_what_minds_losses_and_of_nothing_else) {
  const Pair pair;
  if (!can_have(pair.there, "bbr")) GTEST_SKIP() << "this kernel has no bbr";
  for (const char* const control : {"reno", "cubic"}) {
    if (!can_have(pair.here, control)) continue;
    fit_to_long_line(pair.here);
    EXPECT_EQ(congestion_control(pair.here), "bbr");
  }
  for (const char* const control : {"vegas", "dctcp", "bbr"}) {
    if (!can_have(pair.here, control)) continue;
    fit_to_long_line(pair.here);
    EXPECT_EQ(congestion_control(pair.here), control);
  }
}

}  // namespace
}  // namespace byteps::tcp
