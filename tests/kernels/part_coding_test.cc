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
#include "kernels/part_bits.h"

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
constexpr PartPlace kPlace = {Key(77), PartIndex(2), 5};

const std::vector<PartCodec> kCodecs = {
    {.kind = PartKind::kOnebit},
    {.kind = PartKind::kOnebit, .scaling = true},
    {.kind = PartKind::kTopk, .k = 0.1},
    {.kind = PartKind::kTopk, .k = 1},
    {.kind = PartKind::kRandomk, .k = 0.3},
    {.kind = PartKind::kRandomk, .k = 2, .seed = 9},
    {.kind = PartKind::kDithering, .k = 1},
    {.kind = PartKind::kDithering, .k = 5, .seed = 9},
    {.kind = PartKind::kDithering, .k = 300, .l2 = true},
    {.kind = PartKind::kDithering, .k = 1 << 23},
    {.kind = PartKind::kDithering, .k = 4, .natural = true},
    {.kind = PartKind::kDithering, .k = 24, .seed = 0, .natural = true, .l2 = true},
};

std::string said(const PartCodec& codec) {
  return std::string(name(codec.kind)) + " k " + std::to_string(codec.k);
}

// A part and its codec: floats in, floats out.
struct Part {
  Part(const PartCodec& chosen, std::size_t element_count, const PartPlace& place = kPlace)
      : codec(chosen), count(element_count), state(first_state(chosen, place, element_count)) {}

  Bytes encode(const Floats& elements, double learning_rate = 0) {
    Bytes payload(payload_bytes_max(codec, count));
    const std::size_t bytes = byteps::encode(
        codec, state, payload, std::as_bytes(std::span(elements)), round, learning_rate);
    ++round.value;
    return {payload.begin(), payload.begin() + static_cast<std::ptrdiff_t>(bytes)};
  }
  const char* decode(Floats& elements, const Bytes& payload) const {
    return byteps::decode(codec, std::as_writable_bytes(std::span(elements)), payload, state.drawn);
  }
  const char* add(Floats& elements, const Bytes& payload) const {
    return decode_add(codec, std::as_writable_bytes(std::span(elements)), payload, state.drawn);
  }
  Floats pass(const Floats& elements, double learning_rate = 0) {
    Floats decoded(count, 99);
    const Bytes payload = encode(elements, learning_rate);
    EXPECT_THAT(decode(decoded, payload), IsNull());
    return decoded;
  }

  PartCodec codec;
  std::size_t count;
  PartState state;
  Round round;
};

Floats drawn(Prng& prng, std::size_t count) {
  Floats elements(count);
  for (float& each : elements) {
    const auto number = static_cast<float>(static_cast<double>(prng.below(2000001)) / 1e6 - 1);
    each = prng.chance(0.2) ? 0 : number * number * number;
  }
  return elements;
}

bool fits(const PartCodec& codec, std::size_t count) {
  return flaw_of_part_codec(codec, count) == nullptr;
}

std::vector<std::uint32_t> words_of(const Bytes& payload) {
  std::vector<std::uint32_t> words(payload.size() / 4);
  std::memcpy(words.data(), payload.data(), payload.size());
  return words;
}

TEST(PartCoding, what_cannot_be_coded_is_said) {
  const auto flaw = [](const PartCodec& codec, std::uint64_t count) {
    const char* const text = flaw_of_part_codec(codec, count);
    return std::string(text == nullptr ? "" : text);
  };
  EXPECT_EQ(flaw({.kind = PartKind::kOnebit}, 1), "");
  EXPECT_THAT(flaw({.kind = PartKind::kOnebit}, 0), HasSubstr("without elements"));
  EXPECT_THAT(flaw({.kind = PartKind::kOnebit}, 0xffffffff), HasSubstr("2^32"));
  EXPECT_EQ(flaw({.kind = PartKind::kTopk, .k = 5}, 10), "");
  EXPECT_THAT(flaw({.kind = PartKind::kTopk, .k = 5}, 9), HasSubstr("at most half"));
  EXPECT_THAT(flaw({.kind = PartKind::kTopk, .k = 0.51}, 100), HasSubstr("at most half"));
  EXPECT_THAT(flaw({.kind = PartKind::kTopk, .k = 0.01}, 1), HasSubstr("at most half"));
  EXPECT_EQ(flaw({.kind = PartKind::kRandomk, .k = 0.01}, 1), "");
  EXPECT_THAT(flaw({.kind = PartKind::kRandomk, .k = 11}, 10), HasSubstr("as many elements"));
  EXPECT_THAT(flaw({.kind = PartKind::kDithering, .k = 0.5}, 10), HasSubstr("levels"));
  EXPECT_THAT(flaw({.kind = PartKind::kDithering, .k = 1e9}, 10), HasSubstr("8388608"));
  EXPECT_THAT(flaw({.kind = PartKind::kDithering, .k = 25, .natural = true}, 10), HasSubstr("24"));
  for (const double k : {0.0, -1.0, 2.5, double{kNan}, double{kInfinity}}) {
    for (const PartKind kind : {PartKind::kTopk, PartKind::kRandomk, PartKind::kDithering}) {
      EXPECT_NE(flaw({.kind = kind, .k = k}, 100), "") << k;
    }
  }
  EXPECT_THAT(flaw({.kind = PartKind::kOnebit, .momentum = 1.0F}, 1), HasSubstr("momentum"));
  EXPECT_THAT(flaw({.kind = PartKind::kOnebit, .momentum = kNan}, 1), HasSubstr("momentum"));
}

TEST(PartCoding, payloads_have_the_lengths_that_the_header_says) {
  EXPECT_EQ(payload_bytes_max({.kind = PartKind::kOnebit}, 1), 8U);
  EXPECT_EQ(payload_bytes_max({.kind = PartKind::kOnebit}, 32), 8U);
  EXPECT_EQ(payload_bytes_max({.kind = PartKind::kOnebit}, 33), 12U);
  EXPECT_EQ(payload_bytes_max({.kind = PartKind::kTopk, .k = 0.01}, 1000), 80U);
  EXPECT_EQ(payload_bytes_max({.kind = PartKind::kTopk, .k = 0.01}, 99), 8U) << "at least one";
  EXPECT_EQ(payload_bytes_max({.kind = PartKind::kRandomk, .k = 7}, 1000), 28U);
  EXPECT_EQ(payload_bytes_max({.kind = PartKind::kDithering, .k = 4}, 1000), 8U + 500);
  Prng prng(1);
  for (const PartCodec& codec : kCodecs) {
    for (const std::size_t count : {2, 31, 32, 33, 1000}) {
      Part part(codec, count);
      const Bytes payload = part.encode(drawn(prng, count));
      if (codec.kind == PartKind::kDithering) {
        EXPECT_LE(payload.size(), payload_bytes_max(codec, count)) << said(codec);
      } else {
        EXPECT_EQ(payload.size(), payload_bytes_max(codec, count)) << said(codec);
      }
    }
  }
}

TEST(PartCoding, onebit_keeps_signs_first_element_highest_and_the_mean_magnitude) {
  Part part({.kind = PartKind::kOnebit, .scaling = true}, 5);
  const Floats elements = {-1, 2, -0.0F, 0, -4.5F};
  EXPECT_THAT(words_of(part.encode(elements)),
              ElementsAre(0x88000000, std::bit_cast<std::uint32_t>(1.5F)));
  EXPECT_EQ(part.pass(elements), (Floats{-1.5F, 1.5F, 1.5F, 1.5F, -1.5F}));
  part.codec.scaling = false;
  EXPECT_EQ(part.pass(elements), (Floats{-1, 1, 1, 1, -1}));
}

TEST(PartCoding, onebit_has_its_scale_in_double) {
  constexpr std::size_t kCount = (1 << 22) + 3;  // a float sum would stop at 2^24 steps of 0.1
  Part part({.kind = PartKind::kOnebit, .scaling = true}, kCount);
  EXPECT_EQ(part.pass(Floats(kCount, 0.1F)).back(), 0.1F);
}

TEST(PartCoding, topk_sends_the_largest_and_of_equal_ones_the_first) {
  Part part({.kind = PartKind::kTopk, .k = 3}, 8);
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
    Part part({.kind = PartKind::kTopk, .k = static_cast<double>(1 + prng.below(count / 2))},
              count);
    const std::size_t k = sent_elements(part.codec, count);
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
  Part part({.kind = PartKind::kRandomk, .k = 4, .seed = 0, .error_feedback = true},
            4);  // zeros only
  Floats sums(4, 10);
  const Bytes payload = part.encode({1, 2, 3, 4});
  EXPECT_THAT(part.add(sums, payload), IsNull());
  EXPECT_EQ(sums, (Floats{11, 10, 10, 10}));
  EXPECT_EQ(part.state.residual, (Floats{0, 2, 3, 4}));
}

TEST(PartCoding, numbers_of_a_seed_are_those_of_xorshift128_plus) {
  std::uint64_t numbers[4] = {};
  PartDraws draws = PartDraws::seeded(1);
  draws.fill({numbers, 2});
  draws.fill({numbers + 2, 2});
  EXPECT_THAT(numbers, ElementsAre(8388673, 8388673, 70368752570370, 140737497800769));
  PartDraws zero = PartDraws::seeded(0);
  zero.fill(numbers);
  EXPECT_THAT(numbers, Each(0U));
}

TEST(PartCoding, without_a_seed_randomk_ignores_the_rank_and_dithering_does_not) {
  PartPlace other = kPlace;
  other.rank = 6;
  Prng prng(2);
  const Floats elements = drawn(prng, 500);
  for (const PartCodec& codec : {PartCodec{.kind = PartKind::kRandomk, .k = 50},
                                 PartCodec{.kind = PartKind::kDithering, .k = 3}}) {
    Part one(codec, elements.size());
    Part two(codec, elements.size(), other);
    Part third(codec, elements.size(), {kPlace.key, PartIndex(3), kPlace.rank});
    const Bytes first = one.encode(elements);
    EXPECT_EQ(first == two.encode(elements), codec.kind == PartKind::kRandomk);
    EXPECT_NE(first, third.encode(elements)) << "another part";
    EXPECT_NE(first, one.encode(elements)) << "another round";
  }
}

TEST(PartCoding, dithering_is_right_on_average) {
  for (const bool natural : {false, true}) {
    for (const bool l2 : {false, true}) {
      Part part({.kind = PartKind::kDithering, .k = 3, .natural = natural, .l2 = l2}, 6);
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

TEST(PartCoding, dithering_takes_the_shorter_form) {
  Part few({.kind = PartKind::kDithering, .k = 100}, 10000);
  Floats sparse(10000, 0);
  sparse[0] = 1;
  sparse[9999] = -1;
  EXPECT_EQ(few.encode(sparse).size(), 8U + 8) << "1 + 1 + 11 bits, then 20 + 1 + 11";
  Part many({.kind = PartKind::kDithering, .k = 100}, 10000);
  const Bytes packed = many.encode(Floats(10000, 1));
  EXPECT_EQ(packed.size(), 8U + 10000);
  EXPECT_EQ(words_of(packed)[1], 0xffffffffU);
  EXPECT_THAT(many.pass(Floats(10000, -1)), Each(-1.0F));
}

TEST(PartCoding, zeros_become_zeros) {
  for (PartCodec codec : kCodecs) {
    if (codec.kind == PartKind::kOnebit && !codec.scaling) continue;
    codec.error_feedback = true;
    Part part(codec, 100);
    EXPECT_THAT(part.pass(Floats(100, 0)), Each(0.0F)) << said(codec);
    EXPECT_THAT(part.state.residual, Each(0.0F)) << said(codec);
  }
}

TEST(PartCoding, the_largest_and_smallest_numbers_stay_finite) {
  for (PartCodec codec : kCodecs) {
    codec.error_feedback = true;
    for (const float large : {kMax, 1e-45F, 1e-38F}) {
      Part part(codec, 64);
      Floats elements(64, -large);
      elements[3] = large / 2;
      for (const float each : part.pass(elements)) EXPECT_TRUE(std::isfinite(each)) << said(codec);
      for (const float each : part.state.residual) EXPECT_TRUE(std::isfinite(each)) << said(codec);
    }
  }
}

TEST(PartCoding, what_is_not_finite_becomes_nan_and_changes_no_state) {
  for (PartCodec codec : kCodecs) {
    codec.error_feedback = true;
    codec.momentum = 0.5F;
    for (const float odd : {kNan, kInfinity, -kInfinity}) {
      Part part(codec, 100);
      Prng prng(3);
      const Floats elements = drawn(prng, 100);
      part.pass(elements, 0.1);
      const PartState before = part.state;
      Floats broken = elements;
      broken[99] = odd;
      const Floats decoded = part.pass(broken, 0.2);
      if (codec.kind == PartKind::kOnebit || codec.kind == PartKind::kDithering) {
        for (const float each : decoded) EXPECT_TRUE(std::isnan(each)) << said(codec);
      } else {
        float sum = 0;
        for (const float each : decoded) sum += each;
        EXPECT_TRUE(std::isnan(sum)) << said(codec);
      }
      EXPECT_EQ(part.state.residual, before.residual) << said(codec);
      EXPECT_EQ(part.state.momentum, before.momentum) << said(codec);
      EXPECT_EQ(part.state.learning_rate, before.learning_rate) << said(codec);
    }
  }
}

TEST(PartCoding, error_feedback_and_momentum_are_as_in_a_hand_counted_round) {
  Part part({.kind = PartKind::kTopk, .k = 1, .error_feedback = true, .momentum = 0.5F}, 2);
  // m = 1, 4; x = 1.5, 6.
  EXPECT_EQ(part.pass({1, 4}, 0.2), (Floats{0, 6}));
  EXPECT_EQ(part.state.residual, (Floats{1.5F, 0}));
  // m = 1.5, 2; x = 1.75, 1; + 1.5 * 2 with half the learning rate.
  EXPECT_EQ(part.pass({1, 0}, 0.1), (Floats{4.75F, 0}));
  EXPECT_EQ(part.state.residual, (Floats{0, 1}));
  EXPECT_EQ(part.state.momentum, (Floats{1.5F, 2}));
}

TEST(PartCoding, residuals_bring_in_time_what_codes_leave_out) {
  const Floats elements = {1, 0.01F, 0.002F, -0.03F};
  for (PartCodec codec : kCodecs) {
    if (codec.seed == 0U || (codec.kind == PartKind::kOnebit && !codec.scaling)) continue;
    codec.error_feedback = true;
    Part part(codec, elements.size());
    std::vector<double> sums(elements.size(), 0);
    constexpr int kRounds = 3000;
    for (int round = 0; round < kRounds; ++round) {
      const Floats decoded = part.pass(elements);
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += decoded[i];
    }
    for (std::size_t i = 0; i < sums.size(); ++i) {
      EXPECT_NEAR(sums[i] / kRounds, elements[i], 4e-3) << said(codec);
    }
  }
}

TEST(PartCoding, a_state_that_was_saved_goes_on_as_the_other) {
  for (PartCodec codec : kCodecs) {
    codec.error_feedback = true;
    codec.momentum = 0.9F;
    Prng prng(8);
    Part part(codec, 90);
    for (int round = 0; round < 3; ++round) part.encode(drawn(prng, 90), 0.1);
    Part saved(codec, 90);
    saved.round = part.round;
    if (codec.seed.has_value()) saved.state.draws = PartDraws::restored(part.state.draws.saved());
    saved.state.residual = part.state.residual;
    saved.state.momentum = part.state.momentum;
    saved.state.learning_rate = part.state.learning_rate;
    const Floats elements = drawn(prng, 90);
    EXPECT_EQ(part.encode(elements, 0.05), saved.encode(elements, 0.05)) << said(codec);
  }
}

TEST(PartCoding, what_is_added_is_what_is_decoded) {
  Prng prng(6);
  for (const PartCodec& codec : kCodecs) {
    for (const std::size_t count : {2U, 33U, 1000U}) {
      Part part(codec, count);
      const Bytes payload = part.encode(drawn(prng, count));
      Floats decoded(count);
      Floats sums = drawn(prng, count);
      Floats expected = sums;
      ASSERT_THAT(part.decode(decoded, payload), IsNull());
      ASSERT_THAT(part.add(sums, payload), IsNull());
      for (std::size_t i = 0; i < count; ++i) expected[i] += decoded[i];
      EXPECT_EQ(sums, expected) << said(codec);
    }
  }
}

TEST(PartCoding, a_part_may_begin_at_any_byte) {
  Prng prng(12);
  const Floats elements = drawn(prng, 100);
  for (const PartCodec& codec : kCodecs) {
    Part aligned(codec, 100);
    Part odd(codec, 100);
    const Bytes expected = aligned.encode(elements);
    Bytes input(401);
    Bytes payload(payload_bytes_max(codec, 100) + 1);
    Bytes output(401);
    std::memcpy(input.data() + 1, elements.data(), 400);
    const std::size_t bytes = encode(codec, odd.state, std::span(payload).subspan(1),
                                     std::span(input).subspan(1), Round(0));
    ASSERT_EQ(Bytes(payload.begin() + 1, payload.begin() + 1 + static_cast<std::ptrdiff_t>(bytes)),
              expected);
    ASSERT_THAT(decode(codec, std::span(output).subspan(1), std::span(payload).subspan(1, bytes),
                       odd.state.drawn),
                IsNull());
    Floats decoded(100);
    Floats from_odd(100);
    ASSERT_THAT(aligned.decode(decoded, expected), IsNull());
    std::memcpy(from_odd.data(), output.data() + 1, 400);
    EXPECT_EQ(from_odd, decoded) << said(codec);
  }
}

// ---- bits

TEST(PartBits, delta_codes_of_all_sizes_are_read_again) {
  std::vector<Triple> triples;
  for (std::uint32_t bits = 0; bits < 32; ++bits) {
    for (const std::uint32_t number : {1U << bits, (1U << bits) + 1, (2U << bits) - 1}) {
      if (number == 0) continue;
      triples.push_back({number, 1, 0});
      triples.push_back({3, number, kSignBit});
    }
  }
  Bytes words(triples.size() * 4 * 4);
  BitWriter writer(words.data(), words.size() / 4);
  for (const Triple& each : triples) ASSERT_TRUE(writer.put(each));
  const std::size_t written = writer.finish();
  BitReader reader(words.data(), written);
  for (const Triple& each : triples) {
    const Triple again = reader.take_triple();
    ASSERT_EQ(again.distance, each.distance);
    ASSERT_EQ(again.level, each.level);
    ASSERT_EQ(again.sign, each.sign);
  }
  EXPECT_FALSE(reader.ran_out());
  EXPECT_FALSE(reader.has_words_left());
}

TEST(PartBits, a_writer_ends_where_its_room_ends) {
  Bytes words(8, std::byte{0x5a});
  BitWriter writer(words.data(), 1);
  EXPECT_TRUE(writer.put(5, 30));
  EXPECT_FALSE(writer.put(1, 3));
  EXPECT_TRUE(writer.put(3, 2));
  EXPECT_EQ(writer.finish(), 1U);
  EXPECT_THAT(words_of(words), ElementsAre(23, 0x5a5a5a5a));
}

// ---- payloads of strangers

// The elements are a heap block of their size, and the payload is one. A flaw adds nothing.
void try_payload(const Part& part, const Bytes& payload) {
  Floats decoded(part.count, 1);
  Floats sums(part.count, 1);
  const char* const flaw = part.add(sums, payload);
  const char* const same = part.decode(decoded, payload);
  ASSERT_STREQ(flaw, same) << said(part.codec);
  if (flaw != nullptr) {
    ASSERT_THAT(sums, Each(1.0F)) << said(part.codec);
  }
}

TEST(PartCoding, payloads_of_another_length_are_refused) {
  Prng prng(9);
  for (const PartCodec& codec : kCodecs) {
    Part part(codec, 100);
    Bytes payload = part.encode(drawn(prng, 100));
    for (const std::size_t bytes : {payload.size() - 1, payload.size() - 4, payload.size() + 1,
                                    payload.size() + 4, std::size_t{0}, std::size_t{7}}) {
      Bytes other = payload;
      other.resize(bytes);
      Floats elements(100);
      EXPECT_NE(part.add(elements, other), nullptr)
          << said(codec) << ", " << bytes << " of " << payload.size();
      try_payload(part, other);
    }
  }
}

TEST(PartCoding, indices_of_topk_must_rise_and_be_of_the_part) {
  const Part part({.kind = PartKind::kTopk, .k = 2}, 10);
  const auto flaw = [&](std::uint32_t first, std::uint32_t second) {
    const std::uint32_t words[] = {first, 0x3f800000, second, 0x3f800000};
    Bytes payload(sizeof words);
    std::memcpy(payload.data(), words, sizeof words);
    Floats elements(10, 1);
    const char* const text = part.add(elements, payload);
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
  for (const PartCodec& codec : kCodecs) {
    for (int run = 0; run < 3000; ++run) {
      const std::size_t count = 2 + prng.below(80);
      if (!fits(codec, count)) continue;
      const Part part(codec, count);
      const std::size_t most = payload_bytes_max(codec, count);
      Bytes payload(prng.chance(0.7) ? most : prng.below(most / 4 + 8) * 4);
      const int zeros = static_cast<int>(prng.below(4));  // long codes begin with zeros
      for (std::byte& each : payload) {
        each = static_cast<std::byte>(
            prng.below(4) < static_cast<std::uint64_t>(zeros) ? 0 : prng.below(256));
      }
      if (codec.kind == PartKind::kDithering && payload.size() >= 8) {
        const float norm = 1;
        const auto above_zero =
            static_cast<std::uint32_t>(prng.chance(0.3) ? 0xffffffff : prng.below(count + 2));
        std::memcpy(payload.data(), &norm, sizeof norm);
        std::memcpy(payload.data() + 4, &above_zero, sizeof above_zero);
      }
      try_payload(part, payload);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(PartCoding, payloads_with_changed_bits_are_decoded_or_refused) {
  Prng prng(11);
  for (const PartCodec& codec : kCodecs) {
    for (int run = 0; run < 2000; ++run) {
      const std::size_t count = 10 + prng.below(200);
      Part part(codec, count);
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
