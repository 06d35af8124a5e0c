#include "net/shm/link.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <sys/socket.h>

#include "kernels/crc32c.h"

namespace byteps::shm {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kWakesPerRead = 256;

constexpr std::size_t filled(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

void copy(std::span<const std::byte> from, std::byte* to) {
  if (!from.empty()) std::memcpy(to, from.data(), from.size());
}

Status damaged() {
  return {Code::kDisconnected, "the memory that it shares with us makes no sense any more"};
}

}  // namespace

Link::Link(Meeting meeting, Side side)
    : segment_(std::move(meeting.segment)),
      socket_(std::move(meeting.socket)),
      writer_(segment_.ring(side == Side::kMaker ? 0 : 1)),
      reader_(segment_.ring(side == Side::kMaker ? 1 : 0)) {}

// ---- writing

void Link::write(tcp::Outbox& outbox) {
  while (const auto frame = outbox.unstreamed()) {
    const std::size_t bytes = filled(frame->head.size()) + filled(frame->payload.size());
    const bool done =
        bytes <= whole_bytes_max() ? write_whole(*frame, bytes) : write_pieces(*frame);
    if (!done) return;
    moved_bytes_ += frame->payload.size();
    outbox.unstreamed_is_sent();
  }
}

bool Link::write_whole(const tcp::Outbox::Frame& frame, std::size_t bytes) {
  if (!writer_.has_room(bytes)) return false;
  copy(frame.head, writer_.place());
  copy(frame.payload, writer_.place() + filled(frame.head.size()));
  publish(bytes);
  return true;
}

bool Link::write_pieces(const tcp::Outbox::Frame& frame) {
  if (!head_written_) {
    if (!writer_.has_room(filled(frame.head.size()))) return false;
    copy(frame.head, writer_.place());
    publish(filled(frame.head.size()));
    head_written_ = true;
  }
  // The last piece brings the fill with it; room is a multiple of it, as all that is written is.
  while (written_bytes_ < frame.payload.size()) {
    const std::size_t room = writer_.room() / kAlignment * kAlignment;
    const std::size_t bytes =
        std::min({frame.payload.size() - written_bytes_, room, whole_bytes_max() / 2});
    if (bytes == 0) return false;
    copy(frame.payload.subspan(written_bytes_, bytes), writer_.place());
    publish(filled(bytes));
    written_bytes_ += bytes;
  }
  head_written_ = false;
  written_bytes_ = 0;
  return true;
}

void Link::publish(std::size_t bytes) {
  writer_.publish(bytes);
  unwoken_bytes_ += bytes;
  if (unwoken_bytes_ >= whole_bytes_max() / 4) wake_reader();
}

void Link::wake_reader() {
  if (std::exchange(unwoken_bytes_, 0) > 0 && writer_.reader_wants_waking()) wake_other();
}

// ---- reading

Status Link::receive(PeerId peer, const tcp::Inbox& inbox, std::size_t bytes_max,
                     tcp::Staging& staging, tcp::EventSpan& out) {
  // Views hold their place until the next poll: the writer must have some to go on meanwhile.
  bytes_max = std::min(bytes_max, whole_bytes_max() / 2);
  const std::uint64_t begin = reader_.position();
  paused_ = false;
  Result<bool> more = reads_;
  while (more.is_ok() && more.value()) {
    paused_ = out.full() || reader_.position() - begin >= bytes_max;
    if (paused_) break;
    more = receive_next(peer, inbox, staging, out);
  }
  if (!holds_views_) release();
  if (more.is_ok() && is_broken()) return damaged();
  return more.status();
}

Result<bool> Link::receive_next(PeerId peer, const tcp::Inbox& inbox, tcp::Staging& staging,
                                tcp::EventSpan& out) {
  if (body_ != Body::kNone) return continue_body(peer, staging, out);
  const std::span<const std::byte> readable = reader_.readable();
  Result<bool> has_head = read_head(readable);
  if (!has_head.is_ok() || !has_head.value()) return has_head;
  const std::size_t head_bytes = filled(prefix_.head_bytes());
  const std::size_t bytes = head_bytes + filled(prefix_.payload_bytes);
  const bool passes_whole = bytes <= whole_bytes_max();
  if (passes_whole && readable.size() < bytes) return false;
  std::span<std::byte> landing;
  const bool lands = inbox.find_landing(prefix_, landing);
  if (passes_whole) {
    const auto payload = readable.subspan(head_bytes, prefix_.payload_bytes);
    receive_whole(peer, payload, landing, lands, staging, out);
    reader_.skip(bytes);
    return true;
  }
  reader_.skip(head_bytes);
  start_body(landing, lands, staging);
  return true;
}

Result<bool> Link::read_head(std::span<const std::byte> readable) {
  std::array<std::byte, tcp::kPrefixBytes> bytes;
  if (readable.size() < bytes.size()) return false;
  copy(readable.first(bytes.size()), bytes.data());
  if (Status status = tcp::decode(bytes, prefix_); !status.is_ok()) return status;
  if (prefix_.is_farewell || prefix_.is_aside) return damaged();
  if (readable.size() < filled(prefix_.head_bytes())) return false;
  copy(readable.subspan(tcp::kPrefixBytes, prefix_.header_bytes), header_.data());
  if (crc32c(0, std::span(header_).first(prefix_.header_bytes)) != prefix_.header_crc) {
    return tcp::corrupted();
  }
  return true;
}

void Link::receive_whole(PeerId peer, std::span<const std::byte> payload,
                         std::span<std::byte> landing, bool lands, tcp::Staging& staging,
                         tcp::EventSpan& out) {
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

void Link::start_body(std::span<std::byte> landing, bool lands, tcp::Staging& staging) {
  body_ = lands ? Body::kLanding : Body::kOwnBuffer;
  body_have_bytes_ = 0;
  if (!lands) body_buffer_ = staging.take(prefix_.payload_bytes);
  body_place_ = lands ? landing : body_buffer_.span().first(prefix_.payload_bytes);
}

// False: the rest is not there yet.
bool Link::continue_body(PeerId peer, tcp::Staging& staging, tcp::EventSpan& out) {
  const std::size_t rest = prefix_.payload_bytes - body_have_bytes_;
  // A piece at a time, so that the writer soon has room again.
  const std::span<const std::byte> readable = reader_.readable();
  const std::size_t bytes = std::min({rest, readable.size(), whole_bytes_max() / 2});
  const bool is_last = bytes == rest;
  if (bytes == 0 || (is_last && readable.size() < filled(bytes))) return false;
  if (body_ != Body::kDiscard) copy(readable.first(bytes), body_place_.data() + body_have_bytes_);
  reader_.skip(is_last ? filled(bytes) : bytes);
  body_have_bytes_ += bytes;
  if (!holds_views_) release();
  if (!is_last) return true;
  const Body body = std::exchange(body_, Body::kNone);
  const std::span<std::byte> place = std::exchange(body_place_, {});
  if (body != Body::kDiscard) emit(peer, place, body == Body::kLanding, staging, out);
  if (body_buffer_) staging.hold(std::exchange(body_buffer_, {}));
  return true;
}

void Link::emit(PeerId peer, std::span<const std::byte> payload, bool landed, tcp::Staging& staging,
                tcp::EventSpan& out) {
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

void Link::release() {
  if (reader_.release()) wake_other();
}

// ---- sleeping

bool Link::arm(const tcp::Outbox& outbox) {
  const bool can_read = reads_ && (reader_.arm() || paused_);
  const bool can_write = outbox.has_unstreamed() && writer_.arm();
  return can_read || can_write;
}

void Link::disarm() {
  reader_.disarm();
  writer_.disarm();
}

// Never waits, whatever the other side does to its end. Full: then it has wake-ups enough to read.
void Link::wake_other() {
  const std::byte wake{1};
  (void)!::send(socket_.get(), &wake, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void Link::drain_wakes() {
  std::byte wakes[kWakesPerRead];
  (void)!::recv(socket_.get(), wakes, sizeof wakes, MSG_DONTWAIT);
}

}  // namespace byteps::shm
