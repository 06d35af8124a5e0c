#include "net/way/frame_writer.h"

#include <algorithm>
#include <cstring>

namespace byteps::way {
namespace {

void copy(std::span<const std::byte> from, std::byte* to) {
  if (!from.empty()) std::memcpy(to, from.data(), from.size());
}

}  // namespace

void FrameWriter::write(frame::Outbox& outbox, RingOut& ring) {
  std::size_t written = 0;
  while (const auto frame = outbox.unstreamed()) {
    const std::size_t bytes = filled(frame->head.size()) + filled(frame->payload.size());
    const bool done = bytes <= ring.writable_whole_bytes_max() ? write_whole(*frame, bytes, ring)
                                                               : write_pieces(*frame, ring);
    if (!done) break;
    moved_bytes_ += frame->payload.size();
    outbox.unstreamed_is_passed();
    ring.frame_is_written();
    ++written;
  }
  outbox.passed_are_sent(ring.take_unneeded(written));
}

bool FrameWriter::write_whole(const frame::Outbox::Frame& frame, std::size_t bytes, RingOut& ring) {
  if (!ring.has_room(bytes)) return false;
  const std::size_t head_bytes = filled(frame.head.size());
  copy(frame.head, ring.place());
  if (!ring.lend(frame.payload, head_bytes)) copy(frame.payload, ring.place() + head_bytes);
  ring.publish(bytes);
  return true;
}

bool FrameWriter::write_pieces(const frame::Outbox::Frame& frame, RingOut& ring) {
  if (!head_written_) {
    if (!ring.has_room(filled(frame.head.size()))) return false;
    copy(frame.head, ring.place());
    ring.publish(filled(frame.head.size()));
    head_written_ = true;
  }
  // The last piece brings the fill with it; room is a multiple of it, as all that is written is.
  while (written_bytes_ < frame.payload.size()) {
    const std::size_t room_bytes = ring.room() / kAlignment * kAlignment;
    const std::size_t bytes = std::min(
        {frame.payload.size() - written_bytes_, room_bytes, ring.writable_whole_bytes_max() / 2});
    if (bytes == 0) return false;
    copy(frame.payload.subspan(written_bytes_, bytes), ring.place());
    ring.publish(filled(bytes));
    written_bytes_ += bytes;
  }
  head_written_ = false;
  written_bytes_ = 0;
  return true;
}

}  // namespace byteps::way
