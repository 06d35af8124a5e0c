// Link: another way for the messages of one connection than its socket, once both sides have it: memory that the two
// share (net/shm/link.h), or rings that each writes into the other's memory by RDMA (net/rdma/link.h).
//
// Either way a direction is a ring of bytes with one writer and one reader (net/way/ring.h). A frame in it is that of a
// connection (net/frame/frame.h) without the checksum of its payload; its payload and its end are filled up to 64
// bytes, so that payloads are aligned:
//
//   prefix 16, header, fill to 64 | payload, fill to 64
//
// A frame of at most half a ring is written and read as a whole. The payload of a larger one passes in pieces.
//
// Whatever the other side does to the memory, the worst that comes of it is an error from receive(), or wrong payloads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"
#include "net/frame/events.h"
#include "net/frame/outbox.h"
#include "net/frame/staging.h"
#include "net/transport.h"
#include "net/way/frame_reader.h"
#include "net/way/frame_writer.h"
#include "net/way/ring.h"

namespace byteps::way {

class Link {
 public:
  // The rings live as long as the link; nothing is asked of them here.
  Link(RingOut& out, RingIn& in) : out_(out), in_(in) {}
  virtual ~Link() = default;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // What is said of it in the log: "shared memory, two rings of 1024 KiB".
  virtual std::string text() const = 0;
  // So much fits on the way to the other side.
  virtual std::size_t ring_bytes() const = 0;
  // The count of `ways` that its payload bytes belong to.
  virtual std::uint64_t& share_of(Transport::Ways& ways) const = 0;
  // What the transport is to watch for input, which drain_wakes() takes; -1: nothing.
  virtual int wake_descriptor() const { return -1; }

  // The other side may use it.
  virtual bool is_ready() const { return true; }
  // Something went there and back: before that nobody goes over to it.
  virtual bool is_proven() const { return true; }
  // The other side has said that it goes over to this link. An error: the connection must end.
  virtual Status confirm() { return Status::ok(); }

  // Writes what waits in the outbox, as far as there is room. flush() must follow, soon.
  void write(frame::Outbox& outbox) { writer_.write(outbox, out_); }
  // Tells the other side of what was written, and wakes it if it sleeps; once for many frames.
  virtual void flush() = 0;

  // From here on the other side's frames come this way.
  void start_reading() { reads_ = true; }
  void stop_reading() { reads_ = false; }
  bool reads() const { return reads_; }
  // receive() may have something to do.
  bool has_input() const { return reads_ && (reader_.is_paused() || in_.has_moved()); }
  // Makes events out of at most about bytes_max bytes. An error: end the connection.
  Status receive(PeerId peer, std::size_t bytes_max, frame::Staging& staging,
                 frame::EventSpan& out);

  // Why the link is of no use any more, if it is. What the other side wrote wrongly is only told by receive().
  virtual Status failure() const { return Status::ok(); }
  bool is_useless() const { return is_broken() || !failure().is_ok(); }
  // What was written is on its way, and needs this side for it, but none of what it was lent.
  virtual bool is_sending() const { return false; }
  // Nothing is sent any more, and nothing that was lent is looked at. What has arrived can still be looked at.
  virtual void stop() {}
  // The connection is over: what is there already can still be received, and nothing else.
  virtual void freeze() = 0;
  // The views of the last poll end.
  virtual void begin_poll() { reader_.begin_poll(in_); }

  // Before sleeping; true when there is something to do already. is_patient: large frames need not wake us until there
  // are several, for we look again soon anyhow.
  virtual bool arm(const frame::Outbox& outbox, bool is_patient) = 0;
  virtual void disarm() {}
  // What arm() asked for has woken us.
  virtual void drain_wakes() {}

  // Payload bytes that went through, both ways.
  std::uint64_t moved_bytes() const { return writer_.moved_bytes() + reader_.moved_bytes(); }

 protected:
  bool is_paused() const { return reader_.is_paused(); }

 private:
  virtual bool is_broken() const = 0;  // the other side's positions make no sense

  RingOut& out_;
  RingIn& in_;
  FrameWriter writer_;
  FrameReader reader_;
  bool reads_ = false;
};

}  // namespace byteps::way
