#include "net/way/frame_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/limits.h"
#include "kernels/crc32c.h"

namespace byteps::way {
namespace {

void copy(std::span<const std::byte> from, std::byte* to) {
  if (!from.empty()) std::memcpy(to, from.data(), from.size());
}

}  // namespace

Status damaged() {
  return {Code::kDisconnected, "the memory that it shares with us makes no sense any more"};
}

Status FrameReader::receive(PeerId peer, std::size_t bytes_max, frame::Staging& staging,
                            frame::EventSpan& out, RingIn& ring) {
  // Views hold their place until the next poll: the writer must have some to go on meanwhile.
  bytes_max = std::min(bytes_max, ring.readable_whole_bytes_max() / 2);
  const std::uint64_t begin = ring.position();
  Result<bool> more = true;
  while (more.is_ok() && more.value()) {
    paused_ = out.full() || ring.position() - begin >= bytes_max;
    if (paused_) break;
    more = receive_next(peer, staging, out, ring);
  }
  return more.status();
}

Result<bool> FrameReader::receive_next(PeerId peer, frame::Staging& staging, frame::EventSpan& out,
                                       RingIn& ring) {
  if (body_buffer_) return continue_body(peer, staging, out, ring);
  const std::span<const std::byte> here = ring.readable();
  Result<bool> has_head = read_head(here);
  if (!has_head.is_ok() || !has_head.value()) return has_head;
  const std::size_t head_bytes = filled(prefix_.head_bytes());
  const std::size_t bytes = head_bytes + filled(prefix_.payload_bytes);
  if (bytes > ring.readable_whole_bytes_max()) {  // it comes in pieces
    ring.skip(head_bytes);
    body_buffer_ = staging.take(prefix_.payload_bytes);
    body_have_bytes_ = 0;
    return true;
  }
  if (here.size() < bytes) return false;
  const auto payload = here.subspan(head_bytes, prefix_.payload_bytes);
  if (prefix_.is_bulk && !payload.empty()) {
    holds_views_ = true;
    emit(peer, payload, true, staging, out);
  } else {
    emit(peer, staging.keep(payload), false, staging, out);
  }
  ring.skip(bytes);
  return true;
}

Result<bool> FrameReader::read_head(std::span<const std::byte> here) {
  std::array<std::byte, frame::kPrefixBytes> bytes;
  if (here.size() < bytes.size()) return false;
  copy(here.first(bytes.size()), bytes.data());
  if (Status status = frame::decode(bytes, prefix_); !status.is_ok()) return status;
  if (prefix_.is_farewell || prefix_.is_aside) return damaged();
  if (!prefix_.is_bulk && prefix_.payload_bytes > kPrivateBytesMax) return damaged();
  if (here.size() < filled(prefix_.head_bytes())) return false;
  copy(here.subspan(frame::kPrefixBytes, prefix_.header_bytes), header_.data());
  if (crc32c(0, std::span(header_).first(prefix_.header_bytes)) != prefix_.header_crc) {
    return frame::corrupted();
  }
  return true;
}

// False: the rest is not there yet.
bool FrameReader::continue_body(PeerId peer, frame::Staging& staging, frame::EventSpan& out,
                                RingIn& ring) {
  const std::size_t rest = prefix_.payload_bytes - body_have_bytes_;
  // A piece at a time, so that the writer soon has room again.
  const std::span<const std::byte> here = ring.readable();
  const std::size_t bytes = std::min({rest, here.size(), ring.readable_whole_bytes_max() / 2});
  const bool is_last = bytes == rest;
  if (bytes == 0 || (is_last && here.size() < filled(bytes))) return false;
  copy(here.first(bytes), body_buffer_.span().data() + body_have_bytes_);
  ring.skip(is_last ? filled(bytes) : bytes);
  body_have_bytes_ += bytes;
  release(ring);
  if (!is_last) return true;
  emit(peer, body_buffer_.span().first(prefix_.payload_bytes), false, staging, out);
  staging.hold(std::exchange(body_buffer_, {}));
  return true;
}

void FrameReader::emit(PeerId peer, std::span<const std::byte> payload, bool is_shared,
                       frame::Staging& staging, frame::EventSpan& out) {
  Event& event = out.add(Event::Kind::kReceived, peer);
  event.header = staging.keep(std::span(header_).first(prefix_.header_bytes));
  event.payload = payload;
  event.is_shared = is_shared;
  moved_bytes_ += payload.size();
}

void FrameReader::begin_poll(RingIn& ring) {
  holds_views_ = false;
  ring.release();
}

void FrameReader::release(RingIn& ring) const {
  if (!holds_views_) ring.release();
}

}  // namespace byteps::way
