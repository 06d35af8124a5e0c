// The records that a TCP connection begins with. Little-endian throughout.
//
// Two from each side (net/tcp/handshake.h); nothing else is read before, at most kRecordsBytesMax in all, and only for
// a limited time.
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
//    4  u16  kind                               kind 2, refusal: see net/frame/frame.h
//    6  u16  length of the body                 kind 3, proof: 32 bytes (net/auth.h)
//    8  body
//
// This much stays as it is in all versions of the protocol, so that a refusal can always be read: records,
// the nonce, refusals, and the version as field 1 of a Hello. Frames follow (net/frame/frame.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "net/auth.h"
#include "net/endpoint.h"
#include "net/frame/frame.h"

namespace byteps::tcp {

inline constexpr std::size_t kRecordHeadBytes = 8;
inline constexpr std::size_t kRecordsBytesMax =
    4096;  // what one side may say before the first frame
inline constexpr std::size_t kProofRecordBytes = kRecordHeadBytes + sizeof(auth::Proof);
// Behind a Hello comes a proof or a refusal.
inline constexpr std::size_t kHelloBodyBytesMax =
    kRecordsBytesMax - kRecordHeadBytes - (kRecordHeadBytes + frame::kRefusalBodyBytesMax);
static_assert(kProofRecordBytes <= kRecordHeadBytes + frame::kRefusalBodyBytesMax);

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

}  // namespace byteps::tcp
