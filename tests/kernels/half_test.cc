// The 16-bit floats against arithmetic in float64, which holds every value met here exactly.
#include "kernels/half.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "base/prng.h"

namespace byteps {
namespace {

std::uint32_t bits_of(float number) {
  return std::bit_cast<std::uint32_t>(number);
}

// A 16-bit format, told by its parameters.
struct Format {
  int mantissa_bits;
  int exponent_bits;
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  int exponent_max() const { return (1 << exponent_bits) - 1; }
};
constexpr Format kHalf = {10, 5};
constexpr Format kBfloat = {7, 8};

// The value of `code`, by the definition of the format.
double value_of(Format format, std::uint16_t code) {
  const int mantissa = code & ((1 << format.mantissa_bits) - 1);
  const int exponent = (code >> format.mantissa_bits) & format.exponent_max();
  const double sign = (code & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == format.exponent_max()) {
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  const int implicit = exponent == 0 ? 0 : 1 << format.mantissa_bits;
  const int power = (exponent == 0 ? 1 : exponent) - format.bias() - format.mantissa_bits;
  return sign * std::ldexp(mantissa + implicit, power);
}

// The code nearest to a number that is not NaN: round in units of the last place, then write the parts down.
std::uint16_t nearest(Format format, float number) {
  const std::uint16_t sign = std::signbit(number) ? 0x8000 : 0;
  const double magnitude = std::fabs(static_cast<double>(number));
  const int infinity = format.exponent_max() << format.mantissa_bits;
  if (std::isinf(number)) return static_cast<std::uint16_t>(sign | infinity);
  const int smallest = 1 - format.bias();  // exponent of subnormals
  const int exponent = magnitude == 0 ? smallest : std::max(std::ilogb(magnitude), smallest);
  const double units = std::nearbyint(std::ldexp(magnitude, format.mantissa_bits - exponent));
  // Adding the units to the exponent field carries into it where rounding reached the next power of two.
  const int code = ((exponent - smallest) << format.mantissa_bits) + static_cast<int>(units);
  return static_cast<std::uint16_t>(sign | std::min(code, infinity));
}

// Around every value of the format and every middle between two: there rounding decides. And any bits at all.
std::vector<float> numbers_that_matter(Format format) {
  std::vector<float> numbers;
  for (int code = 0; code < 0x10000; ++code) {
    const double value = value_of(format, static_cast<std::uint16_t>(code));
    if (!std::isfinite(value)) continue;
    const double next = value_of(format, static_cast<std::uint16_t>(code + 1));
    const auto at = static_cast<float>(value);
    const auto middle = std::isfinite(next) ? static_cast<float>((value + next) / 2) : at;
    for (const float number : {at, middle}) {
      numbers.push_back(number);
      numbers.push_back(std::nextafterf(number, std::numeric_limits<float>::infinity()));
      numbers.push_back(std::nextafterf(number, -std::numeric_limits<float>::infinity()));
    }
  }
  Prng prng(1);
  for (int i = 0; i < 200'000; ++i) {
    const float number = std::bit_cast<float>(static_cast<std::uint32_t>(prng.next()));
    if (!std::isnan(number)) numbers.push_back(number);
  }
  return numbers;
}

TEST(Half, every_value_widens_exactly) {
  for (int code = 0; code < 0x10000; ++code) {
    const auto half = static_cast<std::uint16_t>(code);
    const double expected = value_of(kHalf, half);
    const float number = float_of_half(half);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(number)) << std::hex << code;
    } else {
      ASSERT_EQ(bits_of(number), bits_of(static_cast<float>(expected))) << std::hex << code;
    }
  }
}

TEST(Half, every_value_survives_widening_and_narrowing) {
  for (int code = 0; code < 0x10000; ++code) {
    const auto half = static_cast<std::uint16_t>(code);
    const bool is_nan = std::isnan(value_of(kHalf, half));
    const int expected = is_nan ? code | 0x200 : code;  // a NaN becomes quiet and keeps the rest
    ASSERT_EQ(half_of_float(float_of_half(half)), expected);
  }
}

TEST(Half, narrowing_rounds_to_nearest_even) {
  for (const float number : numbers_that_matter(kHalf)) {
    ASSERT_EQ(half_of_float(number), nearest(kHalf, number)) << std::hexfloat << number;
  }
}

TEST(Half, too_large_becomes_infinity_from_the_middle_on) {
  EXPECT_EQ(half_of_float(65504.0f), 0x7bff);
  EXPECT_EQ(half_of_float(std::nextafterf(65520.0f, 0)), 0x7bff);
  EXPECT_EQ(half_of_float(65520.0f), 0x7c00);
  EXPECT_EQ(half_of_float(-1e30f), 0xfc00);
}

TEST(Half, nan_stays_nan_with_its_sign) {
  EXPECT_EQ(half_of_float(std::bit_cast<float>(0x7f800001u)), 0x7e00);  // its payload does not fit
  EXPECT_EQ(half_of_float(std::bit_cast<float>(0xffc02000u)), 0xfe01);
}

TEST(Bfloat, every_value_survives_widening_and_narrowing) {
  for (int code = 0; code < 0x10000; ++code) {
    const auto bfloat = static_cast<std::uint16_t>(code);
    const bool is_nan = std::isnan(value_of(kBfloat, bfloat));
    ASSERT_EQ(bfloat_of_float(float_of_bfloat(bfloat)), is_nan ? code | 0x40 : code);
    if (!is_nan) {
      ASSERT_EQ(static_cast<double>(float_of_bfloat(bfloat)), value_of(kBfloat, bfloat));
    }
  }
}

TEST(Bfloat, narrowing_rounds_to_nearest_even) {
  for (const float number : numbers_that_matter(kBfloat)) {
    ASSERT_EQ(bfloat_of_float(number), nearest(kBfloat, number)) << std::hexfloat << number;
  }
}

TEST(Bfloat, nan_never_rounds_to_infinity) {
  EXPECT_EQ(bfloat_of_float(std::bit_cast<float>(0x7f800001u)), 0x7fc0);
  EXPECT_EQ(bfloat_of_float(std::bit_cast<float>(0x7fffffffu)), 0x7fff);
  EXPECT_EQ(bfloat_of_float(std::bit_cast<float>(0xff800001u)), 0xffc0);
}

}  // namespace
}  // namespace byteps
