// Frames: the form of messages on their way. Little-endian throughout.
//
// A connection has, in both directions and until its end, messages, each in one frame:
//
//    0  u32  payload bytes, at most kPayloadBytesMax
//    4  u16  header bytes, at most kHeaderBytesMax
//    6  u16  0 a message; 1 a farewell: why the sender ends the connection, the payload is that of a refusal;
//            2 an aside: what the transports say to each other (net/way/aside.h), in the header; no payload;
//            3 a message with tensor bytes (Outgoing::bulk)
//    8  u32  CRC32C of the header
//   12  u32  CRC32C of the 12 bytes before
//   16  header
//       payload
//       u32  CRC32C of the payload, if there is one
//
// The checksums (kernels/crc32c.h) are for bytes that change on the way, in a network card or a memory
// module, which TCP's own sum of 16 bits often does not notice. Each is looked at before anything that it
// covers is acted on. So a wrong length does nothing, a stream cannot lose its way between frames, and a
// wrong payload is never reported.
// The connection ends, with a farewell, and its owner repeats what may be lost, as for any other end.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "net/transport.h"

namespace byteps::frame {

inline constexpr std::size_t kRefusalTextBytesMax = 512;
inline constexpr std::size_t kRefusalBodyBytesMax =
    2 * sizeof(std::uint16_t) + kRefusalTextBytesMax;
inline constexpr std::size_t kPrefixBytes = 16;
inline constexpr std::size_t kTrailerBytes = 4;
inline constexpr std::size_t kFrameHeadBytesMax = kPrefixBytes + kHeaderBytesMax;

// Why somebody refuses or declines something: u16 a byteps::Code, u16 a byteps::CauseKind (0 before version 4 of the
// protocol), then up to kRefusalTextBytesMax of text for people. A text that is too long is cut.
std::vector<std::byte> encode_refusal(const Status& why);
// Never ok: the Status that the other side gave, or one that says it is malformed. Characters that are not printable
// ASCII are replaced and what is too long is cut, for a stranger's text goes to logs. Its cause is of the peer, and of
// one of those kinds that a connection may end for.
Status decode_refusal(std::span<const std::byte> body);

// The first bytes of a frame.
struct Prefix {
  std::uint32_t payload_bytes = 0;
  std::uint16_t header_bytes = 0;
  bool is_farewell = false;
  bool is_aside = false;
  bool is_bulk = false;
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

}  // namespace byteps::frame
