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
//    0  u32  magic "BPS1"                       kind 1: 32 bytes of nonce, then a Hello (net/wire.h); at most 3564
//    4  u16  kind                               kind 2, refusal: u32 a byteps::Code, then up to 512 of text for people
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
//    6  u16  0 a message; 1 a farewell: why the sender ends the connection, the payload is that of a refusal;
//            2 an aside: what the transports say to each other (net/tcp/aside.h), in the header; no payload
//    8  u64  landing tag, kNoLanding if there is none
//   16  u64  landing offset, bytes
//   24  u32  CRC32C of the header
//   28  u32  CRC32C of the 28 bytes before
//   32  header
//       payload
//       u32  CRC32C of the payload, if there is one
//
// The checksums (kernels/crc32c.h) are for bytes that change on the way, in a network card or a memory
// module, which TCP's own sum of 16 bits often does not notice. Each is looked at before anything that it
// covers is acted on, but for a payload with a landing: that may be written before. So a wrong length or
// tag does nothing, a stream cannot lose its way between frames, and a wrong payload is never reported.
// The connection ends, with a farewell, and its owner repeats what may be lost, as for any other end.
#pragma once

#include <array>
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
inline constexpr std::size_t kRefusalTextBytesMax = 512;
inline constexpr std::size_t kRefusalBodyBytesMax = sizeof(std::uint32_t) + kRefusalTextBytesMax;
// Behind a Hello comes a proof or a refusal.
inline constexpr std::size_t kHelloBodyBytesMax =
    kRecordsBytesMax - kRecordHeadBytes - (kRecordHeadBytes + kRefusalBodyBytesMax);
static_assert(kProofRecordBytes <= kRecordHeadBytes + kRefusalBodyBytesMax);
inline constexpr std::size_t kPrefixBytes = 32;
inline constexpr std::size_t kTrailerBytes = 4;
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

// Whether these bytes, of any number, can be a record of any version's.
bool begins_a_record(std::span<const std::byte> bytes);
// `bytes` has kRecordHeadBytes. kMismatch: these are not our bytes, or the body is too long for its kind.
Result<RecordHead> decode_record_head(std::span<const std::byte> bytes);
// The body of a Hello record, which leads with its nonce. kMismatch: it is malformed.
Result<Hello> decode_hello_body(std::span<const std::byte> body);
// The body of a refusal. Never ok: the Status that the other side gave, or one that says it is malformed.
// Characters that are not printable ASCII are replaced and what is too long is cut, for a stranger's text
// goes to logs.
Status decode_refusal(std::span<const std::byte> body);

// The first bytes of a frame.
struct Prefix {
  std::uint32_t payload_bytes = 0;
  std::uint16_t header_bytes = 0;
  bool is_farewell = false;
  bool is_aside = false;
  LandingTag landing = kNoLanding;
  std::uint64_t landing_offset = 0;
  std::uint32_t header_crc = 0;

  std::size_t head_bytes() const { return kPrefixBytes + header_bytes; }
  std::size_t trailer_bytes() const { return payload_bytes == 0 ? 0 : kTrailerBytes; }
};
void encode(const Prefix& prefix, std::span<std::byte, kPrefixBytes> out);
// kDisconnected: a limit is broken, or it was corrupted.
Status decode(std::span<const std::byte, kPrefixBytes> bytes, Prefix& prefix);

// The end of a frame: the checksum of its payload.
std::array<std::byte, kTrailerBytes> encode_trailer(std::uint32_t payload_crc);
std::uint32_t decode_trailer(std::span<const std::byte, kTrailerBytes> bytes);

// The last frame of a connection whose other side sent what it must not; and what that side makes of it.
std::vector<std::byte> encode_farewell(const Status& why);
Status decode_farewell(std::span<const std::byte> payload);

// What a connection ends with when a checksum is not that of what came.
Status corrupted();
bool is_corrupted(const Status& why);

}  // namespace byteps::tcp
