// Connection: one socket, what it is doing, and its two queues. A record of state; TcpTransport decides,
// and these functions do the system calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/time.h"
#include "net/address.h"
#include "net/frame/inbox.h"
#include "net/frame/outbox.h"
#include "net/tcp/handshake.h"
#include "net/transport.h"

namespace byteps::shm {
class Doorway;
}  // namespace byteps::shm

namespace byteps::way {
class Link;
}  // namespace byteps::way

namespace byteps::tcp {

class Connection {
 public:
  // kNaming → kConnecting → kHandshake → kUp → kEnded for one we began (kNaming only while its host name is looked up),
  // kHandshake → kUp → kEnded for one accepted.
  // kLingering: a socket whose owner has done with it, kept until its last bytes are out.
  enum class State { kNaming, kConnecting, kHandshake, kUp, kEnded, kLingering };

  Connection(std::uint64_t serial_number, int socket);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Writes from the outbox until it is empty, the socket is full or calls_max calls were made. A failure
  // is kept in write_error: what the other side sent before must still be read, and reading finds the
  // end.
  void flush(std::size_t batch_bytes, int calls_max);

  // flush() may write something to the socket.
  bool can_flush() const {
    return writable && outbox.unsent_bytes() > 0 && !outbox.is_past_stream();
  }

  // Says these bytes behind everything else, if that needs no waiting.
  void say_last(std::span<const std::byte> bytes);

  // Reads into `places`. Received: > 0. Nothing there now: 0. At its end or broken: -1, and `reason` says
  // so.
  std::ptrdiff_t receive(const frame::Inbox::Places& places, Status& reason);

  // Reads the other side's next record without a byte beyond it. True when `record` has all of it.
  Result<bool> read_record(RecordHead& head);

  // Reads and throws away a bounded amount. False when the other side has closed too.
  bool drain();

  void close_socket();
  // "10.0.0.2:9000: " and the reason. Everything else here gives the reason alone.
  Status with_address(const Status& reason) const;

  const std::uint64_t serial;
  int descriptor;
  State state = State::kHandshake;
  bool outbound = false;
  bool is_named = false;  // outbound: by a host name
  PeerId peer;            // 0 before it has one
  Endpoint remote;        // as asked for (outbound) or seen (accepted)
  Hello self;             // outbound: what we say
  Hello theirs;
  std::vector<SocketAddress>
      addresses;  // outbound: the one in use, and those to try after it, last first
  std::unique_ptr<Handshake> handshake;  // kHandshake; accepted: from its first record on
  std::vector<std::byte> record;  // kHandshake: the other side's next record, as far as it is here

  bool readable = false;         // reading may bring something
  bool writable = false;         // writing may take something
  bool peer_has_closed = false;  // epoll saw the end of the stream
  int write_error = 0;
  bool is_active = false;  // stands in the transport's lists
  bool is_dirty = false;
  bool is_stranger = false;  // accepted, and has not proved that it belongs to the job
  bool names_job = false;    // a stranger that knows the job's id
  int drain_count = 0;       // kLingering
  bool up_reported = false;
  bool sent_first = false;  // whose turn it is when events are scarce
  TimeNs deadline = kNever;
  Status why;                   // kEnded, or socket_is_over
  bool socket_is_over = false;  // the other side has closed it, but there is more in shared memory

  // Another way than the socket (net/tcp/links.cc): while the other side is invited to shared memory, and the link from
  // when this side has it.
  std::unique_ptr<shm::Doorway> doorway;
  std::unique_ptr<way::Link> link;
  bool was_invited = false;
  bool was_offered = false;  // RDMA
  bool has_declined = false;
  // May carry messages by a link only: before that it is not up for its owner.
  bool must_link = false;

  frame::Outbox outbox;
  frame::Inbox inbox;

 private:
  Status closed_by_peer() const;
};

// "connection reset by peer": kTimeout for ETIMEDOUT, otherwise kDisconnected.
Status connection_error(int error_number);

}  // namespace byteps::tcp
