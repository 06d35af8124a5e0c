// Inbox: turns the bytes that one connection brings into events, with as few copies as the frames allow.
//
// Bytes come by readv(2) into up to two places at once: the rest of the payload that is half here, and then
// the staging buffer, where whatever follows is parsed. A payload that is whole in staging is given out as a view of
// it. One that is cut off at the end of staging moves to a buffer of its own, the rest is received there, and it is
// given out as a view of that.
//
// Hostile input: a prefix is checked before anything is done with it; a payload's own buffer grows as bytes
// come. Checksums (net/frame/frame.h) are looked at before an event is made; that of a payload under way is
// computed as its pieces come, while they are in the cache.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include <sys/uio.h>

#include "base/buffer.h"
#include "base/status.h"
#include "net/frame/events.h"
#include "net/frame/frame.h"
#include "net/frame/staging.h"
#include "net/transport.h"

namespace byteps::frame {

class Inbox {
 public:
  // True when bytes are here that await parse(); then nothing more is received.
  bool has_backlog() const { return !staged_.empty(); }
  // Staging room below which receiving would be a waste; try again in the next poll.
  static std::size_t room_wanted(const Staging& staging) { return staging.batch_bytes() / 4; }

  // Where to receive the next bytes: at most bytes_max, at least one. No backlog may be there.
  struct Places {
    std::array<iovec, 2> entries{};
    int count = 0;
    std::size_t bytes = 0;       // their sum
    std::size_t body_bytes = 0;  // the first of them, when it is for the payload under way
  };
  Places places(Staging& staging, std::size_t bytes_max);
  // So many bytes were received there. parse() must follow, with at least one event free.
  void received(std::size_t bytes, const Places& places, Staging& staging);
  // Makes events until the bytes or the events run out. An error: the bytes break the format, end the
  // connection.
  Status parse(PeerId peer, Staging& staging, EventSpan& out);
  // What the other side's transport said; parse() stops behind it. Empty: nothing.
  std::vector<std::byte> take_aside() { return std::exchange(aside_, {}); }
  // No message may come this way any more.
  void end_messages() { messages_ended_ = true; }

  // parse() failed because the other side said why it ends the connection.
  bool heard_farewell() const { return heard_farewell_; }
  // The connection is over: nothing that was half received comes any more.
  void clear(Staging& staging);

 private:
  // A payload is under way whose head was read.
  bool has_body() const { return static_cast<bool>(body_buffer_); }
  std::span<std::byte> body_room(Staging& staging);
  bool read_head(Status& status, std::span<const std::byte>& header, Staging& staging);
  bool header_is_sound(Status& status, std::span<const std::byte> header) const;
  bool collect_head(std::size_t bytes);
  Status start_payload(PeerId peer, std::span<const std::byte> header, Staging& staging,
                       EventSpan& out);
  void start_body(std::span<const std::byte> header, Staging& staging);
  // True when all of it is here.
  bool continue_body(Staging& staging);
  Status finish_body(PeerId peer, Staging& staging, EventSpan& out);
  Status emit(PeerId peer, EventSpan& out, std::span<const std::byte> header,
              std::span<const std::byte> payload);
  std::span<const std::byte> take_staged(std::size_t bytes);
  void leave_staged(Staging& staging);

  // Received and not yet parsed; in the current staging buffer unless staged_owner_ holds an older one.
  std::span<const std::byte> staged_;
  BufferRef staged_owner_;

  // The frame that is only partly here: its head, as far as it came ...
  std::array<std::byte, kFrameHeadBytesMax> head_;
  std::size_t head_have_bytes_ = 0;
  Prefix prefix_;
  // ... and, once the head is complete, its payload: behind kHeaderBytesMax for its header. Empty: none is under way.
  BufferRef body_buffer_;
  std::size_t body_have_bytes_ = 0;
  std::uint32_t body_crc_ = 0;  // of what is here
  std::array<std::byte, kTrailerBytes> trailer_;
  std::size_t trailer_have_bytes_ = 0;

  std::vector<std::byte> aside_;
  bool messages_ended_ = false;
  bool heard_farewell_ = false;
};

}  // namespace byteps::frame
