#include "base/codec.h"

#include <limits>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace byteps {
namespace {

using testing::HasSubstr;

std::string flaw(Format format, const Codec& codec) {
  const char* const text = flaw_of_codec(format, codec);
  return text == nullptr ? "" : text;
}

TEST(Codec, what_cannot_be_is_said) {
  EXPECT_EQ(flaw(Format::kOnebit, {.scaling = true, .error_feedback = true}), "");
  EXPECT_EQ(flaw(Format::kTopk, {.k = 0.5}), "");
  EXPECT_EQ(flaw(Format::kTopk, {.k = 1e300}), "");
  EXPECT_EQ(flaw(Format::kRandomk, {.k = 0.99, .seed = 0}), "");
  EXPECT_EQ(flaw(Format::kDithering, {.k = 1 << 23, .seed = 1, .l2 = true}), "");
  EXPECT_EQ(flaw(Format::kFloat32, {.momentum = 0.0}), "");
  EXPECT_EQ(flaw(Format::kInt8, {}), "");
  EXPECT_THAT(flaw(Format::kTopk, {.k = 0.51}), HasSubstr("at most half"));
  EXPECT_THAT(flaw(Format::kDithering, {.k = 0.5}), HasSubstr("levels"));
  EXPECT_THAT(flaw(Format::kDithering, {.k = 1e9}), HasSubstr("8388608"));
  EXPECT_THAT(flaw(Format::kDithering, {.k = 25, .natural = true}), HasSubstr("24"));
  EXPECT_THAT(flaw(Format::kOnebit, {.k = 1}), HasSubstr("k is for"));
  EXPECT_THAT(flaw(Format::kOnebit, {.seed = 1}), HasSubstr("seed"));
  EXPECT_THAT(flaw(Format::kTopk, {.k = 1, .scaling = true}), HasSubstr("onebit"));
  EXPECT_THAT(flaw(Format::kRandomk, {.k = 1, .l2 = true}), HasSubstr("dithering"));
  EXPECT_THAT(flaw(Format::kFloat32, {.error_feedback = true}), HasSubstr("nothing"));
  EXPECT_THAT(flaw(Format::kInt8, {.momentum = 0.9}), HasSubstr("momentum"));
  EXPECT_THAT(flaw(Format::kPlain, {.k = 1}), HasSubstr("only"));
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  for (const double k : {0.0, -1.0, 2.5, kNan, std::numeric_limits<double>::infinity()}) {
    for (const Format format : {Format::kTopk, Format::kRandomk, Format::kDithering}) {
      EXPECT_NE(flaw(format, {.k = k}), "") << k;
    }
  }
  for (const double mu : {1.0, 0.999999999, -0.1, kNan}) {
    EXPECT_THAT(flaw(Format::kOnebit, {.momentum = mu}), HasSubstr("momentum"));
  }
}

TEST(Codec, is_said_in_words) {
  EXPECT_EQ(Codec().text(), "");
  EXPECT_EQ(Codec{.k = 0.01}.text(), " with k = 0.01");
  EXPECT_EQ((Codec{.scaling = true, .error_feedback = true}.text()),
            " with scaling and error feedback");
  EXPECT_EQ((Codec{.k = 4, .seed = 7, .natural = true, .l2 = true, .momentum = 0.9}.text()),
            " with k = 4, natural levels, the l2 norm, seed 7 and momentum 0.9");
}

TEST(Codec, payloads_have_a_length_that_follows_from_the_number_of_elements) {
  EXPECT_EQ(payload_bytes(Format::kOnebit, {}, 0), 0U);
  EXPECT_EQ(payload_bytes(Format::kOnebit, {}, 1), 8U);
  EXPECT_EQ(payload_bytes(Format::kOnebit, {}, 32), 8U);
  EXPECT_EQ(payload_bytes(Format::kOnebit, {}, 33), 12U);
  EXPECT_EQ(payload_bytes(Format::kTopk, {.k = 0.01}, 1000), 80U);
  EXPECT_EQ(payload_bytes(Format::kTopk, {.k = 0.01}, 99), 8U) << "at least one";
  EXPECT_EQ(payload_bytes(Format::kTopk, {.k = 1e300}, 99), 49U * 8) << "at most half";
  EXPECT_EQ(payload_bytes(Format::kRandomk, {.k = 7}, 1000), 28U);
  EXPECT_EQ(payload_bytes(Format::kRandomk, {.k = 7}, 3), 16U) << "all, and not their length";
  EXPECT_EQ(payload_bytes(Format::kDithering, {.k = 4}, 1000), 4U + 500);
  EXPECT_EQ(payload_bytes(Format::kDithering, {.k = 1 << 23}, 1000), 4U + 3128);
  EXPECT_EQ(payload_bytes(Format::kFloat32, {}, 1000), 4000U);
  EXPECT_EQ(payload_bytes(Format::kInt8, {}, 1000), 1016U);
}

TEST(Codec, no_payload_of_a_part_has_the_length_of_its_elements_or_more_than_a_message) {
  for (const Codec& codec :
       {Codec{.k = 0.5}, Codec{.k = 1}, Codec{.k = 32767}, Codec{.k = 1 << 23}}) {
    for (const Format format :
         {Format::kOnebit, Format::kTopk, Format::kRandomk, Format::kDithering}) {
      if (format != Format::kRandomk && format != Format::kTopk && codec.k < 1) continue;
      for (std::uint64_t count = 1; count < 3000; ++count) {
        ASSERT_NE(payload_bytes(format, codec, count), 4 * count) << name(format) << codec.text();
      }
      if (format == Format::kRandomk && codec.k >= kPartElementsMax) continue;
      ASSERT_LE(payload_bytes(format, codec, kPartElementsMax), kPayloadBytesMax)
          << name(format) << codec.text();
    }
  }
}

}  // namespace
}  // namespace byteps
