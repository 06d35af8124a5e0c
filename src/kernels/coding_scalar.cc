// Coding one block at a time, written to be read. The vectors of coding_simd.cc call these for the rest of a frame that
// fills no block.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/half.h"
#include "kernels/sets.h"

namespace byteps {
namespace {

constexpr std::size_t kInt8Block = 256;
constexpr std::size_t kInt4Block = 32;
constexpr std::size_t kInt4Bytes = kInt4Block / 2;

float read(const std::byte* array, std::size_t index) {
  float number = 0;
  std::memcpy(&number, array + index * sizeof(float), sizeof number);
  return number;
}

void write(std::byte* array, std::size_t index, float number) {
  std::memcpy(array + index * sizeof(float), &number, sizeof number);
}

float element(const std::byte* elements, const std::byte* residual, std::size_t index) {
  const float number = read(elements, index);
  return residual == nullptr ? number : number + read(residual, index);
}

// To nearest, ties to even; of numbers below 2^22.
float rounded(float number) {
  constexpr float kShift = 0x1.8p23f;
  return (number + kShift) - kShift;
}

// Bits of magnitudes are ordered as these are, and those of infinities and NaNs are above all others.
std::uint32_t largest_magnitude(const std::byte* elements, const std::byte* residual,
                                std::size_t count) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const float number = element(elements, residual, i);
    largest = std::max(largest, std::bit_cast<std::uint32_t>(number) & 0x7fffffffU);
  }
  return largest;
}

// Codes of one block into `codes`; its residual.
void encode_block(const BlockScale& scale, std::int8_t* codes, const std::byte* elements,
                  std::byte* residual, std::size_t count) {
  if (!scale.is_finite) {
    std::fill_n(codes, count, std::int8_t{0});
    return;
  }
  for (std::size_t i = 0; i < count; ++i) {
    const float number = element(elements, residual, i);
    const float code = rounded(number * scale.inverse);
    codes[i] = static_cast<std::int8_t>(code);
    if (residual != nullptr) write(residual, i, number - code * scale.scale);
  }
}

void encode_int8(std::byte* payload, const std::byte* elements, std::byte* residual,
                 std::size_t element_count) {
  const std::size_t blocks = (element_count + kInt8Block - 1) / kInt8Block;
  std::byte* const codes = payload + blocks * sizeof(float);
  for (std::size_t block = 0; block < blocks; ++block) {
    const std::size_t first = block * kInt8Block;
    std::byte* const its_residual =
        residual == nullptr ? nullptr : residual + first * sizeof(float);
    encode_int8_block(payload + block * sizeof(float), codes + first,
                      elements + first * sizeof(float), its_residual,
                      std::min(kInt8Block, element_count - first));
  }
}

template <bool kAdd>
void decode_int8(std::byte* elements, const std::byte* payload, std::size_t element_count) {
  const std::size_t blocks = (element_count + kInt8Block - 1) / kInt8Block;
  const std::byte* const codes = payload + blocks * sizeof(float);
  for (std::size_t block = 0; block < blocks; ++block) {
    const std::size_t first = block * kInt8Block;
    decode_int8_block(elements + first * sizeof(float), payload + block * sizeof(float),
                      codes + first, std::min(kInt8Block, element_count - first), kAdd);
  }
}

void encode_int4(std::byte* payload, const std::byte* elements, std::byte* residual,
                 std::size_t element_count) {
  const std::size_t blocks = (element_count + kInt4Block - 1) / kInt4Block;
  std::byte* const codes = payload + blocks * sizeof(std::uint16_t);
  for (std::size_t block = 0; block < blocks; ++block) {
    const std::size_t first = block * kInt4Block;
    std::byte* const its_residual =
        residual == nullptr ? nullptr : residual + first * sizeof(float);
    encode_int4_block(payload + block * sizeof(std::uint16_t), codes + block * kInt4Bytes,
                      elements + first * sizeof(float), its_residual,
                      std::min(kInt4Block, element_count - first));
  }
}

template <bool kAdd>
void decode_int4(std::byte* elements, const std::byte* payload, std::size_t element_count) {
  const std::size_t blocks = (element_count + kInt4Block - 1) / kInt4Block;
  const std::byte* const codes = payload + blocks * sizeof(std::uint16_t);
  for (std::size_t block = 0; block < blocks; ++block) {
    const std::size_t first = block * kInt4Block;
    decode_int4_block(elements + first * sizeof(float), payload + block * sizeof(std::uint16_t),
                      codes + block * kInt4Bytes, std::min(kInt4Block, element_count - first),
                      kAdd);
  }
}

}  // namespace

BlockScale int8_scale_of(std::uint32_t largest) {
  if (largest >= kTooLarge) {
    return {.scale = std::numeric_limits<float>::quiet_NaN(), .inverse = 0, .is_finite = false};
  }
  const auto magnitude = std::bit_cast<float>(largest);
  if (magnitude < kTooSmall) return {};
  return {.scale = magnitude / 127, .inverse = 127 / magnitude};
}

BlockScale int4_scale_of(std::uint32_t largest) {
  if (largest >= kTooLarge) return int8_scale_of(largest);
  const auto magnitude = std::bit_cast<float>(largest);
  if (magnitude < kTooSmall) return {};
  const std::uint32_t up = std::bit_cast<std::uint32_t>(magnitude / 7) + 0xffffU;
  const auto scale = std::bit_cast<float>(up & 0xffff0000U);
  return {.scale = scale, .inverse = 1 / scale};
}

void encode_int8_block(std::byte* scale_out, std::byte* codes, const std::byte* elements,
                       std::byte* residual, std::size_t count) {
  const BlockScale scale = int8_scale_of(largest_magnitude(elements, residual, count));
  write(scale_out, 0, scale.scale);
  std::int8_t found[kInt8Block];
  encode_block(scale, found, elements, residual, count);
  std::memcpy(codes, found, count);
}

void decode_int8_block(std::byte* elements, const std::byte* scale_in, const std::byte* codes,
                       std::size_t count, bool adds) {
  const float scale = read(scale_in, 0);
  for (std::size_t i = 0; i < count; ++i) {
    const float number = static_cast<float>(std::to_integer<std::int8_t>(codes[i])) * scale;
    write(elements, i, adds ? read(elements, i) + number : number);
  }
}

void encode_int4_block(std::byte* scale_out, std::byte* codes, const std::byte* elements,
                       std::byte* residual, std::size_t count) {
  const BlockScale scale = int4_scale_of(largest_magnitude(elements, residual, count));
  const auto upper = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(scale.scale) >> 16);
  std::memcpy(scale_out, &upper, sizeof upper);
  std::int8_t found[kInt4Block] = {};
  encode_block(scale, found, elements, residual, count);
  for (std::size_t i = 0; i < kInt4Bytes; ++i) {
    codes[i] = static_cast<std::byte>((found[i] + 8) | ((found[i + kInt4Bytes] + 8) << 4));
  }
}

void decode_int4_block(std::byte* elements, const std::byte* scale_in, const std::byte* codes,
                       std::size_t count, bool adds) {
  std::uint16_t upper = 0;
  std::memcpy(&upper, scale_in, sizeof upper);
  const float scale = float_of_bfloat(upper);
  for (std::size_t i = 0; i < count; ++i) {
    const int both = std::to_integer<int>(codes[i % kInt4Bytes]);
    const int code = (i < kInt4Bytes ? both & 15 : both >> 4) - 8;
    const float number = static_cast<float>(code) * scale;
    write(elements, i, adds ? read(elements, i) + number : number);
  }
}

BlockCoding scalar_int8() {
  return {encode_int8, decode_int8<false>, decode_int8<true>};
}
BlockCoding scalar_int4() {
  return {encode_int4, decode_int4<false>, decode_int4<true>};
}

}  // namespace byteps
