// Link: another way for the messages of one connection than its socket, once both sides have it: memory that the two
// share (net/shm/link.h), or rings that each writes into the other's memory by RDMA (net/rdma/link.h).
//
// Either way a direction is a ring of bytes with one writer and one reader. A frame in it is that of a TCP connection
// (net/frame/frame.h) without the checksum of its payload; its payload and its end are filled up to 64 bytes, so that
// payloads are aligned:
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
#include <string>
#include <utility>

#include "base/buffer.h"
#include "base/status.h"
#include "net/frame/frame.h"
#include "net/frame/inbox.h"
#include "net/frame/outbox.h"
#include "net/frame/staging.h"
#include "net/transport.h"

namespace byteps::way {

class Link {
 public:
  virtual ~Link() = default;

  // What is said of it in the log: "shared memory, two rings of 1024 KiB".
  virtual std::string text() const = 0;
  // So much fits on the way to the other side.
  virtual std::size_t ring_bytes() const = 0;
  // RDMA or shared memory: only so that each is counted by itself.
  virtual bool is_rdma() const { return false; }
  // The other side may use it.
  virtual bool is_ready() const { return true; }
  // Something went there and back: before that nobody goes over to it.
  virtual bool is_proven() const { return true; }
  // The other side has said that it goes over to this link. An error: the connection must end.
  virtual Status confirm() { return Status::ok(); }

  // Writes what waits in the outbox, as far as there is room. flush() must follow, soon.
  void write(frame::Outbox& outbox);
  // Tells the other side of what was written, and wakes it if it sleeps; once for many frames.
  virtual void flush() = 0;

  // From here on the other side's frames come this way.
  void start_reading() { reads_ = true; }
  void stop_reading() { reads_ = false; }
  bool reads() const { return reads_; }
  // receive() may have something to do.
  bool has_input() const { return reads_ && (paused_ || has_moved()); }
  // Why the link is of no use any more, if it is. What the other side wrote wrongly is only told by receive().
  virtual Status failure() const { return Status::ok(); }
  bool is_useless() const { return is_broken() || !failure().is_ok(); }
  // What was written is on its way, and needs this side for it, but none of what it was lent.
  virtual bool is_sending() const { return false; }
  // Nothing is sent any more, and nothing that was lent is looked at. What has arrived can still be looked at.
  virtual void stop() {}
  // Makes events out of at most about bytes_max bytes, with landings of `inbox`. An error: end the connection.
  Status receive(PeerId peer, const frame::Inbox& inbox, std::size_t bytes_max,
                 frame::Staging& staging, frame::EventSpan& out);
  // The landing ends: the rest of a payload that is half there is thrown away.
  void withdraw(LandingTag tag);
  // The connection is over: what is there already can still be received, and nothing else.
  virtual void freeze() = 0;
  // The views of the last poll end.
  virtual void begin_poll();

  // Before sleeping; true when there is something to do already.
  virtual bool arm(const frame::Outbox& outbox) = 0;
  virtual void disarm() {}
  // What arm() asked for has woken us.
  virtual void drain_wakes() {}

  // Payload bytes that went through, both ways.
  std::uint64_t moved_bytes() const { return moved_bytes_; }

 protected:
  static constexpr std::size_t kAlignment = 64;
  static constexpr std::size_t filled(std::size_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  static Status damaged();
  bool is_paused() const { return paused_; }
  bool holds_views() const { return holds_views_; }

  // The ring to the other side: room for so many bytes in a row at place(); publish() gives them to the reader, and all
  // that it gives is a multiple of kAlignment.
  virtual std::size_t room() = 0;
  virtual bool has_room(std::size_t bytes) { return room() >= bytes; }
  virtual std::byte* place() = 0;
  virtual void publish(std::size_t bytes) = 0;
  virtual std::size_t whole_bytes_max() const = 0;  // of a frame that is written as a whole
  // The payload goes to the ring from where it lies, `offset` behind place(), instead of being copied there. It is
  // needed until take_unneeded() says so. False: it must be copied.
  virtual bool lend(std::span<const std::byte> /*payload*/, std::size_t /*offset*/) {
    return false;
  }
  // All of a frame was published.
  virtual void frame_is_written() { ++unneeded_count_; }
  // Of the frames written, in order: so many more whose payload is not needed any more.
  virtual std::size_t take_unneeded() { return std::exchange(unneeded_count_, 0); }

  // The ring to us. Bytes in readable() may be changed by the other side at any time: copy before you decide.
  virtual std::span<const std::byte> readable() = 0;
  virtual std::size_t readable_whole_bytes_max() const = 0;
  virtual std::uint64_t position() const = 0;
  virtual void skip(std::size_t bytes) = 0;
  virtual void release() = 0;  // all that was skipped may be written over
  virtual bool has_moved() const = 0;
  virtual bool is_broken() const = 0;  // the other side's positions make no sense

 private:
  enum class Body { kNone, kLanding, kOwnBuffer, kDiscard };

  void write_frames(frame::Outbox& outbox);
  bool write_whole(const frame::Outbox::Frame& frame, std::size_t bytes);
  bool write_pieces(const frame::Outbox::Frame& frame);

  // One frame, or a piece of one. False: its bytes are not all there yet.
  Result<bool> receive_next(PeerId peer, const frame::Inbox& inbox, frame::Staging& staging,
                            frame::EventSpan& out);
  // True: the prefix and the header are in prefix_ and header_.
  Result<bool> read_head(std::span<const std::byte> here);
  void receive_whole(PeerId peer, std::span<const std::byte> payload, std::span<std::byte> landing,
                     bool lands, frame::Staging& staging, frame::EventSpan& out);
  void start_body(std::span<std::byte> landing, bool lands, frame::Staging& staging);
  bool continue_body(PeerId peer, frame::Staging& staging, frame::EventSpan& out);
  void emit(PeerId peer, std::span<const std::byte> payload, bool landed, frame::Staging& staging,
            frame::EventSpan& out);

  bool reads_ = false;

  std::size_t unneeded_count_ = 0;

  // Writing a large frame: what of its payload is in the ring.
  bool head_written_ = false;
  std::size_t written_bytes_ = 0;

  // Reading.
  bool paused_ = false;       // receive() stopped though there was more
  bool holds_views_ = false;  // of this poll, into the ring
  frame::Prefix prefix_;
  std::array<std::byte, kHeaderBytesMax> header_;
  Body body_ = Body::kNone;
  std::span<std::byte> body_place_;  // landing, or own buffer
  BufferRef body_buffer_;
  std::size_t body_have_bytes_ = 0;

  std::uint64_t moved_bytes_ = 0;
};

}  // namespace byteps::way
