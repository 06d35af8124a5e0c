#include "net/frame/frame.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string_view>

#include "kernels/crc32c.h"

namespace byteps::frame {
namespace {

static_assert(std::endian::native == std::endian::little,
              "frames are copied as they are in memory");

constexpr std::size_t kRefusalHeadBytes = 4;
constexpr std::size_t kPrefixCrcAt = 12;
constexpr std::uint16_t kMessage = 0;
constexpr std::uint16_t kFarewell = 1;
constexpr std::uint16_t kAside = 2;
constexpr std::uint16_t kBulk = 3;

template <typename Number>
void put(std::byte* at, Number number) {
  std::memcpy(at, &number, sizeof number);
}
template <typename Number>
Number get(const std::byte* at) {
  Number number;
  std::memcpy(&number, at, sizeof number);
  return number;
}

std::uint16_t kind_of(const Prefix& prefix) {
  if (prefix.is_farewell) return kFarewell;
  if (prefix.is_aside) return kAside;
  return prefix.is_bulk ? kBulk : kMessage;
}

// A stranger's text, fit for a log.
std::string refusal_text(std::span<const std::byte> body) {
  if (body.size() < kRefusalHeadBytes) return "no reason given";
  const std::span<const std::byte> raw = body.subspan(kRefusalHeadBytes);
  std::string text(reinterpret_cast<const char*>(raw.data()),
                   std::min(raw.size(), kRefusalTextBytesMax));
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

// What a connection may end for, as its other end says; anything else says nothing.
Cause refusal_cause(std::span<const std::byte> body) {
  Cause cause{.is_of_peer = true};
  if (body.size() < kRefusalHeadBytes) return cause;
  const auto kind = cause_kind_of(get<std::uint16_t>(body.data() + 2));
  constexpr std::array kOfConnections = {CauseKind::kDamaged, CauseKind::kNoDescriptors,
                                         CauseKind::kNoMemory, CauseKind::kKeysDiffer,
                                         CauseKind::kVersionsDiffer};
  if (kind &&
      std::find(kOfConnections.begin(), kOfConnections.end(), *kind) != kOfConnections.end())
    cause.kind = *kind;
  return cause;
}

}  // namespace

std::vector<std::byte> encode_refusal(const Status& why) {
  const std::string_view text = std::string_view(why.message()).substr(0, kRefusalTextBytesMax);
  std::vector<std::byte> body(kRefusalHeadBytes);
  put(body.data(), static_cast<std::uint16_t>(why.code()));
  put(body.data() + 2, static_cast<std::uint16_t>(why.cause().kind));
  const auto raw = std::as_bytes(std::span(text));
  body.insert(body.end(), raw.begin(), raw.end());
  return body;
}

Status decode_refusal(std::span<const std::byte> body) {
  constexpr auto kCodeLast = static_cast<std::uint16_t>(Code::kCancelled);
  const auto code = body.size() < kRefusalHeadBytes ? 0 : get<std::uint16_t>(body.data());
  return {code == 0 || code > kCodeLast ? Code::kMismatch : static_cast<Code>(code),
          "refused by it: " + refusal_text(body), refusal_cause(body)};
}

void encode(const Prefix& prefix, std::span<std::byte, kPrefixBytes> out) {
  put(out.data(), prefix.payload_bytes);
  put(out.data() + 4, prefix.header_bytes);
  put(out.data() + 6, kind_of(prefix));
  put(out.data() + 8, prefix.header_crc);
  put(out.data() + kPrefixCrcAt, crc32c(0, out.first<kPrefixCrcAt>()));
}

Status decode(std::span<const std::byte, kPrefixBytes> bytes, Prefix& prefix) {
  if (get<std::uint32_t>(bytes.data() + kPrefixCrcAt) != crc32c(0, bytes.first<kPrefixCrcAt>())) {
    return corrupted();
  }
  prefix.payload_bytes = get<std::uint32_t>(bytes.data());
  prefix.header_bytes = get<std::uint16_t>(bytes.data() + 4);
  const auto kind = get<std::uint16_t>(bytes.data() + 6);
  prefix.is_farewell = kind == kFarewell;
  prefix.is_aside = kind == kAside;
  prefix.is_bulk = kind == kBulk;
  prefix.header_crc = get<std::uint32_t>(bytes.data() + 8);
  if (prefix.payload_bytes <= kPayloadBytesMax && prefix.header_bytes <= kHeaderBytesMax &&
      kind <= kBulk && (kind != kAside || prefix.payload_bytes == 0)) [[likely]] {
    return Status::ok();
  }
  return {Code::kDisconnected, "it sent bytes that are no frame (payload of " +
                                   std::to_string(prefix.payload_bytes) + " bytes, header of " +
                                   std::to_string(prefix.header_bytes) + ")"};
}

std::array<std::byte, kTrailerBytes> encode_trailer(std::uint32_t payload_crc) {
  std::array<std::byte, kTrailerBytes> trailer;
  put(trailer.data(), payload_crc);
  return trailer;
}

std::uint32_t decode_trailer(std::span<const std::byte, kTrailerBytes> bytes) {
  return get<std::uint32_t>(bytes.data());
}

std::vector<std::byte> encode_farewell(const Status& why) {
  const std::vector<std::byte> payload = encode_refusal(why);
  std::vector<std::byte> frame(kPrefixBytes);
  encode({.payload_bytes = static_cast<std::uint32_t>(payload.size()), .is_farewell = true},
         std::span(frame).first<kPrefixBytes>());
  frame.insert(frame.end(), payload.begin(), payload.end());
  const auto trailer = encode_trailer(crc32c(0, payload));
  frame.insert(frame.end(), trailer.begin(), trailer.end());
  return frame;
}

Status decode_farewell(std::span<const std::byte> payload) {
  return {Code::kDisconnected, "it ended the connection: " + refusal_text(payload),
          refusal_cause(payload)};
}

Status corrupted() {
  return {Code::kDisconnected,
          "a frame from it was corrupted on the way (CRC32C differs)",
          {.kind = CauseKind::kDamaged}};
}

}  // namespace byteps::frame
