#include "net/wire_text.h"

#include <gtest/gtest.h>

namespace byteps {
namespace {

TEST(WireText, a_peers_error_is_an_error_whatever_code_it_has) {
  const auto number = [](Code code) { return static_cast<std::uint32_t>(code); };
  EXPECT_EQ(error_of({"gone", number(Code::kTimeout)}, Code::kMismatch).code(), Code::kTimeout);
  for (const std::uint32_t code : {number(Code::kOk), number(Code::kAgain), 9U, 0xffffffffU}) {
    EXPECT_EQ(error_of({"gone", code}, Code::kMismatch).code(), Code::kMismatch) << code;
  }
  EXPECT_EQ(error_of({"a\x1b", 3}, Code::kMismatch).message(), "a?");
  EXPECT_EQ(error_of({"", 3}, Code::kMismatch).message(), "no reason was given");
}

TEST(WireText, every_kind_has_a_name_and_one_of_a_tensor_its_facts) {
  wire::Header header;
  header.kind = wire::Kind::kPush;
  header.epoch = Epoch(2);
  header.key = Key(0x1a2b'0000'0000'0000);
  header.round = Round(7);
  EXPECT_EQ(header_text(header), "Push, epoch 2, key 1a2b, part 0, round 7, offset 0, landing 0");
  header.kind = wire::Kind::kBarrier;
  EXPECT_EQ(header_text(header), "Barrier, epoch 2");
}

}  // namespace
}  // namespace byteps
