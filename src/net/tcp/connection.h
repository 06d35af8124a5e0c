// Connection: a socket, what it is doing, its two queues, and its link once it has one. A record of state; those who
// decide are named beside it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "base/time.h"
#include "net/address.h"
#include "net/endpoint.h"
#include "net/frame/inbox.h"
#include "net/frame/outbox.h"
#include "net/tcp/handshake.h"
#include "net/tcp/reactor.h"
#include "net/tcp/socket.h"
#include "net/way/link.h"
#include "net/way/negotiation.h"

namespace byteps::tcp {

struct Connection {
  // kNaming → kConnecting → kHandshake → kUp → kEnded for one we began (kNaming only while its host name is looked up),
  // kHandshake → kUp → kEnded for one accepted.
  // kLingering: a socket whose owner has done with it, kept until its last bytes are out.
  enum class State { kNaming, kConnecting, kHandshake, kUp, kEnded, kLingering };

  // One that we began (dialler.h).
  struct Dial {
    bool is_outbound = false;
    bool is_named = false;                 // by a host name
    Hello self;                            // what we say
    std::vector<SocketAddress> addresses;  // the one in use, and those to try after it, last first
    std::string card;                      // the interface that was chosen; empty: none was
  };
  // kHandshake (greeter.h).
  struct Greeting {
    std::unique_ptr<Handshake> handshake;  // accepted: from its first record on
    std::vector<std::byte> record;         // the other side's next, as far as it is here
  };
  // Accepted, and has not proved that it belongs to the job (strangers.h).
  struct Standing {
    bool is_stranger = false;
    bool names_job = false;
    int drain_count = 0;  // kLingering
  };

  Connection(std::uint64_t serial, int descriptor) : turn{.serial = serial}, socket(descriptor) {}

  bool can_flush() const { return socket.can_flush(outbox); }
  void flush(std::size_t batch_bytes, int calls_max) {
    socket.flush(outbox, batch_bytes, calls_max);
  }
  // Says these bytes behind everything else, if that needs no waiting.
  void say_last(std::span<const std::byte> bytes) const {
    if (!can_flush()) socket.say(bytes);
  }
  // For its owner it is up.
  bool is_settled() const { return !negotiation || negotiation->is_settled(); }
  bool reads_link() const { return link && link->reads(); }
  // "10.0.0.2:9000: " and the reason. Everything else here gives the reason alone.
  Status with_address(const Status& reason) const {
    return reason.in_words(remote.text() + ": " + reason.message());
  }

  Turn turn;  // in the reactor
  Socket socket;
  State state = State::kHandshake;
  PeerId peer;      // 0 before it has one
  Endpoint remote;  // as asked for (outbound) or seen (accepted)
  Hello theirs;
  Dial dial;
  Greeting greeting;
  Standing standing;

  TimeNs round_trip_ns = 0;  // kUp: the shortest so far; 0: not known
  bool up_reported = false;
  bool sent_first = false;      // whose turn it is when events are scarce
  bool socket_is_over = false;  // the other side has closed it, but there is more in the link
  Status why;                   // kEnded, or socket_is_over

  frame::Outbox outbox;
  frame::Inbox inbox;

  // Another way than the socket (linker.h).
  std::unique_ptr<way::Link> link;
  std::unique_ptr<way::Negotiation> negotiation;  // kUp, with a peer that may have links
};

}  // namespace byteps::tcp
