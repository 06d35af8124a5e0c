// FrameWriter: puts the frames of an outbox into a ring. For their form see net/way/link.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "net/frame/outbox.h"
#include "net/way/ring.h"

namespace byteps::way {

class FrameWriter {
 public:
  // Writes what waits in the outbox, as far as there is room.
  void write(frame::Outbox& outbox, RingOut& ring);

  std::uint64_t moved_bytes() const { return moved_bytes_; }  // of payloads

 private:
  static bool write_whole(const frame::Outbox::Frame& frame, std::size_t bytes, RingOut& ring);
  bool write_pieces(const frame::Outbox::Frame& frame, RingOut& ring);

  // A large frame: what of it is in the ring.
  bool head_written_ = false;
  std::size_t written_bytes_ = 0;  // of its payload

  std::uint64_t moved_bytes_ = 0;
};

}  // namespace byteps::way
