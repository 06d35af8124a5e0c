// The bytes of a TCP connection. Little-endian throughout.
//
// Each connection begins with records, two from each side (net/tcp/handshake.h); nothing else is read before,
// at most kRecordsBytesMax in all, and only for a limited time.
//
//   connecting side          accepting side
//   hello ................................→
//   ←....................... hello, proof
//   proof, frames .......................→
//   ←..............................  frames
//
// In place of any record, either side may send a refusal, and then ends the connection.
//
//   record                                     its body
//    0  u32  magic "BPS1"                       kind 1: 32 bytes of nonce, then a Hello (net/wire.h)
//    4  u16  kind                               kind 2, refusal: u32 a byteps::Code, then a text for people
//    6  u16  length of the body                 kind 3, proof: 32 bytes (net/auth.h)
//    8  body
//
// This much stays as it is in all versions of the protocol, so that a refusal can always be read: records,
// the nonce, refusals, and the version as field 1 of a Hello.
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
#include "net/auth.h"
#include "net/transport.h"

namespace byteps::tcp {

inline constexpr std::size_t kRecordHeadBytes = 8;
inline constexpr std::size_t kRecordsBytesMax =
    4096;  // what one side may say before the first frame
inline constexpr std::size_t kProofRecordBytes = kRecordHeadBytes + sizeof(auth::Proof);
inline constexpr std::size_t kRecordBodyBytesMax =
    kRecordsBytesMax - kProofRecordBytes - kRecordHeadBytes;
inline constexpr std::size_t kRefusalTextBytesMax = 512;
inline constexpr std::size_t kPrefixBytes = 24;
inline constexpr std::size_t kFrameHeadBytesMax = kPrefixBytes + kHeaderBytesMax;

enum class RecordKind : std::uint16_t { kHello = 1, kRefusal = 2, kProof = 3 };

struct RecordHead {
  RecordKind kind = RecordKind::kHello;
  std::size_t body_bytes = 0;
};

std::vector<std::byte> encode_hello_record(const Hello& hello, const auth::Nonce& nonce);
std::vector<std::byte> encode_proof_record(const auth::Proof& proof);
// A text that is too long is cut.
std::vector<std::byte> encode_refusal_record(const Status& why);

// `bytes` has kRecordHeadBytes. kMismatch: these are not our bytes, or the body would be too long.
Result<RecordHead> decode_record_head(std::span<const std::byte> bytes);
// The body of a Hello record, which leads with its nonce. kMismatch: it is malformed.
Result<Hello> decode_hello_body(std::span<const std::byte> body);
// The body of a refusal. Never ok: the Status that the other side gave, or one that says it is malformed.
// Characters that are not printable ASCII are replaced and what is too long is cut, for a stranger's text
// goes to logs.
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
