// FrameReader: makes events of the frames that a ring brings. For their form see net/way/link.h.
//
// Prefix and header are copied, then checked, so that the other side cannot change them in between. So are payloads,
// of at most kPrivateBytesMax, but for tensor bytes (Outgoing::bulk): these are given out as views of the ring, without
// a copy, and their place is free for the writer after the next begin_poll().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/buffer.h"
#include "base/status.h"
#include "net/frame/events.h"
#include "net/frame/frame.h"
#include "net/frame/staging.h"
#include "net/transport.h"
#include "net/way/ring.h"

namespace byteps::way {

// The other side has written into its ring what it must not.
Status damaged();

class FrameReader {
 public:
  // Makes events out of at most about bytes_max bytes. An error: end the connection.
  Status receive(PeerId peer, std::size_t bytes_max, frame::Staging& staging, frame::EventSpan& out,
                 RingIn& ring);
  // receive() stopped though there was more.
  bool is_paused() const { return paused_; }
  // The views of the last poll end.
  void begin_poll(RingIn& ring);
  // What was read may be written over, unless views look into it.
  void release(RingIn& ring) const;

  std::uint64_t moved_bytes() const { return moved_bytes_; }  // of payloads

 private:
  // One frame, or a piece of one. False: its bytes are not all there yet.
  Result<bool> receive_next(PeerId peer, frame::Staging& staging, frame::EventSpan& out,
                            RingIn& ring);
  // True: the prefix and the header are in prefix_ and header_.
  Result<bool> read_head(std::span<const std::byte> here);
  bool continue_body(PeerId peer, frame::Staging& staging, frame::EventSpan& out, RingIn& ring);
  void emit(PeerId peer, std::span<const std::byte> payload, bool is_shared,
            frame::Staging& staging, frame::EventSpan& out);

  bool paused_ = false;
  bool holds_views_ = false;  // of this poll, into the ring
  frame::Prefix prefix_;
  std::array<std::byte, kHeaderBytesMax> header_;
  BufferRef body_buffer_;  // for a payload that comes in pieces; empty: none does
  std::size_t body_have_bytes_ = 0;
  std::uint64_t moved_bytes_ = 0;
};

}  // namespace byteps::way
