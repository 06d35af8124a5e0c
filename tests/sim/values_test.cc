#include "sim/values.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

namespace byteps::sim {
namespace {

template <typename T>
std::vector<T> as(const std::vector<std::byte>& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

TensorFacts facts(DType dtype, Operation operation) {
  TensorFacts tensor;
  tensor.name = "t";
  tensor.dtype = dtype;
  tensor.operation = operation;
  tensor.element_count = 1000;
  tensor.value_seed = 99;
  return tensor;
}

TEST(Values, the_sum_is_that_of_the_contributions_for_3_workers) {
  const TensorFacts tensor = facts(DType::kInt32, Operation::kSum);
  const auto sum = as<std::int32_t>(expected_result(tensor, 4, 3));
  std::vector<std::int32_t> model(1000, 0);
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    const auto values = as<std::int32_t>(contribution(tensor, 4, rank, 3));
    for (std::size_t i = 0; i < model.size(); ++i) model[i] += values[i];
  }
  EXPECT_EQ(sum, model);
}

TEST(Values, averages_divide_without_a_rest_for_5_workers) {
  const TensorFacts tensor = facts(DType::kFloat64, Operation::kAverage);
  const auto average = as<double>(expected_result(tensor, 0, 5));
  std::vector<double> model(1000, 0);
  for (std::uint32_t rank = 0; rank < 5; ++rank) {
    const auto values = as<double>(contribution(tensor, 0, rank, 5));
    for (std::size_t i = 0; i < model.size(); ++i) model[i] += values[i];
  }
  for (double& value : model) value /= 5;
  EXPECT_EQ(average, model);
}

TEST(Values, a_broadcast_is_the_roots_bytes) {
  TensorFacts tensor = facts(DType::kFloat16, Operation::kBroadcast);
  tensor.root = 2;
  EXPECT_EQ(expected_result(tensor, 1, 3), contribution(tensor, 1, 2, 3));
}

TEST(Values, booleans_are_joined_by_or) {
  const TensorFacts tensor = facts(DType::kBool, Operation::kSum);
  const auto result = expected_result(tensor, 0, 2);
  const auto a = contribution(tensor, 0, 0, 2);
  const auto b = contribution(tensor, 0, 1, 2);
  for (std::size_t i = 0; i < result.size(); ++i) {
    EXPECT_EQ(result[i], (a[i] | b[i])) << i;
  }
}

// The small integers that these dtypes hold exactly, as their formats (IEEE 754, and its upper half) have them.
TEST(Values, half_types_have_the_bits_of_their_formats) {
  for (const DType dtype : {DType::kFloat16, DType::kBfloat16}) {
    const auto halves = as<std::uint16_t>(expected_result(facts(dtype, Operation::kSum), 0, 1));
    const auto values = as<std::uint16_t>(contribution(facts(dtype, Operation::kSum), 0, 0, 1));
    EXPECT_EQ(halves, values) << "the sum of one";
    const bool narrow = dtype == DType::kFloat16;
    for (const std::uint16_t bits : halves) {
      const std::uint16_t magnitude = bits & 0x7fff;
      if (magnitude == 0) continue;
      EXPECT_GE(magnitude, narrow ? 0x3c00 : 0x3f80) << "at least 1";
      EXPECT_LE(magnitude, narrow ? 0x4900 : 0x4000) << "at most 10 or 2";
    }
  }
}

float of_half(std::uint16_t bits) {
  const float magnitude =
      std::ldexp(static_cast<float>((bits & 0x3ff) | 0x400), (bits >> 10 & 31) - 25);
  return (bits & 0x7fff) == 0 ? 0 : (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

TEST(Values, large_halves_are_together_beyond_float16_and_their_average_is_not) {
  constexpr float kMost = 65504;
  TensorFacts tensor = facts(DType::kFloat16, Operation::kAverage);
  tensor.unit = 2048;
  const auto average = as<std::uint16_t>(expected_result(tensor, 0, 4));
  std::vector<float> sums(1000, 0);
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    const auto values = as<std::uint16_t>(contribution(tensor, 0, rank, 4));
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += of_half(values[i]);
  }
  for (std::size_t i = 0; i < sums.size(); ++i) EXPECT_EQ(of_half(average[i]), sums[i] / 4) << i;
  const auto beyond =
      std::count_if(sums.begin(), sums.end(), [](float sum) { return std::abs(sum) > kMost; });
  EXPECT_GT(beyond, 100);
}

TEST(Values, rounds_and_ranks_differ) {
  const TensorFacts tensor = facts(DType::kInt64, Operation::kSum);
  EXPECT_NE(contribution(tensor, 0, 0, 2), contribution(tensor, 1, 0, 2));
  EXPECT_NE(contribution(tensor, 0, 0, 2), contribution(tensor, 0, 1, 2));
  EXPECT_EQ(contribution(tensor, 0, 1, 2), contribution(tensor, 0, 1, 2));
}

}  // namespace
}  // namespace byteps::sim
