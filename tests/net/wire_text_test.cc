#include "net/wire_text.h"

#include <string>

#include <gtest/gtest.h>

#include "base/limits.h"

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

TEST(WireText, what_is_said_of_a_status_has_its_cause_and_is_harmless) {
  const Status why(Code::kDisconnected, "a\x1b",
                   {.kind = CauseKind::kUnreachable,
                    .who = {Role::kServer, 1, "b\x1b" + std::string(200, 'h')},
                    .for_ns = 7,
                    .detail = std::string(2000, 'd') + "\x1b",
                    .is_of_peer = true});
  const wire::Text said = text_of(why);
  EXPECT_EQ(said.text, "a?");
  EXPECT_EQ(said.code, static_cast<std::uint32_t>(Code::kDisconnected));
  EXPECT_EQ(said.cause.kind, CauseKind::kUnreachable);
  EXPECT_EQ(said.cause.who.host.size(), kHostTextBytesMax);
  EXPECT_EQ(said.cause.who.host.substr(0, 3), "b?h");
  EXPECT_EQ(said.cause.detail.size(), kDetailBytesMax);
  EXPECT_FALSE(said.cause.is_of_peer);
  const Result<wire::Text> heard = wire::decode_text(wire::encode(said));
  ASSERT_TRUE(heard.is_ok()) << heard.status().text();
  const Status again = error_of(heard.value(), Code::kMismatch);
  EXPECT_TRUE(again.is(Code::kDisconnected));
  EXPECT_EQ(again.cause(), said.cause);
}

TEST(WireText, words_of_a_peer_in_a_cause_are_made_harmless) {
  wire::Text text{"x", 4};
  text.cause = {.kind = CauseKind::kGone,
                .who = {Role::kWorker, 1, "a\x1b"},
                .told_by = {Role::kWorker, 2, "\xff"},
                .detail = "c\n"};
  const Cause cause = error_of(text, Code::kMismatch).cause();
  EXPECT_EQ(cause.who.host, "a?");
  EXPECT_EQ(cause.told_by.host, "?");
  EXPECT_EQ(cause.detail, "c?");
}

TEST(WireText, every_kind_has_a_name_and_one_of_a_tensor_its_facts) {
  wire::Header header;
  header.kind = wire::Kind::kPush;
  header.epoch = Epoch(2);
  header.key = Key(0x1a2b'0000'0000'0000);
  header.round = Round(7);
  EXPECT_EQ(header_text(header), "Push, epoch 2, key 1a2b, part 0, round 7, offset 0, tag 0");
  header.kind = wire::Kind::kBarrier;
  EXPECT_EQ(header_text(header), "Barrier, epoch 2");
}

}  // namespace
}  // namespace byteps
