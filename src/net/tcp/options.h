// TcpOptions: what a TcpTransport is told when it is made.
#pragma once

#include <cstddef>
#include <vector>

#include "base/card.h"
#include "base/job_key.h"
#include "base/time.h"
#include "net/endpoint.h"
#include "net/tcp/resolver.h"
#include "net/transport.h"

namespace byteps {

struct TcpOptions {
  // Where to accept connections; none: only connects. Port 0: any free one, see listening(). Host "": all
  // addresses of the machine, IPv6 and IPv4 on one socket where there is IPv6; "0.0.0.0": all of IPv4;
  // "::": all of IPv6; otherwise an address or a host name, all of whose addresses are served.
  std::vector<Endpoint> listen;
  // Said to those who connect to us. They must have our version and our job_id, or are refused.
  Hello self;
  // Both sides of each connection prove that they hold it. Empty: anyone with our job_id may come.
  JobKey key;
  // Only loopback addresses are listened at and connected to; others are kInvalidArgument. And only connections between
  // processes of one user come up (net/tcp/owner.h). For jobs without a key.
  bool loopback_only = false;
  TimeNs connect_timeout_ns = 3 * kSecond;  // from connect() until the other side has proved itself
  TimeNs handshake_timeout_ns = 5 * kSecond;  // the same, from accepting a connection
  // A connection ends when the other machine's kernel has acknowledged nothing for so long, or the other process has
  // left a full window unread while more waits for it, or, when nothing is said, the other machine's kernel
  // has answered no question whether it is there (tcp(7): TCP_USER_TIMEOUT, SO_KEEPALIVE, the latter in full seconds).
  // The first two not at 127.0.0.1 and ::1.
  TimeNs unreachable_ns = 1500 * kMillisecond;
  TimeNs linger_ns = 1 * kSecond;  // how long a closed connection may take to send its tail
  // How long the look-up of a host name may take, before connect_timeout_ns begins to count.
  TimeNs look_up_timeout_ns = Transport::kLookUpNs;
  // By which connections go that have both ends on different machines (net/cards.h).
  CardList cards;
  // Looks up a host name; on other threads, where it may block. Null: getaddrinfo(3).
  tcp::Resolver::LookUp look_up;
  std::size_t connections_max =
      kConnectionsMax;  // of all kinds, beside expect_peers(); more are turned away
  // Of these, accepted ones that have not named the job; and as many that have, and have not proved that they belong to
  // it. Each also beside expect_peers(): all members may come at once. For another one the oldest of its kind is
  // dropped, so a crowd of strangers, who hold all they may, does not keep members out. (Were it the newest, whoever
  // holds all places would keep everyone out with no further effort.)
  std::size_t strangers_max = kStrangersMax;
  // While there are members, more connections than may be strangers are accepted at this pace only: what a stranger
  // costs is their time. The others wait at the kernel.
  std::size_t accepts_per_second = 1000;
  std::size_t window_bytes =
      kWindowBytes;  // per connection: sent but no kSent yet; above it send() says kAgain
  std::size_t read_batch_bytes = 256 << 10;   // at least 4 KiB
  std::size_t write_batch_bytes = 128 << 10;  // per system call
};

}  // namespace byteps
