#include "net/way/frame_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

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

Status FrameReader::receive(PeerId peer, const frame::Inbox& inbox, std::size_t bytes_max,
                            frame::Staging& staging, frame::EventSpan& out, RingIn& ring) {
  // Views hold their place until the next poll: the writer must have some to go on meanwhile.
  bytes_max = std::min(bytes_max, ring.readable_whole_bytes_max() / 2);
  const std::uint64_t begin = ring.position();
  Result<bool> more = true;
  while (more.is_ok() && more.value()) {
    paused_ = out.full() || ring.position() - begin >= bytes_max;
    if (paused_) break;
    more = receive_next(peer, inbox, staging, out, ring);
  }
  return more.status();
}

Result<bool> FrameReader::receive_next(PeerId peer, const frame::Inbox& inbox,
                                       frame::Staging& staging, frame::EventSpan& out,
                                       RingIn& ring) {
  if (body_ != Body::kNone) return continue_body(peer, staging, out, ring);
  const std::span<const std::byte> here = ring.readable();
  Result<bool> has_head = read_head(here);
  if (!has_head.is_ok() || !has_head.value()) return has_head;
  const std::size_t head_bytes = filled(prefix_.head_bytes());
  const std::size_t bytes = head_bytes + filled(prefix_.payload_bytes);
  const bool passes_whole = bytes <= ring.readable_whole_bytes_max();
  if (passes_whole && here.size() < bytes) return false;
  std::span<std::byte> landing;
  const bool lands = inbox.find_landing(prefix_, landing);
  if (passes_whole) {
    const auto payload = here.subspan(head_bytes, prefix_.payload_bytes);
    receive_whole(peer, payload, landing, lands, staging, out);
    ring.skip(bytes);
    return true;
  }
  ring.skip(head_bytes);
  start_body(landing, lands, staging);
  return true;
}

Result<bool> FrameReader::read_head(std::span<const std::byte> here) {
  std::array<std::byte, frame::kPrefixBytes> bytes;
  if (here.size() < bytes.size()) return false;
  copy(here.first(bytes.size()), bytes.data());
  if (Status status = frame::decode(bytes, prefix_); !status.is_ok()) return status;
  if (prefix_.is_farewell || prefix_.is_aside) return damaged();
  if (here.size() < filled(prefix_.head_bytes())) return false;
  copy(here.subspan(frame::kPrefixBytes, prefix_.header_bytes), header_.data());
  if (crc32c(0, std::span(header_).first(prefix_.header_bytes)) != prefix_.header_crc) {
    return frame::corrupted();
  }
  return true;
}

void FrameReader::receive_whole(PeerId peer, std::span<const std::byte> payload,
                                std::span<std::byte> landing, bool lands, frame::Staging& staging,
                                frame::EventSpan& out) {
  if (lands) {
    copy(payload, landing.data());
    return emit(peer, landing, true, staging, out);
  }
  if (payload.size() <= kPrivateBytesMax) {
    return emit(peer, staging.keep(payload), false, staging, out);
  }
  holds_views_ = true;
  emit(peer, payload, false, staging, out);
}

void FrameReader::start_body(std::span<std::byte> landing, bool lands, frame::Staging& staging) {
  body_ = lands ? Body::kLanding : Body::kOwnBuffer;
  body_have_bytes_ = 0;
  if (!lands) body_buffer_ = staging.take(prefix_.payload_bytes);
  body_place_ = lands ? landing : body_buffer_.span().first(prefix_.payload_bytes);
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
  if (body_ != Body::kDiscard) copy(here.first(bytes), body_place_.data() + body_have_bytes_);
  ring.skip(is_last ? filled(bytes) : bytes);
  body_have_bytes_ += bytes;
  release(ring);
  if (!is_last) return true;
  const Body body = std::exchange(body_, Body::kNone);
  const std::span<std::byte> place = std::exchange(body_place_, {});
  if (body != Body::kDiscard) emit(peer, place, body == Body::kLanding, staging, out);
  if (body_buffer_) staging.hold(std::exchange(body_buffer_, {}));
  return true;
}

void FrameReader::emit(PeerId peer, std::span<const std::byte> payload, bool landed,
                       frame::Staging& staging, frame::EventSpan& out) {
  Event& event = out.add(Event::Kind::kReceived, peer);
  event.header = staging.keep(std::span(header_).first(prefix_.header_bytes));
  event.payload = payload;
  event.landed = landed;
  moved_bytes_ += payload.size();
}

void FrameReader::withdraw(LandingTag tag) {
  if (body_ == Body::kLanding && prefix_.landing == tag) body_ = Body::kDiscard;
}

void FrameReader::begin_poll(RingIn& ring) {
  holds_views_ = false;
  ring.release();
}

void FrameReader::release(RingIn& ring) const {
  if (!holds_views_) ring.release();
}

}  // namespace byteps::way
