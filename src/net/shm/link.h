// Link: the frames of one connection that go through shared memory, once both sides have it.
//
// A frame in a ring is that of a TCP connection (net/tcp/frame.h) without the checksum of its payload; its payload and
// its end are filled up to 64 bytes, so that payloads are aligned.
//
//   prefix 32, header, fill to 64 | payload, fill to 64
//
// A frame of at most half a ring is written and read as a whole. The payload of a larger one passes in pieces.
//
// Receiving. Prefix and header are copied, then checked, so that the other side cannot change them in between. Payloads
// with a landing are copied there. Of the others, those of at most kPrivateBytesMax are copied too; longer ones are
// given out as views of the ring, without a copy, and their place is free for the writer after the next begin_poll().
//
// Whatever the other side does to the memory, the worst that comes of it is an error from receive(), or wrong payloads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/buffer.h"
#include "base/status.h"
#include "net/shm/doorway.h"
#include "net/shm/ring.h"
#include "net/tcp/frame.h"
#include "net/tcp/inbox.h"
#include "net/tcp/outbox.h"
#include "net/tcp/staging.h"
#include "net/transport.h"

namespace byteps::shm {

class Link {
 public:
  enum class Side { kMaker, kOpener };  // of the memory
  Link(Meeting meeting, Side side);

  int socket() const { return socket_.get(); }
  std::size_t ring_bytes() const { return segment_.ring_bytes(); }
  // The other side has said that it has opened what we made. See Segment.
  Status check_seals() { return segment_.seal_checked(); }

  // Writes what waits in the outbox, as far as there is room. wake_reader() must follow, soon.
  void write(tcp::Outbox& outbox);
  // The other side, if it sleeps. Waking costs a system call, and who is woken for each frame sleeps after each.
  void wake_reader();

  // From here on the other side's frames come this way.
  void start_reading() { reads_ = true; }
  bool reads() const { return reads_; }
  bool is_broken() const { return reader_.is_broken() || writer_.is_broken(); }
  // receive() may have something to do.
  bool has_input() const { return reads_ && (paused_ || reader_.has_moved()); }
  // Makes events out of at most about bytes_max bytes, with landings of `inbox`. An error: end the connection.
  Status receive(PeerId peer, const tcp::Inbox& inbox, std::size_t bytes_max, tcp::Staging& staging,
                 tcp::EventSpan& out);
  // The landing ends: the rest of a payload that is half there is thrown away.
  void withdraw(LandingTag tag);
  // The connection is over: what is there already can still be received, and nothing else.
  void freeze() { reader_.freeze(); }
  // The views of the last poll end.
  void begin_poll();

  // Before sleeping; true when there is something to do already. Then a byte on the socket wakes.
  bool arm(const tcp::Outbox& outbox);
  void disarm();
  void drain_wakes();

  // Payload bytes that went through, both ways.
  std::uint64_t moved_bytes() const { return moved_bytes_; }

 private:
  enum class Body { kNone, kLanding, kOwnBuffer, kDiscard };

  std::size_t whole_bytes_max() const { return segment_.ring_bytes() / 2; }
  bool write_whole(const tcp::Outbox::Frame& frame, std::size_t bytes);
  bool write_pieces(const tcp::Outbox::Frame& frame);
  void publish(std::size_t bytes);

  // One frame, or a piece of one. False: its bytes are not all there yet.
  Result<bool> receive_next(PeerId peer, const tcp::Inbox& inbox, tcp::Staging& staging,
                            tcp::EventSpan& out);
  // True: the prefix and the header are in prefix_ and header_.
  Result<bool> read_head(std::span<const std::byte> readable);
  void receive_whole(PeerId peer, std::span<const std::byte> payload, std::span<std::byte> landing,
                     bool lands, tcp::Staging& staging, tcp::EventSpan& out);
  void start_body(std::span<std::byte> landing, bool lands, tcp::Staging& staging);
  bool continue_body(PeerId peer, tcp::Staging& staging, tcp::EventSpan& out);
  void emit(PeerId peer, std::span<const std::byte> payload, bool landed, tcp::Staging& staging,
            tcp::EventSpan& out);
  void release();
  void wake_other();

  Segment segment_;
  Descriptor socket_;
  RingWriter writer_;
  RingReader reader_;
  bool reads_ = false;

  // Writing a large frame: what of its payload is in the ring.
  bool head_written_ = false;
  std::size_t written_bytes_ = 0;
  std::size_t unwoken_bytes_ = 0;  // published since wake_reader()

  // Reading.
  bool paused_ = false;       // receive() stopped though there was more
  bool holds_views_ = false;  // of this poll, into the ring
  tcp::Prefix prefix_;
  std::array<std::byte, kHeaderBytesMax> header_;
  Body body_ = Body::kNone;
  std::span<std::byte> body_place_;  // landing, or own buffer
  BufferRef body_buffer_;
  std::size_t body_have_bytes_ = 0;

  std::uint64_t moved_bytes_ = 0;
};

}  // namespace byteps::shm
