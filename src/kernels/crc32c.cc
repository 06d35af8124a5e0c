#include "kernels/crc32c.h"

#include <array>
#include <bit>

#include "kernels/crc32c_parts.h"

namespace byteps {
namespace {

using crc32c_parts::load_word;
using crc32c_parts::times_x;

// kTables[n][b]: what byte b adds to the register when n bytes follow it. M. Kounavis and F. Berry, "A
// Systematic Approach to Building High Performance Software-based CRC Generators", 2005 ("slicing by 8").
using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr Tables make_tables() {
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = times_x(crc);
    tables[0][byte] = crc;
  }
  for (std::size_t following = 1; following < tables.size(); ++following) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t crc = tables[following - 1][byte];
      tables[following][byte] = (crc >> 8) ^ tables[0][crc & 0xff];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

std::uint32_t update_portable(std::uint32_t crc, std::span<const std::byte> bytes) {
  std::uint32_t state = ~crc;
  const std::byte* at = bytes.data();
  std::size_t left = bytes.size();
  if constexpr (std::endian::native == std::endian::little) {
    for (; left >= 8; left -= 8, at += 8) {
      const std::uint64_t word = load_word(at) ^ state;
      state = 0;
      for (std::size_t i = 0; i < 8; ++i) state ^= kTables[7 - i][(word >> (8 * i)) & 0xff];
    }
  }
  for (; left > 0; --left, ++at) {
    state = (state >> 8) ^ kTables[0][(state ^ static_cast<std::uint32_t>(*at)) & 0xff];
  }
  return ~state;
}

}  // namespace

std::vector<Crc32cKernel> available_crc32c() {
  std::vector<Crc32cKernel> kernels = {{"portable", update_portable}};
  for (const Crc32cKernel& kernel : {crc32c_arm(), crc32c_sse42(), crc32c_avx512()}) {
    if (kernel.update != nullptr) kernels.push_back(kernel);
  }
  return kernels;
}

std::uint32_t crc32c(std::uint32_t crc, std::span<const std::byte> bytes) {
  static const auto kUpdate = available_crc32c().back().update;
  return kUpdate(crc, bytes);
}

}  // namespace byteps
