// The scalar kernels for coding against a dull model in double; then every other target of this CPU against the scalar
// ones, bit for bit. Arrays are heap blocks of the exact size, so that a sanitizer sees any access outside.
#include "kernels/coding.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/prng.h"
#include "kernels/half.h"

namespace byteps {
namespace {

using testing::Each;
using Floats = std::vector<float>;

constexpr Format kBlocks[] = {Format::kInt8, Format::kInt4};
constexpr Format kAll[] = {Format::kFloat16, Format::kBfloat16, Format::kInt8, Format::kInt4};
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Bytes that begin `offset` bytes after an aligned address and end where the heap block ends.
class Block {
 public:
  Block(std::size_t offset, std::size_t bytes)
      : memory_(new std::byte[offset + bytes]), offset_(offset), bytes_(bytes) {
    std::memset(memory_.get(), 0x5a, offset + bytes);
  }
  Block(std::size_t offset, const Floats& floats) : Block(offset, floats.size() * sizeof(float)) {
    if (bytes_ > 0) std::memcpy(span().data(), floats.data(), bytes_);
  }
  std::span<std::byte> span() { return {memory_.get() + offset_, bytes_}; }
  Floats floats() {
    Floats floats(bytes_ / sizeof(float));
    if (bytes_ > 0) std::memcpy(floats.data(), span().data(), bytes_);
    return floats;
  }
  std::vector<std::byte> bytes() { return {span().begin(), span().end()}; }

 private:
  std::unique_ptr<std::byte[]> memory_;
  std::size_t offset_;
  std::size_t bytes_;
};

// What one pass through a format makes of elements.
struct Passed {
  std::vector<std::byte> payload;
  Floats decoded;
  Floats added;  // to `elements`
  Floats residual;
};
Passed pass(Format format, const KernelSet& set, const Floats& elements, const Floats& residual,
            std::size_t offset = 0) {
  const CodingKernels coding = coding_kernels_for(format, {}, set);
  Block input(offset, elements);
  Block feedback(offset, residual);
  Block payload(offset + 1, payload_bytes(format, elements.size()));
  Block decoded(offset, elements.size() * sizeof(float));
  Block added(offset, elements);
  coding.encode(payload.span(), input.span(), {.residual = feedback.span()}, {});
  coding.load(decoded.span(), payload.span(), {});
  coding.add(added.span(), payload.span(), {});
  return {payload.bytes(), decoded.floats(), added.floats(), feedback.floats()};
}
Passed pass(Format format, const Floats& elements, const Floats& residual = {}) {
  return pass(format, available_kernels().front(), elements, residual);
}

float limit_of(Format format) {
  return format == Format::kInt8 ? 127 : 7;
}

// Of magnitudes from tiny to large, with zeros of both signs among them.
Floats drawn(Prng& prng, std::size_t count) {
  Floats elements(count);
  float magnitude = 1;
  for (std::size_t i = 0; i < count; ++i) {
    if (i % 32 == 0) magnitude = std::ldexp(1.0F, static_cast<int>(prng.below(200)) - 100);
    const auto number = static_cast<float>(static_cast<double>(prng.below(2000001)) / 1e6 - 1);
    elements[i] = prng.chance(0.1) ? (prng.chance(0.5) ? 0.0F : -0.0F) : number * magnitude;
  }
  return elements;
}

std::vector<std::uint32_t> bits_of(const Floats& floats) {
  std::vector<std::uint32_t> bits;
  for (const float each : floats) bits.push_back(std::bit_cast<std::uint32_t>(each));
  return bits;
}

TEST(Coding, payloads_have_a_length_that_follows_from_the_number_of_elements) {
  EXPECT_EQ(payload_bytes(Format::kPlain, 10), 40U);
  EXPECT_EQ(payload_bytes(Format::kBfloat16, 10), 20U);
  EXPECT_EQ(payload_bytes(Format::kInt8, 0), 0U);
  EXPECT_EQ(payload_bytes(Format::kInt8, 1), 5U);
  EXPECT_EQ(payload_bytes(Format::kInt8, 256), 260U);
  EXPECT_EQ(payload_bytes(Format::kInt8, 257), 265U);
  EXPECT_EQ(payload_bytes(Format::kInt4, 1), 18U);
  EXPECT_EQ(payload_bytes(Format::kInt4, 33), 36U);
}

// Each element in double, with its block's scale: the nearest code, and what that leaves.
TEST(Coding, codes_are_the_nearest_and_residuals_what_they_leave) {
  for (const Format format : kBlocks) {
    Prng prng(7);
    const std::size_t block = block_elements(format);
    const Floats elements = drawn(prng, 3 * block + 5);
    const Floats before = drawn(prng, elements.size());
    const Passed passed = pass(format, elements, before);
    for (std::size_t first = 0; first < elements.size(); first += block) {
      const std::size_t end = std::min(elements.size(), first + block);
      double largest = 0;
      for (std::size_t i = first; i < end; ++i) {
        largest = std::max(largest, std::abs(static_cast<double>(elements[i] + before[i])));
      }
      if (largest < 1e-30) continue;
      // Of int4 the scale has 8 bits and is rounded up.
      const double step =
          largest / limit_of(format) * (format == Format::kInt4 ? 1 + 1.0 / 128 : 1);
      for (std::size_t i = first; i < end; ++i) {
        const float number = elements[i] + before[i];
        ASSERT_LE(std::abs(static_cast<double>(number) - passed.decoded[i]), step * 0.5000001)
            << name(format) << ' ' << i;
        ASSERT_EQ(passed.residual[i], number - passed.decoded[i]) << name(format) << ' ' << i;
        ASSERT_EQ(static_cast<double>(passed.residual[i]) + passed.decoded[i], number)
            << "nothing is lost, " << name(format) << ' ' << i;
      }
    }
  }
}

TEST(Coding, the_largest_element_of_a_block_is_kept) {
  Floats elements(256, 0.25F);
  elements[17] = -3.5F;
  const Passed passed = pass(Format::kInt8, elements);
  EXPECT_EQ(passed.decoded[17], -127 * (3.5F / 127));
  EXPECT_NEAR(passed.decoded[0], 0.25, 3.5 / 254);
  const Passed halves = pass(Format::kInt4, {7, -7, 3, 0, 1});
  EXPECT_EQ(halves.decoded, (Floats{7, -7, 3, 0, 1})) << "a scale of 1";
}

TEST(Coding, ties_go_to_even_codes) {
  const Passed passed = pass(Format::kInt4, {7, 0.5F, 1.5F, 2.5F, -0.5F, -1.5F});
  EXPECT_EQ(passed.decoded, (Floats{7, 0, 2, 2, 0, -2}));
}

TEST(Coding, blocks_do_not_know_of_each_other) {
  for (const Format format : kBlocks) {
    Prng prng(3);
    const std::size_t block = block_elements(format);
    Floats elements = drawn(prng, 2 * block);
    const Floats alone(elements.begin() + static_cast<std::ptrdiff_t>(block), elements.end());
    elements[0] = 1e30F;
    const Floats together = pass(format, elements).decoded;
    EXPECT_EQ(Floats(together.begin() + static_cast<std::ptrdiff_t>(block), together.end()),
              pass(format, alone).decoded);
  }
}

TEST(Coding, what_is_too_small_becomes_zeros_and_stays_in_the_residual) {
  for (const Format format : kBlocks) {
    const Passed passed = pass(format, {1e-31F, -9e-31F, 0}, {0, 0, 2e-31F});
    EXPECT_THAT(passed.decoded, Each(0.0F));
    EXPECT_EQ(passed.residual, (Floats{1e-31F, -9e-31F, 2e-31F}));
  }
}

TEST(Coding, a_block_with_an_infinity_or_nan_is_nan_everywhere_and_keeps_its_residual) {
  for (const Format format : kBlocks) {
    for (const float odd : {kInfinity, -kInfinity, kNan}) {
      const std::size_t block = block_elements(format);
      Floats elements(2 * block, 1);
      elements[block - 1] = odd;
      const Floats before(elements.size(), 0.125F);
      const Passed passed = pass(format, elements, before);
      for (std::size_t i = 0; i < block; ++i) ASSERT_TRUE(std::isnan(passed.decoded[i]));
      for (std::size_t i = block; i < 2 * block; ++i) ASSERT_FALSE(std::isnan(passed.decoded[i]));
      EXPECT_EQ(Floats(passed.residual.begin(),
                       passed.residual.begin() + static_cast<std::ptrdiff_t>(block)),
                Floats(block, 0.125F));
    }
  }
}

TEST(Coding, the_largest_numbers_that_can_be_coded_are_no_infinities) {
  for (const Format format : kBlocks) {
    const float largest = std::nextafter(0x1p127F, 0.0F);
    for (const float each : pass(format, {largest, -largest, largest / 2}).decoded) {
      EXPECT_TRUE(std::isfinite(each)) << name(format);
    }
    for (const float each : pass(format, {1, 0x1p127F}).decoded) EXPECT_TRUE(std::isnan(each));
  }
}

TEST(Coding, halves_are_rounded_as_ever) {
  const Floats elements = {1, 1.0F + 0x1p-12F, -65504, 3.3e38F};
  const Passed passed = pass(Format::kFloat16, elements);
  EXPECT_EQ(passed.decoded, (Floats{1, 1, -65504, kInfinity}));
  EXPECT_EQ(pass(Format::kBfloat16, elements).decoded[1], 1);
}

TEST(Coding, residuals_bring_in_time_what_codes_leave_out) {
  const Floats elements = {1, 0.01F, 0.002F, -0.03F};
  for (const Format format : kBlocks) {
    Floats residual(elements.size(), 0);
    std::vector<double> sum(elements.size(), 0);
    constexpr int kRounds = 2000;
    for (int round = 0; round < kRounds; ++round) {
      Passed passed = pass(format, elements, residual);
      residual = std::move(passed.residual);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += passed.decoded[i];
    }
    for (std::size_t i = 0; i < sum.size(); ++i) {
      EXPECT_NEAR(sum[i] / kRounds, elements[i], 2e-4) << name(format);
    }
  }
}

// ---- all targets alike

class CodingTargets : public testing::TestWithParam<Format> {};

TEST_P(CodingTargets, agree_bit_for_bit) {
  const std::vector<KernelSet> sets = available_kernels();
  if (sets.size() < 2) GTEST_SKIP() << "this CPU has but the scalar kernels";
  const bool has_residual = block_elements(GetParam()) > 1;
  Prng prng(11);
  for (int run = 0; run < 400; ++run) {
    const std::size_t count = run < 300 ? prng.below(700) : prng.below(5000);
    Floats elements = drawn(prng, count);
    for (float& each : elements) {
      if (prng.chance(0.001)) each = prng.chance(0.5) ? kInfinity : -kNan;
      if (prng.chance(0.01)) each = std::ldexp(each, -140);
    }
    const Floats residual = has_residual && run % 2 == 0 ? drawn(prng, count) : Floats();
    const std::size_t offset = prng.below(8);
    const Passed scalar = pass(GetParam(), sets.front(), elements, residual, offset);
    for (const KernelSet& set : sets) {
      const Passed passed = pass(GetParam(), set, elements, residual, offset);
      ASSERT_EQ(passed.payload, scalar.payload) << set.target << ", run " << run;
      ASSERT_EQ(bits_of(passed.decoded), bits_of(scalar.decoded)) << set.target;
      ASSERT_EQ(bits_of(passed.residual), bits_of(scalar.residual)) << set.target;
      for (std::size_t i = 0; i < count; ++i) {
        if (std::isnan(scalar.added[i])) {  // whose payload survives is not specified
          ASSERT_TRUE(std::isnan(passed.added[i])) << set.target;
        } else {
          ASSERT_EQ(passed.added[i], scalar.added[i]) << set.target;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(all, CodingTargets, testing::ValuesIn(kAll),
                         [](const auto& each) { return name(each.param); });

}  // namespace
}  // namespace byteps
