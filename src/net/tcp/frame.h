// The bytes of a TCP connection. Little-endian throughout.
//
// Each side first says who it is, in one record; the side that connected speaks first, the other one
// answers, with its own Hello or with a refusal. Nothing else is read before, at most 4 KiB are taken,
// and only for a limited time.
//
//   record                                     its body
//    0  u32  magic "BPS1"                       kind 1: an encoded Hello (net/wire.h)
//    4  u16  kind (1 hello, 2 refusal)          kind 2: u32 a byteps::Code, then a text for people
//    6  u16  length of the body
//    8  body
//
// Then, in both directions and until the end, messages, each in one frame:
//
//    0  u32  payload bytes, at most kPayloadBytesMax
//    4  u16  header bytes, at most kHeaderBytesMax
//    6  u16  zero
//    8  u64  landing tag, kNoLanding if there is none
//   16  u64  landing offset, bytes
//   24  header, payload
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "net/transport.h"

namespace byteps::tcp {

inline constexpr std::size_t kRecordHeadBytes = 8;
inline constexpr std::size_t kRecordBodyBytesMax = 4096 - kRecordHeadBytes;
inline constexpr std::size_t kPrefixBytes = 24;
inline constexpr std::size_t kFrameHeadBytesMax = kPrefixBytes + kHeaderBytesMax;

enum class RecordKind : std::uint16_t { kHello = 1, kRefusal = 2 };

struct RecordHead {
  RecordKind kind = RecordKind::kHello;
  std::size_t body_bytes = 0;
};

std::vector<std::byte> encode_hello_record(const Hello& hello);
// A text that is too long is cut.
std::vector<std::byte> encode_refusal_record(const Status& why);

// `bytes` has kRecordHeadBytes. kMismatch: these are not our bytes, or the body would be too long.
Result<RecordHead> decode_record_head(std::span<const std::byte> bytes);
// The body of a refusal. Never ok: the Status that the other side gave, or one that says it is malformed.
// Characters that are not printable ASCII are replaced, for the text goes to logs.
Status decode_refusal(std::span<const std::byte> body);

// The first 24 bytes of a frame.
struct Prefix {
  std::uint32_t payload_bytes = 0;
  std::uint16_t header_bytes = 0;
  LandingTag landing = kNoLanding;
  std::uint64_t landing_offset = 0;

  std::size_t head_bytes() const { return kPrefixBytes + header_bytes; }
};
void encode(const Prefix& prefix, std::span<std::byte, kPrefixBytes> out);
// kDisconnected: a limit is broken.
Status decode(std::span<const std::byte, kPrefixBytes> bytes, Prefix& prefix);

}  // namespace byteps::tcp
