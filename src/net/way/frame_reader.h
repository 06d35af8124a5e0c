// FrameReader: makes events of the frames that a ring brings. For their form see net/way/link.h.
//
// Prefix and header are copied, then checked, so that the other side cannot change them in between. Payloads with a
// landing are copied there. Of the others, those of at most kPrivateBytesMax are copied too; longer ones are given out
// as views of the ring, without a copy, and their place is free for the writer after the next begin_poll().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/buffer.h"
#include "base/status.h"
#include "net/frame/events.h"
#include "net/frame/frame.h"
#include "net/frame/inbox.h"
#include "net/frame/staging.h"
#include "net/transport.h"
#include "net/way/ring.h"

namespace byteps::way {

// The other side has written into its ring what it must not.
Status damaged();

class FrameReader {
 public:
  // Makes events out of at most about bytes_max bytes, with landings of `inbox`. An error: end the connection.
  Status receive(PeerId peer, const frame::Inbox& inbox, std::size_t bytes_max,
                 frame::Staging& staging, frame::EventSpan& out, RingIn& ring);
  // receive() stopped though there was more.
  bool is_paused() const { return paused_; }
  // The landing ends: the rest of a payload that is half there is thrown away.
  void withdraw(LandingTag tag);
  // The views of the last poll end.
  void begin_poll(RingIn& ring);
  // What was read may be written over, unless views look into it.
  void release(RingIn& ring) const;

  std::uint64_t moved_bytes() const { return moved_bytes_; }  // of payloads

 private:
  // Where the rest of the payload goes whose head was read.
  enum class Body { kNone, kLanding, kOwnBuffer, kDiscard };

  // One frame, or a piece of one. False: its bytes are not all there yet.
  Result<bool> receive_next(PeerId peer, const frame::Inbox& inbox, frame::Staging& staging,
                            frame::EventSpan& out, RingIn& ring);
  // True: the prefix and the header are in prefix_ and header_.
  Result<bool> read_head(std::span<const std::byte> here);
  void receive_whole(PeerId peer, std::span<const std::byte> payload, std::span<std::byte> landing,
                     bool lands, frame::Staging& staging, frame::EventSpan& out);
  void start_body(std::span<std::byte> landing, bool lands, frame::Staging& staging);
  bool continue_body(PeerId peer, frame::Staging& staging, frame::EventSpan& out, RingIn& ring);
  void emit(PeerId peer, std::span<const std::byte> payload, bool landed, frame::Staging& staging,
            frame::EventSpan& out);

  bool paused_ = false;
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
