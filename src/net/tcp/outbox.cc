#include "net/tcp/outbox.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace byteps::tcp {
namespace {

constexpr std::size_t kSlotsMin = 16;

iovec entry(std::span<const std::byte> bytes) {
  // iovec has no const; sendmsg does not write.
  return {const_cast<std::byte*>(bytes.data()), bytes.size()};
}

}  // namespace

void Outbox::put_record(std::span<const std::byte> record) {
  CHECK_EQ(end_, 0U) << "records go first";
  record_.insert(record_.end(), record.begin(), record.end());
  unsent_bytes_ += record.size();
}

void Outbox::push(const Outgoing& message) {
  if (end_ - reported_ == slots_.size()) grow();
  Slot& slot = this->slot(end_++);
  const Prefix prefix{.payload_bytes = static_cast<std::uint32_t>(message.payload.size()),
                      .header_bytes = static_cast<std::uint16_t>(message.header.size()),
                      .landing = message.landing,
                      .landing_offset = message.landing_offset};
  encode(prefix, std::span(slot.head).first<kPrefixBytes>());
  std::copy(message.header.begin(), message.header.end(), slot.head.begin() + kPrefixBytes);
  slot.head_bytes = static_cast<std::uint16_t>(prefix.head_bytes());
  slot.token = message.token;
  slot.payload = message.payload;
  unsent_bytes_ += slot.bytes();
  charged_bytes_ += charge_bytes(message);
}

void Outbox::grow() {
  std::vector<Slot> larger(std::max(kSlotsMin, 2 * slots_.size()));
  for (std::uint64_t number = reported_; number != end_; ++number) {
    larger[number & (larger.size() - 1)] = slot(number);
  }
  slots_ = std::move(larger);
}

std::size_t Outbox::gather(std::span<iovec> out, std::size_t bytes_max, std::size_t& bytes) {
  std::size_t count = 0;
  bytes = 0;
  const auto add = [&](std::span<const std::byte> piece) {
    if (piece.empty() || count == out.size() || bytes == bytes_max) return;
    piece = piece.first(std::min(piece.size(), bytes_max - bytes));
    out[count++] = entry(piece);
    bytes += piece.size();
  };
  add(std::span(record_).subspan(record_sent_bytes_));
  std::size_t skip = slot_sent_bytes_;
  for (std::uint64_t number = sent_; number != end_; ++number) {
    if (count == out.size() || bytes == bytes_max) break;
    const Slot& slot = this->slot(number);
    const auto head = std::span<const std::byte>(slot.head).first(slot.head_bytes);
    add(head.subspan(std::min(skip, head.size())));
    add(slot.payload.subspan(skip - std::min(skip, head.size())));
    skip = 0;
  }
  return count;
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
  slot_sent_bytes_ += bytes - of_record;
  while (sent_ != end_ && slot_sent_bytes_ >= slot(sent_).bytes()) {
    slot_sent_bytes_ -= slot(sent_++).bytes();
  }
}

SendToken Outbox::pop_sent() {
  CHECK(has_sent());
  const Slot& slot = this->slot(reported_++);
  charged_bytes_ -= slot.payload.size() + sizeof(Slot);
  return slot.token;
}

void Outbox::give_up() {
  sent_ = end_;
  slot_sent_bytes_ = 0;
  unsent_bytes_ = 0;
  record_.clear();
  record_sent_bytes_ = 0;
}

}  // namespace byteps::tcp
