#include "net/way/link.h"

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

Status Link::damaged() {
  return {Code::kDisconnected, "the memory that it shares with us makes no sense any more"};
}

// ---- writing

void Link::write(frame::Outbox& outbox) {
  write_frames(outbox);
  outbox.passed_are_sent(take_unneeded());
}

void Link::write_frames(frame::Outbox& outbox) {
  while (const auto frame = outbox.unstreamed()) {
    const std::size_t bytes = filled(frame->head.size()) + filled(frame->payload.size());
    const bool done =
        bytes <= whole_bytes_max() ? write_whole(*frame, bytes) : write_pieces(*frame);
    if (!done) return;
    moved_bytes_ += frame->payload.size();
    outbox.unstreamed_is_passed();
    frame_is_written();
  }
}

bool Link::write_whole(const frame::Outbox::Frame& frame, std::size_t bytes) {
  if (!has_room(bytes)) return false;
  const std::size_t head_bytes = filled(frame.head.size());
  copy(frame.head, place());
  if (!lend(frame.payload, head_bytes)) copy(frame.payload, place() + head_bytes);
  publish(bytes);
  return true;
}

bool Link::write_pieces(const frame::Outbox::Frame& frame) {
  if (!head_written_) {
    if (!has_room(filled(frame.head.size()))) return false;
    copy(frame.head, place());
    publish(filled(frame.head.size()));
    head_written_ = true;
  }
  // The last piece brings the fill with it; room is a multiple of it, as all that is written is.
  while (written_bytes_ < frame.payload.size()) {
    const std::size_t room_bytes = room() / kAlignment * kAlignment;
    const std::size_t bytes =
        std::min({frame.payload.size() - written_bytes_, room_bytes, whole_bytes_max() / 2});
    if (bytes == 0) return false;
    copy(frame.payload.subspan(written_bytes_, bytes), place());
    publish(filled(bytes));
    written_bytes_ += bytes;
  }
  head_written_ = false;
  written_bytes_ = 0;
  return true;
}

// ---- reading

Status Link::receive(PeerId peer, const frame::Inbox& inbox, std::size_t bytes_max,
                     frame::Staging& staging, frame::EventSpan& out) {
  // Views hold their place until the next poll: the writer must have some to go on meanwhile.
  bytes_max = std::min(bytes_max, readable_whole_bytes_max() / 2);
  const std::uint64_t begin = position();
  paused_ = false;
  Result<bool> more = reads_;
  while (more.is_ok() && more.value()) {
    paused_ = out.full() || position() - begin >= bytes_max;
    if (paused_) break;
    more = receive_next(peer, inbox, staging, out);
  }
  if (!holds_views_) release();
  if (more.is_ok() && is_broken()) return damaged();
  return more.status();
}

Result<bool> Link::receive_next(PeerId peer, const frame::Inbox& inbox, frame::Staging& staging,
                                frame::EventSpan& out) {
  if (body_ != Body::kNone) return continue_body(peer, staging, out);
  const std::span<const std::byte> here = readable();
  Result<bool> has_head = read_head(here);
  if (!has_head.is_ok() || !has_head.value()) return has_head;
  const std::size_t head_bytes = filled(prefix_.head_bytes());
  const std::size_t bytes = head_bytes + filled(prefix_.payload_bytes);
  const bool passes_whole = bytes <= readable_whole_bytes_max();
  if (passes_whole && here.size() < bytes) return false;
  std::span<std::byte> landing;
  const bool lands = inbox.find_landing(prefix_, landing);
  if (passes_whole) {
    const auto payload = here.subspan(head_bytes, prefix_.payload_bytes);
    receive_whole(peer, payload, landing, lands, staging, out);
    skip(bytes);
    return true;
  }
  skip(head_bytes);
  start_body(landing, lands, staging);
  return true;
}

Result<bool> Link::read_head(std::span<const std::byte> here) {
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

void Link::receive_whole(PeerId peer, std::span<const std::byte> payload,
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

void Link::start_body(std::span<std::byte> landing, bool lands, frame::Staging& staging) {
  body_ = lands ? Body::kLanding : Body::kOwnBuffer;
  body_have_bytes_ = 0;
  if (!lands) body_buffer_ = staging.take(prefix_.payload_bytes);
  body_place_ = lands ? landing : body_buffer_.span().first(prefix_.payload_bytes);
}

// False: the rest is not there yet.
bool Link::continue_body(PeerId peer, frame::Staging& staging, frame::EventSpan& out) {
  const std::size_t rest = prefix_.payload_bytes - body_have_bytes_;
  // A piece at a time, so that the writer soon has room again.
  const std::span<const std::byte> here = readable();
  const std::size_t bytes = std::min({rest, here.size(), readable_whole_bytes_max() / 2});
  const bool is_last = bytes == rest;
  if (bytes == 0 || (is_last && here.size() < filled(bytes))) return false;
  if (body_ != Body::kDiscard) copy(here.first(bytes), body_place_.data() + body_have_bytes_);
  skip(is_last ? filled(bytes) : bytes);
  body_have_bytes_ += bytes;
  if (!holds_views_) release();
  if (!is_last) return true;
  const Body body = std::exchange(body_, Body::kNone);
  const std::span<std::byte> place = std::exchange(body_place_, {});
  if (body != Body::kDiscard) emit(peer, place, body == Body::kLanding, staging, out);
  if (body_buffer_) staging.hold(std::exchange(body_buffer_, {}));
  return true;
}

void Link::emit(PeerId peer, std::span<const std::byte> payload, bool landed,
                frame::Staging& staging, frame::EventSpan& out) {
  Event& event = out.add(Event::Kind::kReceived, peer);
  event.header = staging.keep(std::span(header_).first(prefix_.header_bytes));
  event.payload = payload;
  event.landed = landed;
  moved_bytes_ += payload.size();
}

void Link::withdraw(LandingTag tag) {
  if (body_ == Body::kLanding && prefix_.landing == tag) body_ = Body::kDiscard;
}

void Link::begin_poll() {
  holds_views_ = false;
  release();
}

}  // namespace byteps::way
