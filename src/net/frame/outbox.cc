#include "net/frame/outbox.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kernels/crc32c.h"

namespace byteps::frame {
namespace {

constexpr std::size_t kSlotsMin = 16;

// What is left of `bytes` when so many of a longer row, in which they begin at `at`, are gone.
std::span<const std::byte> rest(std::span<const std::byte> bytes, std::size_t at,
                                std::size_t gone) {
  return bytes.subspan(std::min(bytes.size(), gone - std::min(gone, at)));
}

}  // namespace

void Outbox::put_record(std::span<const std::byte> record) {
  CHECK_EQ(end_, 0U) << "records go first";
  record_.insert(record_.end(), record.begin(), record.end());
  unsent_bytes_ += record.size();
}

void Outbox::push(const Outgoing& message) {
  push(message, false);
}

void Outbox::push_aside(std::span<const std::byte> content) {
  push({.header = content, .payload = {}}, true);
}

void Outbox::push(const Outgoing& message, bool is_aside) {
  if (end_ - reported_ == slots_.size()) grow();
  Slot& slot = this->slot(end_++);
  const Prefix prefix{.payload_bytes = static_cast<std::uint32_t>(message.payload.size()),
                      .header_bytes = static_cast<std::uint16_t>(message.header.size()),
                      .is_aside = is_aside,
                      .is_bulk = message.bulk,
                      .header_crc = crc32c(0, message.header)};
  encode(prefix, std::span(slot.head).first<kPrefixBytes>());
  std::copy(message.header.begin(), message.header.end(), slot.head.begin() + kPrefixBytes);
  slot.head_bytes = static_cast<std::uint16_t>(prefix.head_bytes());
  slot.token = message.token;
  slot.payload = message.payload;
  slot.is_aside = is_aside;
  // Off the stream nobody asks for it.
  slot.trailer_is_known = message.payload_crc != nullptr && !has_stream_end();
  if (slot.trailer_is_known) {
    std::optional<std::uint32_t>& crc = *message.payload_crc;
    if (!crc) crc = crc32c(0, message.payload);
    slot.trailer = encode_trailer(*crc);
  }
  unsent_bytes_ += slot.bytes();
  if (!is_aside) charged_bytes_ += charge_bytes(message);
}

void Outbox::grow() {
  std::vector<Slot> larger(std::max(kSlotsMin, 2 * slots_.size()));
  for (std::uint64_t number = reported_; number != end_; ++number) {
    larger[number & (larger.size() - 1)] = slot(number);
  }
  slots_ = std::move(larger);
}

std::size_t Outbox::Gathering::add(std::span<const std::byte> piece) {
  if (piece.empty() || full()) return 0;
  piece = piece.first(std::min(piece.size(), bytes_max - bytes));
  // iovec has no const; sendmsg does not write.
  out[count++] = {const_cast<std::byte*>(piece.data()), piece.size()};
  bytes += piece.size();
  return piece.size();
}

std::size_t Outbox::whole_frames(std::size_t bytes_min) const {
  std::size_t bytes = record_.size() - record_sent_bytes_;
  const std::uint64_t end = std::min(end_, stream_end_);
  for (std::uint64_t number = sent_; number < end && bytes < bytes_min; ++number) {
    bytes += slot(number).bytes() - (number == sent_ ? slot_sent_bytes_ : 0);
  }
  return bytes;
}

std::size_t Outbox::gather(std::span<iovec> out, std::size_t bytes_max, std::size_t& bytes) {
  Gathering into{.out = out, .bytes_max = bytes_max};
  into.add(std::span(record_).subspan(record_sent_bytes_));
  const std::uint64_t end = std::min(end_, stream_end_);
  for (std::uint64_t number = sent_; number < end && !into.full(); ++number) {
    const bool is_first = number == sent_;
    gather_slot(slot(number), is_first ? slot_sent_bytes_ : 0, is_first ? slot_sent_crc_ : 0, into);
  }
  bytes = into.bytes;
  return into.count;
}

// `sent_bytes` of the slot are the kernel's; of the payload among them `sent_crc` is the checksum.
void Outbox::gather_slot(Slot& slot, std::size_t sent_bytes, std::uint32_t sent_crc,
                         Gathering& into) {
  into.add(rest(std::span(slot.head).first(slot.head_bytes), 0, sent_bytes));
  const std::span<const std::byte> payload = rest(slot.payload, slot.head_bytes, sent_bytes);
  if (into.add(payload) < payload.size() || slot.payload.empty() || into.full()) return;
  if (!slot.trailer_is_known) slot.trailer = encode_trailer(crc32c(sent_crc, payload));
  into.add(rest(slot.trailer, slot.head_bytes + slot.payload.size(), sent_bytes));
}

void Outbox::advance(std::size_t bytes) {
  CHECK_LE(bytes, unsent_bytes_);
  unsent_bytes_ -= bytes;
  const std::size_t of_record = std::min(bytes, record_.size() - record_sent_bytes_);
  record_sent_bytes_ += of_record;
  if (record_sent_bytes_ < record_.size()) return;
  if (of_record > 0) {
    record_ = {};  // free: it is not needed any more
    record_sent_bytes_ = 0;
  }
  bytes -= of_record;
  while (bytes > 0) {
    const Slot& slot = this->slot(sent_);
    const std::size_t rest_bytes = slot.bytes() - slot_sent_bytes_;
    if (bytes < rest_bytes) {
      advance_within(slot, bytes);
      break;
    }
    bytes -= rest_bytes;
    slot_sent_bytes_ = 0;
    slot_sent_crc_ = 0;
    ++sent_;
  }
  pass_asides();
}

std::optional<Outbox::Frame> Outbox::unstreamed() const {
  if (!has_unstreamed()) return std::nullopt;
  const Slot& slot = this->slot(sent_ + passed_count_);
  return Frame{std::span(slot.head).first(slot.head_bytes), slot.payload};
}

void Outbox::unstreamed_is_passed() {
  CHECK(has_unstreamed());
  unsent_bytes_ -= slot(sent_ + passed_count_++).bytes();
}

void Outbox::passed_are_sent(std::size_t count) {
  CHECK_LE(count, passed_count_);
  passed_count_ -= count;
  sent_ += count;
}

// Nobody waits for the kSent of an aside.
void Outbox::pass_asides() {
  while (reported_ != sent_ && slot(reported_).is_aside) ++reported_;
}

// The kernel stopped inside this slot, the first that is not all sent.
void Outbox::advance_within(const Slot& slot, std::size_t bytes) {
  const auto unsent = rest(slot.payload, slot.head_bytes, slot_sent_bytes_);
  slot_sent_bytes_ += bytes;
  if (slot.trailer_is_known) return;
  const auto still_unsent = rest(slot.payload, slot.head_bytes, slot_sent_bytes_);
  slot_sent_crc_ = crc32c(slot_sent_crc_, unsent.first(unsent.size() - still_unsent.size()));
}

SendToken Outbox::pop_sent() {
  CHECK(has_sent());
  const Slot& slot = this->slot(reported_++);
  charged_bytes_ -= slot.payload.size() + sizeof(Slot);
  const SendToken token = slot.token;
  pass_asides();
  return token;
}

void Outbox::give_up() {
  sent_ = end_;
  passed_count_ = 0;
  pass_asides();
  slot_sent_bytes_ = 0;
  slot_sent_crc_ = 0;
  unsent_bytes_ = 0;
  record_.clear();
  record_sent_bytes_ = 0;
}

}  // namespace byteps::frame
