#include "member/connection_end.h"

#include "gtest/gtest.h"

namespace byteps {
namespace {

const Participant& server_1() {
  static const Participant kServer{.role = Role::kServer, .rank = 1, .host = "there:7"};
  return kServer;
}

Cause cause_of(const Status& why) {
  return cause_of_end(why, CauseKind::kUnreachable, server_1(), 3 * kSecond);
}

TEST(ConnectionEnd, is_about_the_peer_when_nothing_else_is_known) {
  const Cause cause = cause_of({Code::kDisconnected, "connection refused"});
  Cause expected;
  expected.kind = CauseKind::kUnreachable;
  expected.who = server_1();
  expected.for_ns = 3 * kSecond;
  expected.detail = "connection refused";
  EXPECT_EQ(cause, expected);
}

TEST(ConnectionEnd, is_about_whoever_has_run_out_of_something) {
  for (const CauseKind kind : {CauseKind::kNoDescriptors, CauseKind::kNoMemory}) {
    for (const bool is_of_peer : {true, false}) {
      const Cause cause =
          cause_of({Code::kSystem, "socket", {.kind = kind, .is_of_peer = is_of_peer}});
      EXPECT_EQ(cause.kind, kind);
      EXPECT_EQ(cause.who, is_of_peer ? server_1() : Participant());
      EXPECT_FALSE(cause.is_of_peer) << "that is said in `who`";
    }
  }
}

TEST(ConnectionEnd, is_damage_when_bytes_of_the_peer_were_damaged) {
  const Cause cause =
      cause_of({Code::kDisconnected, "CRC32C differs", {.kind = CauseKind::kDamaged}});
  EXPECT_EQ(cause.kind, CauseKind::kDamaged);
  EXPECT_EQ(cause.who, server_1());
}

// "has been gone", in the words of a peer, is a text like any other.
TEST(ConnectionEnd, goes_by_no_text) {
  const Cause cause = cause_of({Code::kSystem, "socket: Too many open files, out of memory"});
  EXPECT_EQ(cause.kind, CauseKind::kUnreachable);
  EXPECT_EQ(cause.who, server_1());
}

}  // namespace
}  // namespace byteps
