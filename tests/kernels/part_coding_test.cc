// The part codecs: what each does with a few numbers, with odd ones, and with payloads that nobody coded. Whether all
// numbers are those of the formulas, tests/python/test_part_codecs.py compares with numpy. Arrays are heap blocks of
// the exact size, so that a sanitizer sees any access outside.
#include "kernels/part_coding.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/prng.h"

namespace byteps {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsNull;
using Floats = std::vector<float>;
using Bytes = std::vector<std::byte>;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kMax = std::numeric_limits<float>::max();
constexpr PartPlace kPlace = {Key(77), PartIndex(2), Round(0), 5};

const std::vector<PartCoding> kCodings = {
    {Format::kOnebit, {}},
    {Format::kOnebit, {.scaling = true}},
    {Format::kTopk, {.k = 0.1}},
    {Format::kTopk, {.k = 1}},
    {Format::kRandomk, {.k = 0.3}},
    {Format::kRandomk, {.k = 2, .seed = 9}},
    {Format::kDithering, {.k = 1}},
    {Format::kDithering, {.k = 5, .seed = 9}},
    {Format::kDithering, {.k = 300, .l2 = true}},
    {Format::kDithering, {.k = 1 << 23}},
    {Format::kDithering, {.k = 4, .natural = true}},
    {Format::kDithering, {.k = 24, .seed = 0, .natural = true, .l2 = true}},
};

std::string said(const PartCoding& coding) {
  return std::string(name(coding.format)) + coding.codec.text();
}

// A part and its codec: floats in, floats out.
struct Part {
  Part(const PartCoding& chosen, std::size_t element_count, PartPlace where = kPlace)
      : coding(chosen), count(element_count), place(where) {
    if (coding.codec.error_feedback) residual.resize(count);
    if (coding.codec.momentum) momentum.resize(count);
  }

  Bytes encode(const Floats& elements, float ratio = 1) {
    Bytes payload(payload_bytes(coding.format, coding.codec, count));
    if (is_begun) ++place.round.value;
    is_begun = true;
    byteps::encode(coding, payload, std::as_bytes(std::span(elements)),
                   {.residual = std::as_writable_bytes(std::span(residual)),
                    .momentum = std::as_writable_bytes(std::span(momentum)),
                    .ratio = ratio},
                   place);
    return payload;
  }
  const char* flaw(const Bytes& payload) const { return flaw_of_payload(coding, payload, count); }
  void decode(Floats& elements, const Bytes& payload) const {
    byteps::decode(coding, std::as_writable_bytes(std::span(elements)), payload, place);
  }
  void add(Floats& elements, const Bytes& payload) const {
    decode_add(coding, std::as_writable_bytes(std::span(elements)), payload, place);
  }
  Floats pass(const Floats& elements, float ratio = 1) {
    Floats decoded(count, 99);
    const Bytes payload = encode(elements, ratio);
    EXPECT_THAT(flaw(payload), IsNull());
    decode(decoded, payload);
    return decoded;
  }

  PartCoding coding;
  std::size_t count;
  PartPlace place;  // of the last round
  bool is_begun = false;
  Floats residual;
  Floats momentum;
};

Floats drawn(Prng& prng, std::size_t count) {
  Floats elements(count);
  for (float& each : elements) {
    const auto number = static_cast<float>(static_cast<double>(prng.below(2000001)) / 1e6 - 1);
    each = prng.chance(0.2) ? 0 : number * number * number;
  }
  return elements;
}

std::vector<std::uint32_t> words_of(const Bytes& payload) {
  std::vector<std::uint32_t> words(payload.size() / 4);
  std::memcpy(words.data(), payload.data(), payload.size());
  return words;
}

TEST(PartCoding, payloads_have_the_length_of_the_format) {
  Prng prng(1);
  for (const PartCoding& coding : kCodings) {
    for (const std::size_t count : {1, 2, 31, 32, 33, 1000}) {
      Part part(coding, count);
      const Bytes payload = part.encode(drawn(prng, count));
      EXPECT_THAT(part.flaw(payload), IsNull()) << said(coding);
    }
  }
}

TEST(PartCoding, onebit_keeps_signs_first_element_highest_and_the_mean_magnitude) {
  Part part({Format::kOnebit, {.scaling = true}}, 5);
  const Floats elements = {-1, 2, -0.0F, 0, -4.5F};
  EXPECT_THAT(words_of(part.encode(elements)),
              ElementsAre(0x88000000, std::bit_cast<std::uint32_t>(1.5F)));
  EXPECT_EQ(part.pass(elements), (Floats{-1.5F, 1.5F, 1.5F, 1.5F, -1.5F}));
  part.coding.codec.scaling = false;
  EXPECT_EQ(part.pass(elements), (Floats{-1, 1, 1, 1, -1}));
}

TEST(PartCoding, onebit_has_its_scale_in_double) {
  constexpr std::size_t kCount = (1 << 22) + 3;  // a float sum would stop at 2^24 steps of 0.1
  Part part({Format::kOnebit, {.scaling = true}}, kCount);
  EXPECT_EQ(part.pass(Floats(kCount, 0.1F)).back(), 0.1F);
}

TEST(PartCoding, topk_sends_the_largest_and_of_equal_ones_the_first) {
  Part part({Format::kTopk, {.k = 3}}, 8);
  EXPECT_EQ(part.pass({1, -2, 2, 0.5F, -2, 3, 1, 2}), (Floats{0, -2, 2, 0, 0, 3, 0, 0}));
  EXPECT_THAT(words_of(part.encode(Floats(8, 0))), ElementsAre(0, 0, 1, 0, 2, 0));
}

TEST(PartCoding, topk_tells_magnitudes_apart_to_the_last_bit) {
  Prng prng(4);
  for (int run = 0; run < 50; ++run) {
    const std::size_t count = 2 + prng.below(300);
    Floats elements(count);
    for (float& each : elements)
      each = std::bit_cast<float>(0x3f800000U + static_cast<std::uint32_t>(prng.below(40)));
    Part part({Format::kTopk, {.k = static_cast<double>(1 + prng.below(count / 2))}}, count);
    const std::size_t k = sent_elements(Format::kTopk, part.coding.codec, count);
    std::vector<std::size_t> order(count);
    for (std::size_t i = 0; i < count; ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return elements[a] > elements[b]; });
    Floats expected(count, 0);
    for (std::size_t i = 0; i < k; ++i) expected[order[i]] = elements[order[i]];
    ASSERT_EQ(part.pass(elements), expected);
  }
}

TEST(PartCoding, a_place_that_randomk_draws_twice_counts_once) {
  Part part({Format::kRandomk, {.k = 4, .seed = 0, .error_feedback = true}},
            4);  // zeros only
  Floats sums(4, 10);
  const Bytes payload = part.encode({1, 2, 3, 4});
  part.add(sums, payload);
  EXPECT_EQ(sums, (Floats{11, 10, 10, 10}));
  EXPECT_EQ(part.residual, (Floats{0, 2, 3, 4}));
}

TEST(PartCoding, numbers_of_a_seed_are_those_of_xorshift128_plus) {
  std::uint64_t numbers[4] = {};
  PartDraws draws = PartDraws::seeded(1, 0);
  draws.fill({numbers, 2});
  draws.fill({numbers + 2, 2});
  EXPECT_THAT(numbers, ElementsAre(8388673, 8388673, 70368752570370, 140737497800769));
  PartDraws zero = PartDraws::seeded(0, 1234567);
  zero.fill(numbers);
  EXPECT_THAT(numbers, Each(0U));
}

TEST(PartCoding, numbers_of_a_seed_go_on_where_those_before_ended) {
  for (const std::uint64_t before : {0U, 1U, 2U, 127U, 128U, 129U, 1000U, 4097U}) {
    PartDraws walked = PartDraws::seeded(2020, 0);
    std::vector<std::uint64_t> passed(before);
    walked.fill(passed);
    EXPECT_EQ(PartDraws::seeded(2020, before), walked) << before;
  }
  // A jump is one as well when it begins elsewhere: two that are added are one.
  std::uint64_t far[1] = {};
  std::uint64_t same[1] = {};
  constexpr std::uint64_t kFar = (std::uint64_t{1} << 40) + 3;
  PartDraws jumped = PartDraws::seeded(2020, kFar);
  jumped.fill(far);
  PartDraws nearly = PartDraws::seeded(2020, kFar - 100);
  std::vector<std::uint64_t> rest(100);
  nearly.fill(rest);
  nearly.fill(same);
  EXPECT_EQ(far[0], same[0]);
}

TEST(PartCoding, without_a_seed_randomk_ignores_the_rank_and_dithering_does_not) {
  PartPlace other = kPlace;
  other.rank = 6;
  Prng prng(2);
  const Floats elements = drawn(prng, 500);
  for (const PartCoding& coding :
       {PartCoding{Format::kRandomk, {.k = 50}}, PartCoding{Format::kDithering, {.k = 3}}}) {
    Part one(coding, elements.size());
    Part two(coding, elements.size(), other);
    Part third(coding, elements.size(), {kPlace.key, PartIndex(3), Round(0), kPlace.rank});
    const Bytes first = one.encode(elements);
    EXPECT_EQ(first == two.encode(elements), coding.format == Format::kRandomk);
    EXPECT_NE(first, third.encode(elements)) << "another part";
    EXPECT_NE(first, one.encode(elements)) << "another round";
  }
}

TEST(PartCoding, dithering_is_right_on_average) {
  for (const bool natural : {false, true}) {
    for (const bool l2 : {false, true}) {
      Part part({Format::kDithering, {.k = 3, .natural = natural, .l2 = l2}}, 6);
      const Floats elements = {1, -0.3F, 0.05F, 0, 0.7F, -0.9F};
      std::vector<double> sums(6, 0);
      constexpr int kRounds = 20000;
      for (int round = 0; round < kRounds; ++round) {
        const Floats decoded = part.pass(elements);
        for (std::size_t i = 0; i < 6; ++i) sums[i] += decoded[i];
      }
      for (std::size_t i = 0; i < 6; ++i) EXPECT_NEAR(sums[i] / kRounds, elements[i], 0.01);
    }
  }
}

TEST(PartCoding, dithering_has_as_many_bits_for_an_element_as_its_levels_need) {
  Part part({Format::kDithering, {.k = 100}}, 10000);
  EXPECT_EQ(part.encode(Floats(10000, 1)).size(), 4U + 10000);
  EXPECT_THAT(part.pass(Floats(10000, -1)), Each(-1.0F));
  Part few({Format::kDithering, {.k = 1}}, 5);
  EXPECT_THAT(words_of(few.encode({1, -1, 0, 1, 0})),
              ElementsAre(std::bit_cast<std::uint32_t>(1.0F), 0b0110'0001'00U << 22));
}

TEST(PartCoding, float32_is_the_elements_after_momentum_in_place_as_well) {
  Part part({Format::kFloat32, {.momentum = 0.5}}, 2);
  EXPECT_EQ(part.pass({1, 4}), (Floats{1.5F, 6}));
  Floats same = {1, 0};
  const std::span memory = std::as_writable_bytes(std::span(same));
  byteps::encode(part.coding, memory, memory,
                 {.momentum = std::as_writable_bytes(std::span(part.momentum))}, {});
  EXPECT_EQ(same, (Floats{1.75F, 1}));
  EXPECT_EQ(part.momentum, (Floats{1.5F, 2}));
}

TEST(PartCoding, zeros_become_zeros) {
  for (PartCoding coding : kCodings) {
    if (coding.format == Format::kOnebit && !coding.codec.scaling) continue;
    coding.codec.error_feedback = true;
    Part part(coding, 100);
    EXPECT_THAT(part.pass(Floats(100, 0)), Each(0.0F)) << said(coding);
    EXPECT_THAT(part.residual, Each(0.0F)) << said(coding);
  }
}

TEST(PartCoding, the_largest_and_smallest_numbers_stay_finite) {
  for (PartCoding coding : kCodings) {
    coding.codec.error_feedback = true;
    for (const float large : {kMax, 1e-45F, 1e-38F}) {
      Part part(coding, 64);
      Floats elements(64, -large);
      elements[3] = large / 2;
      for (const float each : part.pass(elements)) EXPECT_TRUE(std::isfinite(each)) << said(coding);
      for (const float each : part.residual) EXPECT_TRUE(std::isfinite(each)) << said(coding);
    }
  }
}

TEST(PartCoding, what_is_not_finite_becomes_nan_and_changes_no_state) {
  for (PartCoding coding : kCodings) {
    coding.codec.error_feedback = true;
    coding.codec.momentum = 0.5F;
    for (const float odd : {kNan, kInfinity, -kInfinity}) {
      Part part(coding, 100);
      Prng prng(3);
      const Floats elements = drawn(prng, 100);
      part.pass(elements);
      const Part before = part;
      Floats broken = elements;
      broken[99] = odd;
      const Floats decoded = part.pass(broken, 2);
      if (coding.format == Format::kOnebit || coding.format == Format::kDithering) {
        for (const float each : decoded) EXPECT_TRUE(std::isnan(each)) << said(coding);
      } else {
        float sum = 0;
        for (const float each : decoded) sum += each;
        EXPECT_TRUE(std::isnan(sum)) << said(coding);
      }
      EXPECT_EQ(part.residual, before.residual) << said(coding);
      EXPECT_EQ(part.momentum, before.momentum) << said(coding);
    }
  }
}

TEST(PartCoding, error_feedback_and_momentum_are_as_in_a_hand_counted_round) {
  Part part({Format::kTopk, {.k = 1, .error_feedback = true, .momentum = 0.5F}}, 2);
  // m = 1, 4; x = 1.5, 6.
  EXPECT_EQ(part.pass({1, 4}), (Floats{0, 6}));
  EXPECT_EQ(part.residual, (Floats{1.5F, 0}));
  // m = 1.5, 2; x = 1.75, 1; + 1.5 * 2 with half the learning rate.
  EXPECT_EQ(part.pass({1, 0}, 2), (Floats{4.75F, 0}));
  EXPECT_EQ(part.residual, (Floats{0, 1}));
  EXPECT_EQ(part.momentum, (Floats{1.5F, 2}));
}

TEST(PartCoding, residuals_bring_in_time_what_codes_leave_out) {
  const Floats elements = {1, 0.01F, 0.002F, -0.03F};
  for (PartCoding coding : kCodings) {
    if (coding.codec.seed == 0U || (coding.format == Format::kOnebit && !coding.codec.scaling))
      continue;
    coding.codec.error_feedback = true;
    Part part(coding, elements.size());
    std::vector<double> sums(elements.size(), 0);
    constexpr int kRounds = 3000;
    for (int round = 0; round < kRounds; ++round) {
      const Floats decoded = part.pass(elements);
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += decoded[i];
    }
    for (std::size_t i = 0; i < sums.size(); ++i) {
      EXPECT_NEAR(sums[i] / kRounds, elements[i], 4e-3) << said(coding);
    }
  }
}

TEST(PartCoding, what_is_added_is_what_is_decoded) {
  Prng prng(6);
  for (const PartCoding& coding : kCodings) {
    for (const std::size_t count : {2U, 33U, 1000U}) {
      Part part(coding, count);
      const Bytes payload = part.encode(drawn(prng, count));
      Floats decoded(count);
      Floats sums = drawn(prng, count);
      Floats expected = sums;
      part.decode(decoded, payload);
      part.add(sums, payload);
      for (std::size_t i = 0; i < count; ++i) expected[i] += decoded[i];
      EXPECT_EQ(sums, expected) << said(coding);
    }
  }
}

TEST(PartCoding, a_part_may_begin_at_any_byte) {
  Prng prng(12);
  const Floats elements = drawn(prng, 100);
  for (const PartCoding& coding : kCodings) {
    Part aligned(coding, 100);
    Part odd(coding, 100);
    const Bytes expected = aligned.encode(elements);
    Bytes input(401);
    Bytes payload(expected.size() + 1);
    Bytes output(401);
    std::memcpy(input.data() + 1, elements.data(), 400);
    const std::span at_odd = std::span(payload).subspan(1);
    encode(coding, at_odd, std::span(input).subspan(1), {}, odd.place);
    ASSERT_EQ(Bytes(payload.begin() + 1, payload.end()), expected);
    decode(coding, std::span(output).subspan(1), at_odd, odd.place);
    Floats decoded(100);
    Floats from_odd(100);
    aligned.decode(decoded, expected);
    std::memcpy(from_odd.data(), output.data() + 1, 400);
    EXPECT_EQ(from_odd, decoded) << said(coding);
  }
}

// ---- payloads of strangers

// The elements are a heap block of their size, and the payload is one. What has a flaw may be read all the same: it may
// have got it since it was looked at.
void try_payload(const Part& part, const Bytes& payload) {
  Floats decoded(part.count, 1);
  Floats sums(part.count, 1);
  if (payload.size() != payload_bytes(part.coding.format, part.coding.codec, part.count)) {
    ASSERT_NE(part.flaw(payload), nullptr) << said(part.coding);
    return;
  }
  [[maybe_unused]] const char* const flaw = part.flaw(payload);
  part.add(sums, payload);
  part.decode(decoded, payload);
}

TEST(PartCoding, payloads_of_another_length_are_refused) {
  Prng prng(9);
  for (const PartCoding& coding : kCodings) {
    Part part(coding, 100);
    Bytes payload = part.encode(drawn(prng, 100));
    for (const std::size_t bytes : {payload.size() - 1, payload.size() - 4, payload.size() + 1,
                                    payload.size() + 4, std::size_t{0}, std::size_t{7}}) {
      Bytes other = payload;
      other.resize(bytes);
      EXPECT_NE(part.flaw(other), nullptr)
          << said(coding) << ", " << bytes << " of " << payload.size();
    }
  }
}

TEST(PartCoding, levels_of_dithering_must_be_there) {
  const Part part({Format::kDithering, {.k = 2}}, 3);  // 3 bits each
  const auto flaw = [&](std::uint32_t first, std::uint32_t second) {
    const std::uint32_t words[] = {0x3f800000, first << 29 | second << 26};
    Bytes payload(sizeof words);
    std::memcpy(payload.data(), words, sizeof words);
    const char* const text = part.flaw(payload);
    return std::string(text == nullptr ? "" : text);
  };
  EXPECT_EQ(flaw(4, 0), "");
  EXPECT_THAT(flaw(5, 0), HasSubstr("level"));
  EXPECT_THAT(flaw(0, 7), HasSubstr("level"));
}

TEST(PartCoding, indices_of_topk_must_rise_and_be_of_the_part) {
  const Part part({Format::kTopk, {.k = 2}}, 10);
  const auto flaw = [&](std::uint32_t first, std::uint32_t second) {
    const std::uint32_t words[] = {first, 0x3f800000, second, 0x3f800000};
    Bytes payload(sizeof words);
    std::memcpy(payload.data(), words, sizeof words);
    const char* const text = part.flaw(payload);
    return std::string(text == nullptr ? "" : text);
  };
  EXPECT_EQ(flaw(0, 9), "");
  EXPECT_THAT(flaw(0, 10), HasSubstr("beyond"));
  EXPECT_THAT(flaw(0xffffffff, 1), HasSubstr("beyond"));
  EXPECT_THAT(flaw(3, 3), HasSubstr("rise"));
  EXPECT_THAT(flaw(4, 3), HasSubstr("rise"));
}

TEST(PartCoding, random_bytes_are_decoded_or_refused) {
  Prng prng(10);
  for (const PartCoding& coding : kCodings) {
    for (int run = 0; run < 3000; ++run) {
      const std::size_t count = 1 + prng.below(80);
      const Part part(coding, count);
      const std::size_t most = payload_bytes(coding.format, coding.codec, count);
      Bytes payload(prng.chance(0.7) ? most : prng.below(most / 4 + 8) * 4);
      const int zeros = static_cast<int>(prng.below(4));  // long codes begin with zeros
      for (std::byte& each : payload) {
        each = static_cast<std::byte>(
            prng.below(4) < static_cast<std::uint64_t>(zeros) ? 0 : prng.below(256));
      }
      try_payload(part, payload);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(PartCoding, payloads_with_changed_bits_are_decoded_or_refused) {
  Prng prng(11);
  for (const PartCoding& coding : kCodings) {
    for (int run = 0; run < 2000; ++run) {
      const std::size_t count = 10 + prng.below(200);
      Part part(coding, count);
      Bytes payload = part.encode(drawn(prng, count));
      for (std::uint64_t i = 0; i < 1 + prng.below(3); ++i) {
        payload[prng.below(payload.size())] ^= static_cast<std::byte>(1U << prng.below(8));
      }
      if (prng.chance(0.2)) payload.resize(prng.below(payload.size()) / 4 * 4);
      payload.shrink_to_fit();
      try_payload(part, payload);
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace byteps
