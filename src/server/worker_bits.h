// A bit per worker, in 64-bit words.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/ids.h"

namespace byteps {

constexpr std::size_t bit_words_of(std::uint32_t worker_count) {
  return (worker_count + 63) / 64;
}
inline bool has_bit(std::span<const std::uint64_t> bits, WorkerRank worker) {
  return (bits[worker.value / 64] >> (worker.value % 64) & 1) != 0;
}
inline void set_bit(std::span<std::uint64_t> bits, WorkerRank worker) {
  bits[worker.value / 64] |= std::uint64_t{1} << (worker.value % 64);
}
inline void clear_bit(std::span<std::uint64_t> bits, WorkerRank worker) {
  bits[worker.value / 64] &= ~(std::uint64_t{1} << (worker.value % 64));
}
inline bool has_any_bit(std::span<const std::uint64_t> bits) {
  return std::any_of(bits.begin(), bits.end(), [](std::uint64_t word) { return word != 0; });
}
// How many bits are set in one that are not set in the other, which is as long.
inline std::uint32_t count_bits_without(std::span<const std::uint64_t> bits,
                                        std::span<const std::uint64_t> without) {
  std::uint32_t count = 0;
  for (std::size_t word = 0; word < bits.size(); ++word) {
    count += static_cast<std::uint32_t>(std::popcount(bits[word] & ~without[word]));
  }
  return count;
}

}  // namespace byteps
