#include "net/frame/inbox.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "kernels/crc32c.h"

namespace byteps::frame {
namespace {

void copy(std::span<const std::byte> from, std::byte* to) {
  if (!from.empty()) std::memcpy(to, from.data(), from.size());
}

Status not_expected() {
  return {Code::kDisconnected, "it sent what it must not send here"};
}

}  // namespace

// ---- receiving

// Where the next bytes of the payload under way go.
std::span<std::byte> Inbox::body_room(Staging& staging) {
  if (!has_body() || body_have_bytes_ == prefix_.payload_bytes) return {};
  std::size_t room_bytes = body_buffer_.span().size() - kHeaderBytesMax;
  if (body_have_bytes_ == room_bytes) {
    room_bytes = std::min<std::size_t>(prefix_.payload_bytes, 2 * room_bytes);
    BufferRef larger = staging.take(kHeaderBytesMax + room_bytes);
    copy(body_buffer_.span(), larger.span().data());
    body_buffer_ = std::move(larger);
    room_bytes = body_buffer_.span().size() - kHeaderBytesMax;
  }
  const std::size_t end = std::min<std::size_t>(room_bytes, prefix_.payload_bytes);
  return body_buffer_.span().subspan(kHeaderBytesMax + body_have_bytes_, end - body_have_bytes_);
}

Inbox::Places Inbox::places(Staging& staging, std::size_t bytes_max) {
  CHECK(!has_backlog());
  Places places;
  const auto add = [&](std::span<std::byte> room) {
    if (room.empty()) return;
    places.entries[static_cast<std::size_t>(places.count++)] = {room.data(), room.size()};
    places.bytes += room.size();
  };
  std::span<std::byte> body = body_room(staging);
  body = body.first(std::min(body.size(), bytes_max));
  add(body);
  places.body_bytes = body.size();
  if (!has_body() || body_have_bytes_ + body.size() == prefix_.payload_bytes) add(staging.room());
  return places;
}

void Inbox::received(std::size_t bytes, const Places& places, Staging& staging) {
  const std::size_t of_body = std::min(bytes, places.body_bytes);
  if (of_body > 0) {
    const auto* const at = static_cast<const std::byte*>(places.entries[0].iov_base);
    body_crc_ = crc32c(body_crc_, {at, of_body});
    body_have_bytes_ += of_body;
  }
  staged_ = staging.room().first(bytes - of_body);
  staging.use(staged_.size());
}

// ---- parsing

std::span<const std::byte> Inbox::take_staged(std::size_t bytes) {
  const std::span<const std::byte> taken = staged_.first(bytes);
  staged_ = staged_.subspan(bytes);
  return taken;
}

Status Inbox::parse(PeerId peer, Staging& staging, EventSpan& out) {
  Status status;
  while (status.is_ok() && !out.full() && aside_.empty()) {
    if (has_body()) {
      if (!continue_body(staging)) break;
      status = finish_body(peer, staging, out);
      continue;
    }
    std::span<const std::byte> header;
    if (!read_head(status, header, staging)) break;
    status = start_payload(peer, header, staging, out);
  }
  leave_staged(staging);
  return status;
}

// Before parse() returns: what could not be parsed yet needs its memory longer than this poll.
void Inbox::leave_staged(Staging& staging) {
  if (!staged_.empty()) {
    if (!staged_owner_) staged_owner_ = staging.share();
  } else if (staged_owner_) {
    staging.hold(std::exchange(staged_owner_, {}));  // events of this poll look into it
  }
}

// Takes the next head from staging. False when it is not all there, or breaks the format (status). On
// success `header` lives until the next poll, or in head_.
bool Inbox::read_head(Status& status, std::span<const std::byte>& header, Staging& staging) {
  if (head_have_bytes_ == 0 && staged_.size() >= kPrefixBytes) {
    status = decode(staged_.first<kPrefixBytes>(), prefix_);
    if (!status.is_ok()) return false;
    if (staged_.size() >= prefix_.head_bytes()) {  // the usual case: no copy
      header = take_staged(prefix_.head_bytes()).subspan(kPrefixBytes);
      return header_is_sound(status, header);
    }
  }
  if (!collect_head(kPrefixBytes)) return false;
  status = decode(std::span(head_).first<kPrefixBytes>(), prefix_);
  if (!status.is_ok() || !collect_head(prefix_.head_bytes())) return false;
  header = staging.keep(std::span(head_).subspan(kPrefixBytes, prefix_.header_bytes));
  head_have_bytes_ = 0;
  return header_is_sound(status, header);
}

bool Inbox::header_is_sound(Status& status, std::span<const std::byte> header) const {
  if (crc32c(0, header) == prefix_.header_crc) return true;
  status = corrupted();
  return false;
}

bool Inbox::collect_head(std::size_t bytes) {
  if (head_have_bytes_ >= bytes) return true;
  const auto piece = take_staged(std::min(staged_.size(), bytes - head_have_bytes_));
  copy(piece, head_.data() + head_have_bytes_);
  head_have_bytes_ += piece.size();
  return head_have_bytes_ == bytes;
}

Status Inbox::start_payload(PeerId peer, std::span<const std::byte> header, Staging& staging,
                            EventSpan& out) {
  if (staged_.size() < prefix_.payload_bytes + prefix_.trailer_bytes()) {
    start_body(header, staging);
    return Status::ok();
  }
  const std::span<const std::byte> payload = take_staged(prefix_.payload_bytes);
  if (!payload.empty()) {
    const auto trailer = take_staged(kTrailerBytes).first<kTrailerBytes>();
    if (crc32c(0, payload) != decode_trailer(trailer)) return corrupted();
  }
  return emit(peer, out, header, payload);
}

void Inbox::start_body(std::span<const std::byte> header, Staging& staging) {
  body_have_bytes_ = 0;
  body_crc_ = 0;
  trailer_have_bytes_ = 0;
  const std::size_t room_bytes =
      std::min<std::size_t>(prefix_.payload_bytes, std::max(staging.batch_bytes(), staged_.size()));
  body_buffer_ = staging.take(kHeaderBytesMax + room_bytes);
  copy(header, body_buffer_.span().data());
}

// Moves what staging has of the payload under way to its place.
bool Inbox::continue_body(Staging& staging) {
  while (!staged_.empty() && body_have_bytes_ < prefix_.payload_bytes) {
    const std::span<std::byte> room = body_room(staging);
    const auto piece = take_staged(std::min(staged_.size(), room.size()));
    copy(piece, room.data());
    body_crc_ = crc32c(body_crc_, piece);
    body_have_bytes_ += piece.size();
  }
  if (body_have_bytes_ < prefix_.payload_bytes) return false;
  const auto piece = take_staged(std::min(staged_.size(), kTrailerBytes - trailer_have_bytes_));
  copy(piece, trailer_.data() + trailer_have_bytes_);
  trailer_have_bytes_ += piece.size();
  return trailer_have_bytes_ == kTrailerBytes;
}

Status Inbox::finish_body(PeerId peer, Staging& staging, EventSpan& out) {
  const std::span<const std::byte> bytes = body_buffer_.span();
  staging.hold(std::exchange(body_buffer_, {}));
  if (body_crc_ != decode_trailer(trailer_)) return corrupted();
  body_have_bytes_ = 0;
  return emit(peer, out, bytes.first(prefix_.header_bytes),
              bytes.subspan(kHeaderBytesMax, prefix_.payload_bytes));
}

// A whole frame is here.
Status Inbox::emit(PeerId peer, EventSpan& out, std::span<const std::byte> header,
                   std::span<const std::byte> payload) {
  if (prefix_.is_farewell) {
    heard_farewell_ = true;
    return decode_farewell(payload);
  }
  if (prefix_.is_aside) {
    aside_.assign(header.begin(), header.end());
    return header.empty() ? not_expected() : Status::ok();
  }
  if (messages_ended_) return not_expected();
  Event& event = out.add(Event::Kind::kReceived, peer);
  event.header = header;
  event.payload = payload;
  return Status::ok();
}

void Inbox::clear(Staging& staging) {
  staged_ = {};
  leave_staged(staging);
  body_buffer_ = {};
}

}  // namespace byteps::frame
