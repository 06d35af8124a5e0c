// The scalar kernels against a dull model in wider arithmetic; then every other target of this CPU against
// the scalar ones, bit for bit. Arrays are heap blocks of the exact size, so that a sanitizer sees any
// access outside.
#include "kernels/kernels.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include "base/prng.h"
#include "kernels/half.h"

namespace byteps {
namespace {

constexpr DType kAllDTypes[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kUint8,
                                DType::kInt32,   DType::kInt8,    DType::kInt64,   DType::kBfloat16,
                                DType::kBool,    DType::kInt16,   DType::kUint16,  DType::kUint32,
                                DType::kUint64};
constexpr Operation kJoins[] = {Operation::kSum, Operation::kMin, Operation::kMax,
                                Operation::kProduct};

__extension__ using Wide = __int128;  // holds every exact result below

// Bytes that begin `offset` bytes after an aligned address and end where the heap block ends.
class Block {
 public:
  Block(std::size_t offset, std::size_t bytes)
      : memory_(new std::byte[offset + bytes]), offset_(offset), bytes_(bytes) {
    std::memset(memory_.get(), 0x5a, offset + bytes);
  }
  std::span<std::byte> span() { return {memory_.get() + offset_, bytes_}; }

 private:
  std::unique_ptr<std::byte[]> memory_;
  std::size_t offset_;
  std::size_t bytes_;
};

template <typename T>
std::vector<std::byte> bytes_of(const std::vector<T>& elements) {
  std::vector<std::byte> bytes(elements.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), elements.data(), bytes.size());
  return bytes;
}

template <typename T>
std::vector<T> elements_of(std::span<const std::byte> bytes) {
  std::vector<T> elements(bytes.size() / sizeof(T));
  if (!elements.empty()) std::memcpy(elements.data(), bytes.data(), bytes.size());
  return elements;
}

// One whole sum, with everything aligned.
template <typename T>
std::vector<T> sum_of(const SumKernels& kernels, const std::vector<std::vector<T>>& contributions,
                      Finishing finishing) {
  const std::size_t element_count = contributions.front().size();
  std::vector<std::byte> accumulator(kernels.accumulator_bytes(element_count));
  std::vector<std::byte> output(element_count * sizeof(T));
  kernels.load(accumulator, bytes_of(contributions.front()));
  for (std::size_t i = 1; i < contributions.size(); ++i)
    kernels.add(accumulator, bytes_of(contributions[i]));
  kernels.finish(output, accumulator, finishing);
  return elements_of<T>(output);
}

template <typename T>
std::vector<T> sum_of(const SumKernels& kernels, const std::vector<std::vector<T>>& contributions,
                      std::uint32_t divisor) {
  return sum_of(kernels, contributions, Finishing{.divisor = divisor});
}

KernelSet scalar() {
  return available_kernels().front();
}

// ---------------------------------------------------------------- scalar against the model

template <typename T>
struct Integers : testing::Test {};
using IntegerTypes = testing::Types<std::int8_t, std::uint8_t, std::int16_t, std::uint16_t,
                                    std::int32_t, std::uint32_t, std::int64_t, std::uint64_t>;
TYPED_TEST_SUITE(Integers, IntegerTypes);

template <typename T>
constexpr DType dtype_for() {
  if constexpr (std::is_same_v<T, std::int8_t>) return DType::kInt8;
  if constexpr (std::is_same_v<T, std::uint8_t>) return DType::kUint8;
  if constexpr (std::is_same_v<T, std::int32_t>) return DType::kInt32;
  if constexpr (std::is_same_v<T, std::int64_t>) return DType::kInt64;
  if constexpr (std::is_same_v<T, std::int16_t>) return DType::kInt16;
  if constexpr (std::is_same_v<T, std::uint16_t>) return DType::kUint16;
  if constexpr (std::is_same_v<T, std::uint32_t>) return DType::kUint32;
  if constexpr (std::is_same_v<T, std::uint64_t>) return DType::kUint64;
  if constexpr (std::is_same_v<T, float>) return DType::kFloat32;
  return DType::kFloat64;
}

template <typename T>
std::vector<T> interesting_integers(Prng& prng) {
  using Limits = std::numeric_limits<T>;
  std::vector<T> numbers = {0,
                            1,
                            static_cast<T>(-1),
                            2,
                            static_cast<T>(-2),
                            7,
                            static_cast<T>(-7),
                            100,
                            Limits::max(),
                            static_cast<T>(Limits::max() - 1),
                            Limits::min(),
                            static_cast<T>(Limits::min() + 1)};
  for (int i = 0; i < 500; ++i) numbers.push_back(static_cast<T>(prng.next()));
  return numbers;
}

TYPED_TEST(Integers, sum_wraps_modulo_two_to_the_bits) {
  Prng prng(2);
  const auto base = interesting_integers<TypeParam>(prng);
  const SumKernels kernels = kernels_for(dtype_for<TypeParam>(), Operation::kSum, scalar());
  for (std::size_t shift = 0; shift < base.size(); shift += 41) {
    std::vector<TypeParam> turned(base.begin() + static_cast<std::ptrdiff_t>(shift), base.end());
    turned.insert(turned.end(), base.begin(), base.begin() + static_cast<std::ptrdiff_t>(shift));
    const auto sums = sum_of<TypeParam>(kernels, {base, turned, base}, 1);
    for (std::size_t i = 0; i < base.size(); ++i) {
      const Wide exact = Wide{base[i]} + turned[i] + base[i];
      ASSERT_EQ(sums[i], static_cast<TypeParam>(exact)) << i;
    }
  }
}

TYPED_TEST(Integers, average_is_rounded_towards_zero) {
  Prng prng(3);
  const auto base = interesting_integers<TypeParam>(prng);
  const SumKernels kernels = kernels_for(dtype_for<TypeParam>(), Operation::kSum, scalar());
  for (const std::uint32_t divisor :
       {2u, 3u, 7u, 8u, 100u, 255u, 256u, 1000u, 65536u, 4294967295u}) {
    const auto averages = sum_of<TypeParam>(kernels, {base}, divisor);
    for (std::size_t i = 0; i < base.size(); ++i) {
      ASSERT_EQ(Wide{averages[i]}, Wide{base[i]} / divisor) << +base[i] << " / " << divisor;
    }
  }
}

TEST(Integers, average_of_minus_one_over_two_is_zero) {
  EXPECT_EQ(
      sum_of<std::int32_t>(kernels_for(DType::kInt32, Operation::kSum, scalar()), {{-1, -3, 3}}, 2),
      (std::vector<std::int32_t>{0, -1, 1}));
}

TYPED_TEST(Integers, product_wraps_and_minimum_and_maximum_are_those_of_the_language) {
  using T = TypeParam;
  Prng prng(11);
  const auto base = interesting_integers<T>(prng);
  const std::vector<T> turned(base.rbegin(), base.rend());
  const auto of = [&](Operation operation) {
    return sum_of<T>(kernels_for(dtype_for<T>(), operation, scalar()), {base, turned}, 1);
  };
  const auto least = of(Operation::kMin);
  const auto most = of(Operation::kMax);
  const auto product = of(Operation::kProduct);
  for (std::size_t i = 0; i < base.size(); ++i) {
    ASSERT_EQ(least[i], std::min(base[i], turned[i]));
    ASSERT_EQ(most[i], std::max(base[i], turned[i]));
    const std::uint64_t wraps =
        static_cast<std::uint64_t>(base[i]) * static_cast<std::uint64_t>(turned[i]);
    ASSERT_EQ(product[i], static_cast<T>(wraps)) << i;
  }
}

// Sums below 2^53 are exact in float64, and so is half of them.
TYPED_TEST(Integers, scaled_with_the_division_towards_zero_and_bound_by_the_type) {
  using T = TypeParam;
  using Limits = std::numeric_limits<T>;
  const SumKernels kernels = kernels_for(dtype_for<T>(), Operation::kSum, scalar());
  const auto scaled = [&](std::vector<T> numbers, std::uint32_t divisor, double scale) {
    return sum_of<T>(kernels, {std::move(numbers)}, Finishing{divisor, scale});
  };
  EXPECT_EQ(scaled({0, 1, 7, 100}, 1, 0.5), (std::vector<T>{0, 0, 3, 50}));
  EXPECT_EQ(scaled({7, 100}, 3, 1.5), (std::vector<T>{3, 50})) << "3.5, and 50 without a rest";
  EXPECT_EQ(scaled({Limits::max(), 1}, 1, 1e30), (std::vector<T>{Limits::max(), Limits::max()}));
  EXPECT_EQ(scaled({Limits::max()}, 1, -1e30), std::vector<T>{Limits::min()});
  if constexpr (std::is_signed_v<T>) {
    EXPECT_EQ(scaled({T(-7), T(-1)}, 1, 0.5), (std::vector<T>{T(-3), 0})) << "towards zero";
    EXPECT_EQ(scaled({T(-7)}, 2, 0.5), std::vector<T>{T(-1)}) << "of -1.75";
    EXPECT_EQ(scaled({Limits::min()}, 1, 1e30), std::vector<T>{Limits::min()});
  }
}

template <typename T>
std::vector<T> interesting_floats(Prng& prng) {
  using Limits = std::numeric_limits<T>;
  std::vector<T> numbers = {T(0),
                            T(-0.0),
                            T(1),
                            T(-1),
                            T(0.1),
                            Limits::max(),
                            Limits::lowest(),
                            Limits::min(),
                            Limits::denorm_min(),
                            -Limits::denorm_min(),
                            Limits::epsilon(),
                            Limits::infinity(),
                            -Limits::infinity(),
                            Limits::quiet_NaN()};
  while (numbers.size() < 300) {
    numbers.push_back(T(std::ldexp(static_cast<double>(prng.below(1 << 30)) - (1 << 29),
                                   static_cast<int>(prng.below(120)) - 60)));
  }
  return numbers;
}

template <typename T>
bool same_number(T a, T b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return a == b && std::signbit(a) == std::signbit(b);
}

// float32 sums and quotients taken in float64 and rounded once more are those of float32: 53 >= 2 * 24 + 2
// (Figueroa 1995, "When is double rounding innocuous?").
TEST(Float32, sum_and_average_are_rounded_once) {
  Prng prng(4);
  const auto base = interesting_floats<float>(prng);
  const SumKernels kernels = kernels_for(DType::kFloat32, Operation::kSum, scalar());
  for (std::size_t i = 0; i < base.size(); ++i) {
    const std::vector<float> other(base.size(), base[i]);
    const auto sums = sum_of<float>(kernels, {base, other}, 1);
    const auto averages = sum_of<float>(kernels, {base, other}, 3);
    for (std::size_t j = 0; j < base.size(); ++j) {
      const auto sum =
          static_cast<float>(static_cast<double>(base[j]) + static_cast<double>(base[i]));
      ASSERT_TRUE(same_number(sums[j], sum)) << base[j] << " + " << base[i] << " = " << sums[j];
      const auto average = static_cast<float>(static_cast<double>(sum) / 3.0);
      ASSERT_TRUE(same_number(averages[j], average))
          << base[j] << " " << base[i] << ": " << averages[j];
    }
  }
}

TEST(Float64, sum_and_average_are_those_of_the_language) {
  Prng prng(5);
  const auto base = interesting_floats<double>(prng);
  const SumKernels kernels = kernels_for(DType::kFloat64, Operation::kSum, scalar());
  for (std::size_t i = 0; i < base.size(); ++i) {
    const std::vector<double> other(base.size(), base[i]);
    const auto averages = sum_of<double>(kernels, {base, other}, 7);
    for (std::size_t j = 0; j < base.size(); ++j) {
      ASSERT_TRUE(same_number(averages[j], (base[j] + base[i]) / 7.0)) << base[j] << " " << base[i];
    }
  }
}

// 2048 + 1 + 1 in float16 itself would stay 2048: its unit there is 2.
TEST(Float16, sum_is_kept_in_float32_and_rounded_once) {
  const auto half = [](float number) { return half_of_float(number); };
  const SumKernels kernels = kernels_for(DType::kFloat16, Operation::kSum, scalar());
  const std::vector<std::vector<std::uint16_t>> contributions = {
      {half(2048), half(65504), half(1), 0x0001, 0x7c00},
      {half(1), half(65504), half(-1), 0x0001, 0xfc00},
      {half(1), half(-65504), half(0), 0x0001, half(1)}};
  const auto sums = sum_of(kernels, contributions, 1);
  EXPECT_EQ(sums[0], half(2050));
  EXPECT_EQ(sums[1], half(65504)) << "no overflow on the way";
  EXPECT_EQ(sums[2], half(0));
  EXPECT_EQ(sums[3], 0x0003) << "subnormals are kept";
  EXPECT_TRUE(std::isnan(float_of_half(sums[4]))) << "infinity - infinity";
  EXPECT_EQ(sum_of<std::uint16_t>(kernels, {{half(65504)}, {half(65504)}}, 1)[0], 0x7c00)
      << "overflow is infinity";
  EXPECT_EQ(sum_of<std::uint16_t>(kernels, {{half(65504)}, {half(65504)}}, 2)[0], half(65504))
      << "divided before it is rounded";
}

TEST(Bfloat16, sum_is_kept_in_float32_and_rounded_once) {
  const auto bfloat = [](float number) { return bfloat_of_float(number); };
  const SumKernels kernels = kernels_for(DType::kBfloat16, Operation::kSum, scalar());
  EXPECT_EQ(sum_of<std::uint16_t>(kernels, {{bfloat(256)}, {bfloat(1)}, {bfloat(1)}}, 1)[0],
            bfloat(258));
  EXPECT_EQ(sum_of<std::uint16_t>(kernels, {{bfloat(1)}, {bfloat(0)}}, 3)[0], bfloat(1.0f / 3.0f));
}

TEST(Floats, scaled_in_the_accumulators_precision_before_they_are_rounded) {
  const auto half = [](float number) { return half_of_float(number); };
  const SumKernels halves = kernels_for(DType::kFloat16, Operation::kSum, scalar());
  EXPECT_EQ(sum_of<std::uint16_t>(halves, {{half(65504)}, {half(65504)}}, Finishing{1, 0.25})[0],
            half(32752))
      << "the sum would be infinite in float16";
  EXPECT_EQ(sum_of<std::uint16_t>(halves, {{half(1)}, {half(1)}}, Finishing{3, 3})[0], half(2));
  const SumKernels floats = kernels_for(DType::kFloat32, Operation::kSum, scalar());
  EXPECT_EQ(sum_of<float>(floats, {{1.0F, -2.0F}}, Finishing{1, 0.1}),
            (std::vector<float>{1.0F * 0.1F, -2.0F * 0.1F}));
  const SumKernels doubles = kernels_for(DType::kFloat64, Operation::kSum, scalar());
  EXPECT_EQ(sum_of<double>(doubles, {{1.0}}, Finishing{3, 0.1}),
            std::vector<double>{1.0 / 3.0 * 0.1});
}

template <typename T>
void expect_ordered(DType dtype) {
  const T nan = std::numeric_limits<T>::quiet_NaN();
  const T infinity = std::numeric_limits<T>::infinity();
  const std::vector<T> a = {1, -1, T(0.0), T(-0.0), nan, 5, infinity, -infinity, nan};
  const std::vector<T> b = {2, -2, T(-0.0), T(0.0), 7, nan, 3, 3, nan};
  for (const KernelSet& set : available_kernels()) {
    for (const bool swapped : {false, true}) {
      const std::vector<std::vector<T>> in = swapped ? std::vector{b, a} : std::vector{a, b};
      const auto least = sum_of<T>(kernels_for(dtype, Operation::kMin, set), in, 1);
      const auto most = sum_of<T>(kernels_for(dtype, Operation::kMax, set), in, 1);
      const std::vector<T> lower = {1, -2, T(-0.0), T(-0.0), nan, nan, 3, -infinity, nan};
      const std::vector<T> upper = {2, -1, T(0.0), T(0.0), nan, nan, infinity, 3, nan};
      for (std::size_t i = 0; i < a.size(); ++i) {
        EXPECT_TRUE(same_number(least[i], lower[i])) << set.target << i << ": " << least[i];
        EXPECT_TRUE(same_number(most[i], upper[i])) << set.target << i << ": " << most[i];
      }
    }
  }
}

TEST(Floats, nan_is_the_minimum_and_the_maximum_and_the_order_of_zeros_does_not_matter) {
  expect_ordered<float>(DType::kFloat32);
  expect_ordered<double>(DType::kFloat64);
}

TEST(Floats, products_of_halves_are_kept_in_float32) {
  const auto half = [](float number) { return half_of_float(number); };
  const SumKernels kernels = kernels_for(DType::kFloat16, Operation::kProduct, scalar());
  EXPECT_EQ(sum_of<std::uint16_t>(kernels, {{half(1000)}, {half(1000)}, {half(0.001F)}}, 1)[0],
            half(1000.0F * 1000.0F * float_of_half(half(0.001F))));
}

TEST(Bool, minimum_and_product_are_and_maximum_is_or) {
  for (const KernelSet& set : available_kernels()) {
    const auto of = [&](Operation operation) {
      const std::vector<std::vector<std::uint8_t>> in = {{0, 0, 1, 255}, {0, 2, 0, 1}};
      return sum_of<std::uint8_t>(kernels_for(DType::kBool, operation, set), in, 1);
    };
    EXPECT_EQ(of(Operation::kMin), (std::vector<std::uint8_t>{0, 0, 0, 1})) << set.target;
    EXPECT_EQ(of(Operation::kProduct), (std::vector<std::uint8_t>{0, 0, 0, 1})) << set.target;
    EXPECT_EQ(of(Operation::kMax), (std::vector<std::uint8_t>{0, 1, 1, 1})) << set.target;
  }
}

TEST(SumKernels, one_contribution_alone_is_finished_as_a_sum_of_one) {
  Prng prng(12);
  for (const DType dtype : {DType::kFloat16, DType::kBfloat16, DType::kFloat32, DType::kInt32}) {
    for (const std::size_t element_count : {0, 1, 511, 512, 513, 3000}) {
      const SumKernels kernels = kernels_for(dtype, Operation::kSum, best_kernels());
      std::vector<std::byte> input(element_count * element_bytes(dtype));
      for (std::byte& byte : input) byte = static_cast<std::byte>(prng.below(0x70));
      std::vector<std::byte> sums(kernels.accumulator_bytes(element_count));
      std::vector<std::byte> expected(input.size());
      kernels.load(sums, input);
      kernels.finish(expected, sums, {1, 0.75});
      std::vector<std::byte> output(input.size());
      kernels.finish_alone(output, input, {1, 0.75});
      EXPECT_EQ(output, expected) << name(dtype) << " x " << element_count;
      kernels.finish_alone(input, input, {1, 0.75});
      EXPECT_EQ(input, expected) << "in place";
    }
  }
}

TEST(Bool, sum_is_or_and_any_nonzero_byte_is_true) {
  const SumKernels kernels = kernels_for(DType::kBool, Operation::kSum, scalar());
  const std::vector<std::uint8_t> expected = {0, 1, 1, 1, 1};
  EXPECT_EQ(sum_of<std::uint8_t>(kernels, {{0, 1, 0, 2, 255}, {0, 0, 128, 1, 255}}, 1), expected);
  EXPECT_EQ(sum_of<std::uint8_t>(kernels, {{0, 1, 0, 2, 255}, {0, 0, 128, 1, 255}}, 2), expected)
      << "bool is never averaged";
}

TEST(SumKernels, accumulators_of_halves_are_float32_and_all_others_are_in_place) {
  for (const KernelSet& set : available_kernels()) {
    for (const DType dtype : kAllDTypes) {
      const SumKernels kernels = kernels_for(dtype, Operation::kSum, set);
      const bool is_half = dtype == DType::kFloat16 || dtype == DType::kBfloat16;
      EXPECT_EQ(kernels.element_bytes, element_bytes(dtype)) << set.target << name(dtype);
      EXPECT_EQ(kernels.accumulator_bytes(10), (is_half ? 4 : element_bytes(dtype)) * 10)
          << name(dtype);
      EXPECT_EQ(kernels.in_place(), !is_half) << name(dtype);
    }
  }
}

TEST(SumKernelsDeath, half_an_element_or_too_small_an_accumulator_is_a_bug) {
  const SumKernels kernels = kernels_for(DType::kFloat16, Operation::kSum, scalar());
  std::vector<std::byte> accumulator(15);
  EXPECT_DEATH(kernels.load(accumulator, std::vector<std::byte>(3)), "whole elements");
  EXPECT_DEATH(kernels.add(accumulator, std::vector<std::byte>(8)), "room in the accumulator");
  std::vector<std::byte> output(2);
  EXPECT_DEATH(kernels.finish(output, accumulator, {.divisor = 0}), "divisor");
}

TEST(AvailableKernels, scalar_is_first_and_best_is_last) {
  const auto sets = available_kernels();
  EXPECT_STREQ(sets.front().target, "scalar");
  EXPECT_STREQ(best_kernels().target, sets.back().target);
}

// ---------------------------------------------------------------- every target against scalar

class Target : public testing::TestWithParam<std::size_t> {
 protected:
  SumKernels target(DType dtype, Operation operation = Operation::kSum) const {
    return kernels_for(dtype, operation, available_kernels()[GetParam()]);
  }
  static SumKernels reference(DType dtype, Operation operation = Operation::kSum) {
    return kernels_for(dtype, operation, scalar());
  }
};

// Elements of the kind with many special values among them: any bits, and for floats zeros, subnormals, the
// largest numbers, infinities and NaN.
std::vector<std::byte> random_elements(DType dtype, std::size_t element_count, Prng& prng) {
  std::vector<std::byte> bytes(element_count * element_bytes(dtype));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(prng.next());
  const auto put = [&](auto element) {
    if (element_count == 0) return;
    std::memcpy(bytes.data() + prng.below(element_count) * sizeof(element), &element,
                sizeof(element));
  };
  for (std::size_t i = 0; i < element_count / 4; ++i) {
    constexpr std::uint64_t kTops[] = {0x0000, 0x8000, 0x0001, 0x7c00, 0xfc00, 0x7bff,
                                       0x7e00, 0x7f80, 0xff80, 0x7f7f, 0x7ff0, 0xfff0,
                                       0x7fef, 0x7fff, 0x00ff, 0x3c00};
    const std::uint64_t top = kTops[prng.below(std::size(kTops))];
    if (element_bytes(dtype) == 1)
      put(static_cast<std::uint8_t>(prng.chance(0.5) ? top : top >> 8));
    if (element_bytes(dtype) == 2) put(static_cast<std::uint16_t>(top));
    if (element_bytes(dtype) == 4) put(static_cast<std::uint32_t>(top << 16));
    if (element_bytes(dtype) == 8) put(top << 48);
  }
  return bytes;
}

// How elements of an array are told to be the same: by their bits; two NaN are the same when `any_nan`.
template <typename T>
std::size_t first_difference(std::span<const std::byte> a, std::span<const std::byte> b,
                             bool any_nan) {
  const auto left = elements_of<T>(a);
  const auto right = elements_of<T>(b);
  for (std::size_t i = 0; i < left.size(); ++i) {
    if (std::memcmp(&left[i], &right[i], sizeof(T)) == 0) continue;
    if constexpr (std::is_floating_point_v<T>) {
      if (any_nan && std::isnan(left[i]) && std::isnan(right[i])) continue;
    }
    return i;
  }
  return left.size();
}

// Sums of this kind, in its accumulator. Whose payload survives when two NaN meet is free.
void expect_same_sums(DType dtype, std::span<const std::byte> a, std::span<const std::byte> b) {
  ASSERT_EQ(a.size(), b.size());
  switch (dtype) {
    case DType::kFloat64:
      EXPECT_EQ(first_difference<double>(a, b, true), a.size() / 8);
      return;
    case DType::kFloat32:
    case DType::kFloat16:
    case DType::kBfloat16:
      EXPECT_EQ(first_difference<float>(a, b, true), a.size() / 4);
      return;
    default:
      EXPECT_EQ(first_difference<std::uint8_t>(a, b, false), a.size());
      return;
  }
}

void expect_same_bits(std::span<const std::byte> a, std::span<const std::byte> b) {
  ASSERT_EQ(a.size(), b.size());
  EXPECT_EQ(first_difference<std::uint8_t>(a, b, false), a.size());
}

// A copy of `content` at a distance from alignment.
Block misaligned(std::span<const std::byte> content, std::size_t offset) {
  Block block(offset, content.size());
  if (!content.empty()) std::memcpy(block.span().data(), content.data(), content.size());
  return block;
}

struct Placement {
  std::size_t input;
  std::size_t accumulator;
  std::size_t output;
};

// load, add, add, finish by both, compared after each step; the reference on aligned memory.
void compare_one_sum(DType dtype, const SumKernels& target, const SumKernels& reference,
                     std::size_t element_count, Placement offset, Finishing finishing, Prng& prng) {
  Block sums(offset.accumulator, target.accumulator_bytes(element_count));
  std::vector<std::byte> expected_sums(reference.accumulator_bytes(element_count));
  for (int contribution = 0; contribution < 3; ++contribution) {
    const auto elements = random_elements(dtype, element_count, prng);
    Block input = misaligned(elements, offset.input);
    if (contribution == 0) {
      target.load(sums.span(), input.span());
      reference.load(expected_sums, elements);
    } else {
      target.add(sums.span(), input.span());
      reference.add(expected_sums, elements);
    }
    expect_same_sums(dtype, sums.span(), expected_sums);
    expect_same_bits(input.span(), elements);  // untouched
  }
  // From the same sums: now every bit counts.
  Block output(offset.output, element_count * target.element_bytes);
  std::vector<std::byte> expected(element_count * reference.element_bytes);
  target.finish(output.span(), sums.span(), finishing);
  reference.finish(expected, sums.span(), finishing);
  expect_same_bits(output.span(), expected);
  if (target.in_place()) {
    target.finish(sums.span(), sums.span(), finishing);
    expect_same_bits(sums.span(), expected);
  }
}

TEST_P(Target, sums_as_scalar_for_every_kind_and_many_counts_and_addresses) {
  Prng prng(6);
  std::vector<std::size_t> counts = {255, 256, 257, 511, 1000, 1024, 4099};
  for (std::size_t count = 0; count <= 140; ++count) counts.push_back(count);
  constexpr std::uint32_t kDivisors[] = {1, 2, 3, 8, 1000, 4294967295u};
  constexpr double kScales[] = {1, 1, 0.5, -3.25, 1e30, 1.0 / 3};
  for (const DType dtype : kAllDTypes) {
    for (const std::size_t element_count : counts) {
      const Placement offset = {prng.below(64), prng.below(64), prng.below(64)};
      const Finishing finishing = {.divisor = kDivisors[prng.below(std::size(kDivisors))],
                                   .scale = kScales[prng.below(std::size(kScales))]};
      SCOPED_TRACE(testing::Message()
                   << name(dtype) << " x " << element_count << " / " << finishing.divisor << " * "
                   << finishing.scale << " at " << offset.input << ", " << offset.accumulator
                   << ", " << offset.output);
      compare_one_sum(dtype, target(dtype), reference(dtype), element_count, offset, finishing,
                      prng);
      if (HasFailure()) return;
    }
  }
}

TEST_P(Target, minima_maxima_and_products_are_those_of_scalar_for_every_kind) {
  Prng prng(10);
  std::vector<std::size_t> counts = {0, 1, 7, 255, 256, 257, 1000, 4099};
  for (std::size_t count = 8; count <= 72; ++count) counts.push_back(count);
  for (const Operation operation : kJoins) {
    for (const DType dtype : kAllDTypes) {
      for (const std::size_t element_count : counts) {
        const Placement offset = {prng.below(64), prng.below(64), prng.below(64)};
        SCOPED_TRACE(testing::Message()
                     << name(operation) << " of " << name(dtype) << " x " << element_count);
        compare_one_sum(dtype, target(dtype, operation), reference(dtype, operation), element_count,
                        offset, {}, prng);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(Target, a_frame_of_64_kib_sums_as_scalar) {
  Prng prng(7);
  for (const DType dtype : kAllDTypes) {
    SCOPED_TRACE(name(dtype));
    const std::size_t element_count = (64 << 10) / element_bytes(dtype);
    compare_one_sum(dtype, target(dtype), reference(dtype), element_count, {1, 0, 3}, {}, prng);
    compare_one_sum(dtype, target(dtype), reference(dtype), element_count, {0, 0, 0},
                    {.divisor = 6, .scale = 0.3}, prng);
  }
}

TEST_P(Target, every_half_and_bfloat_widens_and_narrows_as_scalar) {
  std::vector<std::uint16_t> codes(0x10000);
  for (std::size_t code = 0; code < codes.size(); ++code)
    codes[code] = static_cast<std::uint16_t>(code);
  for (const DType dtype : {DType::kFloat16, DType::kBfloat16}) {
    std::vector<std::byte> sums(codes.size() * 4), expected_sums(codes.size() * 4);
    target(dtype).load(sums, bytes_of(codes));
    reference(dtype).load(expected_sums, bytes_of(codes));
    expect_same_bits(sums, expected_sums);
    std::vector<std::byte> output(codes.size() * 2), expected(codes.size() * 2);
    target(dtype).finish(output, sums, {});
    reference(dtype).finish(expected, sums, {});
    expect_same_bits(output, expected);
  }
}

// Every float32 whose lower half is near a rounding decision, and random ones.
TEST_P(Target, narrowing_rounds_as_scalar) {
  Prng prng(8);
  std::vector<std::uint32_t> floats;
  for (std::uint32_t upper = 0; upper < 0x10000; ++upper) {
    for (const std::uint32_t lower : {0x0000u, 0x0001u, 0x0fffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u,
                                      0x8001u, 0xefffu, 0xf000u, 0xf001u, 0xffffu}) {
      floats.push_back(upper << 16 | lower);
    }
    floats.push_back(static_cast<std::uint32_t>(prng.next()));
  }
  const auto sums = bytes_of(floats);
  for (const DType dtype : {DType::kFloat16, DType::kBfloat16}) {
    std::vector<std::byte> output(floats.size() * 2), expected(floats.size() * 2);
    for (const std::uint32_t divisor : {1u, 3u}) {
      target(dtype).finish(output, sums, {divisor});
      reference(dtype).finish(expected, sums, {divisor});
      expect_same_bits(output, expected);
    }
  }
}

TEST_P(Target, int32_average_is_exact_at_the_edges) {
  Prng prng(9);
  const auto numbers = interesting_integers<std::int32_t>(prng);
  for (const std::uint32_t divisor :
       {2u, 3u, 5u, 7u, 64u, 1000u, 65537u, 2147483647u, 2147483648u, 4294967295u}) {
    std::vector<std::int32_t> near = numbers;
    for (const std::int32_t number : numbers) {  // multiples of the divisor and their neighbours
      const std::int64_t multiple = std::int64_t{number} / divisor * divisor;
      for (const std::int64_t edge : {multiple - 1, multiple, multiple + 1}) {
        near.push_back(static_cast<std::int32_t>(edge));
      }
    }
    EXPECT_EQ(sum_of<std::int32_t>(target(DType::kInt32), {near}, divisor),
              sum_of<std::int32_t>(reference(DType::kInt32), {near}, divisor));
  }
}

std::vector<std::size_t> target_indices() {
  std::vector<std::size_t> indices;
  for (std::size_t i = 0; i < available_kernels().size(); ++i) indices.push_back(i);
  return indices;
}

INSTANTIATE_TEST_SUITE_P(Cpu, Target, testing::ValuesIn(target_indices()), [](const auto& which) {
  return std::string(available_kernels()[which.param].target);
});

}  // namespace
}  // namespace byteps
