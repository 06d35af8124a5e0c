// Transport: how one Actor exchanges messages with its peers. One instance per Actor, one thread.
//
// The contract is weak on purpose, so that TCP, shared memory, RDMA and the simulated network can all
// keep it (tests/conformance holds each of them to it):
//  T1 Messages of one connection arrive in the order sent, each at most once and whole, or not at all.
//  T2 Between connections there is no order, also between an old and a new connection to the same place.
//  T3 When a connection ends, the messages not yet received may be lost, without a word about which.
//  T4 Every lent payload comes back exactly once, as a kSent event, also when the connection ends; all of
//     a connection's kSent events come before its kDown.
//  T5 kUp comes first, kDown last, each at most once per PeerId; a PeerId is never used again. A connect()
//     that fails ends in kDown without kUp. close() by the owner also ends in kDown.
//  T6 A payload is given out when all of it is here, and its checksum, where there is one, is right.
//  T7 Nothing received can make the process fail: bytes that break the format end that connection only.
//  T8 A connection whose other machine cannot be reached ends, also while nothing is sent, after a time that the
//     transport's options set (half the failure timeout). That the other process stands still is not seen here,
//     unless it leaves a full window unread for as long: then the connection may end, and is made anew.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "base/ids.h"
#include "base/limits.h"
#include "base/status.h"
#include "base/time.h"
#include "loop/actor.h"
#include "net/endpoint.h"

namespace byteps {

// Tells payloads lent by send() apart. Chosen by the sender, returned by kSent.
using SendToken = std::uint64_t;

struct Outgoing {
  std::span<const std::byte> header;   // copied by send(); at most kHeaderBytesMax
  std::span<const std::byte> payload;  // lent until kSent; at most kPayloadBytesMax; may be empty
  // Where several get the same payload: a place for its CRC32C, which send() uses if it is there, and fills if it has
  // to compute it. Then the payload must not change until kSent. Transports whose frames have none do not look at it.
  std::optional<std::uint32_t>* payload_crc = nullptr;
  // The payload is tensor bytes, which the receiver copies or adds and does not look at: see Event::is_shared.
  bool bulk = false;
  SendToken token = 0;  // kSent is given for every accepted message, also without payload
};

struct Event {
  enum class Kind : std::uint8_t { kUp, kDown, kReceived, kSent };
  Kind kind = Kind::kUp;
  PeerId peer;
  // kReceived: valid until the next call of poll() or close().
  std::span<const std::byte> header;
  std::span<const std::byte> payload;
  // The payload, which was sent as bulk, is in memory that the peer can write to as well, and can change at any time.
  // So nothing may be decided by it: sums of it may be wrong, and that is all.
  bool is_shared = false;
  // kSent: the payload is the sender's again. It says nothing about whether the peer received it.
  SendToken token = 0;
  // kUp: what the other side said of itself.
  Hello hello;
  // kDown: kDisconnected with the reason and the peer's address, kTimeout, kMismatch (job, version), ...
  Status why;
};

// A connection whose round trip takes this or longer is a long line: between cities rather than racks.
inline constexpr TimeNs kLongLineNs = 10 * kMillisecond;

// While somebody dozes (Waiter::doze()), less than this of each peer is left lying.
inline constexpr std::size_t kDozeBytesMost = 256 << 10;

class Transport {
 public:
  virtual ~Transport() = default;

  // Begins to connect; kUp or kDown follows. Never blocks. Errors at once: kInvalidArgument (no such host form),
  // kSystem (out of descriptors).
  virtual Result<PeerId> connect(const Endpoint& to, const Hello& self) = 0;

  // This attempt still waits for the addresses of its host's name. That may take as long as the name's servers do (at
  // most kLookUpNs), and says nothing about whether the host is there.
  virtual bool is_naming(PeerId /*peer*/) const { return false; }
  static constexpr TimeNs kLookUpNs = 30 * kSecond;

  // Hands over one message. kOk: accepted, kSent follows. kAgain: the connection's window is full, nothing was
  // taken, try after the next kSent of this peer. kDisconnected: no such peer, or not up; nothing was taken.
  virtual Status send(PeerId peer, const Outgoing& message) = 0;

  // How many bytes are at most on the way to this peer, and as many back, where the way is memory whose size is known:
  // more that is sent and not answered would only wait. It may become known while the connection is up. 0: not known.
  virtual std::size_t capacity_bytes(PeerId /*peer*/) const { return 0; }

  // The shortest round trip to this peer that was seen before its kUp, without what either process does; 0: not known.
  virtual TimeNs round_trip_ns(PeerId /*peer*/) const { return 0; }

  // Payload bytes, both ways and of all connections there ever were, that did not go by the network's sockets.
  struct Ways {
    std::uint64_t shared_bytes = 0;  // through memory shared with another process of this host
    std::uint64_t rdma_bytes = 0;
  };
  virtual Ways ways() const { return {}; }
  // Of them those of connections that this side made by connect().
  virtual Ways outbound_ways() const { return {}; }

  // Where payloads that are sent often, or to many, had best come from: memory that this transport sends without a
  // copy. Null: any is as good.
  virtual std::shared_ptr<BufferSource> payload_source() { return nullptr; }

  // Moves bytes and fills `events` from the front; returns how many. Never blocks. Views of the previous call end.
  virtual std::size_t poll(TimeNs now, std::span<Event> events) = 0;

  // When poll() wants to be called although no input came (a connection attempt's time limit); kNever if not at all.
  virtual TimeNs next_deadline() const = 0;

  // What those who connect from now on are told. Without effect on a transport that accepts no connections.
  virtual void set_self(const Hello& self) = 0;

  // So many peers belong to this transport, and may come all at once, or be connected to. Limits make room for them.
  virtual void expect_peers(std::size_t /*count*/) {}

  // Ends a connection. Accepted messages are still sent if that needs no waiting. kSent and kDown(reason) follow.
  virtual void close(PeerId peer, Status reason) = 0;
};

// A transport that a process is assembled from: its owner's thread can sleep on it, and others can be told where it is.
class ProcessTransport : public Transport {
 public:
  // wait() returns when poll() has something to do. It is part of the transport.
  virtual Waiter& waiter() = 0;

  // Where it accepts connections, with the real ports. Empty: it only connects.
  virtual std::vector<Endpoint> listening() const = 0;
};

}  // namespace byteps
