// CRC32C with the instructions of 64-bit ARM (optional in ARMv8.0, always there since 8.1).
#include "kernels/crc32c.h"
#include "kernels/crc32c_parts.h"

#if defined(__aarch64__) && defined(__linux__)

#include <arm_acle.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>

namespace byteps {
namespace {

#if defined(__clang__)
#define BYTEPS_ARM_CRC __attribute__((target("crc")))
#else
#define BYTEPS_ARM_CRC __attribute__((target("+crc")))
#endif

BYTEPS_ARM_CRC std::uint32_t update_arm(std::uint32_t crc, std::span<const std::byte> bytes) {
  std::uint32_t state = ~crc;
  const std::byte* at = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= 8; left -= 8, at += 8) state = __crc32cd(state, crc32c_parts::load_word(at));
  for (; left > 0; --left, ++at) state = __crc32cb(state, static_cast<std::uint8_t>(*at));
  return ~state;
}

}  // namespace

Crc32cKernel crc32c_arm() {
  if ((getauxval(AT_HWCAP) & HWCAP_CRC32) == 0) return {};
  return {"arm", update_arm};
}

}  // namespace byteps

#else

namespace byteps {
Crc32cKernel crc32c_arm() {
  return {};
}
}  // namespace byteps

#endif
