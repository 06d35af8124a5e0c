#include "base/quiet_lines.h"

#include <gtest/gtest.h>

namespace byteps {
namespace {

TEST(QuietLines, each_kind_has_one_line_a_minute_that_counts_the_others) {
  QuietLines<2> lines;
  TimeNs now = 5 * kSecond;
  EXPECT_EQ(lines.pass(0, now, "a"), "a");
  EXPECT_EQ(lines.pass(0, now, "b"), std::nullopt);
  EXPECT_EQ(lines.pass(1, now, "c"), "c") << "another kind";
  now += QuietLines<2>::kEveryNs - 1;
  EXPECT_EQ(lines.pass(0, now, "d"), std::nullopt);
  EXPECT_EQ(lines.pass(0, now + 1, "e"), "e (and 2 more like this since the last such line)");
  EXPECT_EQ(lines.pass(0, now + 1 + QuietLines<2>::kEveryNs, "f"), "f");
}

}  // namespace
}  // namespace byteps
