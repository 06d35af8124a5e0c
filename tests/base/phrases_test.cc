#include "base/phrases.h"

#include <gtest/gtest.h>

namespace byteps {
namespace {

TEST(Phrases, a_strangers_text_is_utf8_without_control_characters) {
  EXPECT_EQ(printable("tab\there, \x1b[2J and \x7f", 64), "tab?here, ?[2J and ?");
  EXPECT_EQ(printable("gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80", 64),
            "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80");
  EXPECT_EQ(printable("\xc2\x9b"
                      "2J, a control sequence of one character",
                      64),
            "?2J, a control sequence of one character");
  EXPECT_EQ(printable("\xff\xfe", 64), "??") << "bytes that no text has";
  EXPECT_EQ(printable("\xc3", 64), "?") << "half a character";
  EXPECT_EQ(printable("\xe2\x82z", 64), "??z");
  EXPECT_EQ(printable("\xc0\xaf \xe0\x80\xaf \xf0\x80\x80\xaf", 64), "?? ??? ????") << "overlong";
  EXPECT_EQ(printable("\xed\xa0\x80", 64), "???") << "a surrogate";
  EXPECT_EQ(printable("\xf4\x90\x80\x80 \xf5\x80\x80\x80", 64), "???? ????") << "above U+10FFFF";
}

TEST(Phrases, a_strangers_text_is_cut_between_characters) {
  EXPECT_EQ(printable("123456", 6), "123456");
  EXPECT_EQ(printable("1234567", 6), "123...");
  EXPECT_EQ(printable("12\xc3\xbc"
                      "567",
                      6),
            "12...");
  EXPECT_EQ(printable("1234567", 2), "...");
}

}  // namespace
}  // namespace byteps
