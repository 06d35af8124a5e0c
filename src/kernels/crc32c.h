// CRC32C, the checksum of a frame: polynomial 0x1EDC6F41 (Castagnoli), as in iSCSI (RFC 3720, section 12.1
// and appendix B.4), ext4 and the crc32 instructions of x86 and ARM. It is reflected; the register begins as
// ones and is inverted at the end.
//
//   std::uint32_t crc = crc32c(0, header);  // 0 begins
//   crc = crc32c(crc, payload);             // the checksum of header and payload, one after the other
//
// Both inversions happen inside each call, and undo each other between calls: what is passed in and what
// comes out are finished checksums. crc32c(crc, {}) is crc.
//
// It finds every burst of errors up to 32 bits, and up to 5243 bits of payload any 5 wrong bits (Koopman,
// "32-Bit Cyclic Redundancy Codes for Internet Applications", DSN 2002); anything else slips through once in
// 2^32. It is no protection against somebody who means it: that is the job key's part.
//
// The code is ours because libbyteps.so needs nothing but libc, and no package of Debian has a fast CRC32C
// as a static library (libisal-dev has only the shared one, abseil there is older than its crc32c).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace byteps {

// The checksum of what `crc` is the checksum of (0: of nothing), followed by `bytes`, which may begin at any
// address. The CPU is asked at the first call. From any thread.
std::uint32_t crc32c(std::uint32_t crc, std::span<const std::byte> bytes);

// For tests and benchmarks: one way to compute it. All give the same.
struct Crc32cKernel {
  const char* target = nullptr;  // "portable", "sse42", "avx512", "arm"
  std::uint32_t (*update)(std::uint32_t crc, std::span<const std::byte> bytes) = nullptr;
};

// The ways that this CPU can go, the portable one first, the best last.
std::vector<Crc32cKernel> available_crc32c();

}  // namespace byteps
