// Listener: accepts connections, and decides which of them have a place here.
//
// A crowd of strangers must cost little, and keep nobody of the job out: they are accepted at a pace while members are
// here, and the oldest goes for a newer one. Without a descriptor left, a spare one serves to say so to who waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "base/time.h"
#include "net/address.h"
#include "net/endpoint.h"
#include "net/quiet_log.h"
#include "net/tcp/closer.h"
#include "net/tcp/connections.h"
#include "net/tcp/options.h"
#include "net/tcp/reactor.h"
#include "net/tcp/strangers.h"

namespace byteps::tcp {

class Listener {
 public:
  Listener(const TcpOptions& options, Reactor& reactor, Connections& connections,
           Strangers& strangers, Closer& closer, QuietLog& log)
      : options_(options),
        reactor_(reactor),
        connections_(connections),
        strangers_(strangers),
        closer_(closer),
        log_(log) {}
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // At all of options.listen. Errors as TcpTransport::create().
  Status open();
  std::vector<Endpoint> listening() const;  // with the real ports

  void expect_peers(std::size_t count) { expected_peers_ = count; }
  std::size_t connections_max() const { return options_.connections_max + expected_peers_; }
  // For one more connection. False: there are too many that we cannot do without.
  bool make_room();

  // Somebody may wait at the listening socket with this serial, if it is one.
  void heed(std::uint64_t serial);
  void accept_all();
  // A stranger goes on with its handshake.
  void hear_of(Connection& stranger, bool names_job);

  // A connection can be accepted now; if not, resting_until() may be the reason.
  bool has_work() const;
  TimeNs resting_until() const { return rest_until_; }

 private:
  struct Door {
    int descriptor = -1;
    std::uint64_t serial = 0;
    bool ready = false;  // a connection may be waiting
  };

  Status listen_at(const Endpoint& endpoint);
  Status listen_at(const SocketAddress& address, bool both_families);
  void accept_one(Door& door);
  void admit(int descriptor, const SocketAddress& remote);
  bool may_accept();
  void rest(TimeNs until);
  void rise();
  void refuse_without_descriptors(const Door& door);
  std::size_t strangers_max() const { return options_.strangers_max + expected_peers_; }
  void drop_stranger(bool names_job);

  const TcpOptions& options_;
  Reactor& reactor_;
  Connections& connections_;
  Strangers& strangers_;
  Closer& closer_;
  QuietLog& log_;
  std::vector<Door> doors_;
  int spare_ = -1;  // a descriptor to accept with, and to refuse, when there are no others
  std::size_t expected_peers_ = 0;
  // No connection is accepted before this: there are no descriptors, or too many have come of late.
  TimeNs rest_until_ = kNever;
  TimeNs paid_until_ns_ = 0;  // each accept costs a time, see may_accept()
};

}  // namespace byteps::tcp
