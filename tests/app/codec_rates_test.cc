#include "app/codec_rates.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace byteps {
namespace {

// Each look a microsecond later: a step takes one.
TimeNs ticking() {
  static TimeNs now = 0;
  return now += kMicrosecond;
}

TEST(CodecRates, each_format_is_measured_and_only_codes_have_a_residual) {
  const std::vector<CodecRates> all = measure_codecs(best_kernels(), ticking, 10 * kMicrosecond);
  ASSERT_EQ(all.size(), 4U) << "those that have a codec depend on it";
  for (const CodecRates& each : all) {
    EXPECT_DOUBLE_EQ(each.encode, 262.144) << name(each.format);
    EXPECT_DOUBLE_EQ(each.decode_add, 262.144);
    EXPECT_DOUBLE_EQ(each.encode_with_residual, has_residual(each.format) ? 262.144 : 0);
  }
}

TEST(CodecRates, are_a_line_for_programs) {
  EXPECT_EQ(
      text(
          {.format = Format::kInt4, .encode = 12.345, .encode_with_residual = 6, .decode_add = 20}),
      "int4 encode 12.35 encode_with_residual 6.00 decode_add 20.00 payload 0.1406");
}

}  // namespace
}  // namespace byteps
