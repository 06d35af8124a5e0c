// float16 (IEEE binary16) and bfloat16 (the upper half of a float32), to and from float32, in plain
// integer steps.
//
// Widening is exact. Narrowing rounds to nearest, ties to even; what is too large becomes infinity,
// and subnormals are kept. A NaN stays a NaN with its sign and the upper bits of its payload, and
// becomes quiet, as F16C instructions do it. Nothing here depends on a flush-to-zero mode of the
// calling thread.
//
//   float32   s eeeeeeee mmmmmmmmmmmmmmmmmmmmmmm   value 2^(e-127) * 1.m
//   float16   s eeeee mmmmmmmmmm                   value 2^(e-15) * 1.m;   e = 0: 2^-24 * m
//   bfloat16  s eeeeeeee mmmmmmm                   value 2^(e-127) * 1.m;  e = 0: 2^-133 * m
//
// In all of them the largest e means infinity (m = 0) or NaN.
#pragma once

#include <bit>
#include <cstdint>

namespace byteps {

inline float float_of_half(std::uint16_t half) {
  constexpr std::uint32_t kRebias = 127 - 15;
  const std::uint32_t sign = (half & 0x8000u) << 16;
  // Exponent and mantissa where float32 has them.
  const std::uint32_t shifted = (half & 0x7fffu) << 13;
  const std::uint32_t exponent = half & 0x7c00u;
  const std::uint32_t normal = shifted + (kRebias << 23);
  const std::uint32_t special =
      (shifted + ((2 * kRebias) << 23)) | (shifted << 9 != 0 ? 1u << 22 : 0u);
  // A subnormal is m * 2^-24: give it the implicit one of 2^-14, then take that away again.
  constexpr std::uint32_t kSmallestNormal = (kRebias + 1) << 23;
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(
      std::bit_cast<float>(shifted + kSmallestNormal) - std::bit_cast<float>(kSmallestNormal));
  const std::uint32_t magnitude = exponent == 0x7c00u ? special
                                  : exponent == 0     ? subnormal
                                                      : normal;
  return std::bit_cast<float>(sign | magnitude);
}

inline std::uint16_t half_of_float(float number) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(number);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  // 0xfff and the last kept bit: up from above the middle, in the middle to even. A carry may reach
  // infinity: it should.
  const std::uint32_t normal =
      (magnitude - ((127u - 15u) << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // Below 2^-14 the unit is 2^-24, that of a float32 in [0.5, 1): the addition rounds for us.
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) -
      std::bit_cast<std::uint32_t>(0.5f);
  const std::uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  const std::uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
  const std::uint32_t result = magnitude > 0x7f800000u    ? nan
                               : magnitude >= 0x47800000u ? 0x7c00u
                                                          : finite;
  return static_cast<std::uint16_t>(sign | result);
}

inline float float_of_bfloat(std::uint16_t bfloat) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bfloat) << 16);
}

inline std::uint16_t bfloat_of_float(float number) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(number);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const std::uint32_t nan = (bits >> 16) | 0x40u;
  return static_cast<std::uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

}  // namespace byteps
