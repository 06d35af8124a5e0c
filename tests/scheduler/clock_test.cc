// A member and a keeper whose clocks differ: the member learns by how much.
#include <gtest/gtest.h>

#include "tests/base/only.h"
#include "tests/scheduler/table.h"

namespace byteps {
namespace {

using Kind = wire::Kind;
constexpr TimeNs kMemberZero = 5 * kSecond;

class ClockTest : public testing::Test {
 protected:
  // What the member sends at its time.
  std::vector<std::byte> question_at(TimeNs now) {
    now_ = now;
    MemberOutputs out;
    member_.tick(now, out);
    for (const MemberOutput::Send& message : only<MemberOutput::Send>(out)) {
      if (message.header.kind == Kind::kHeartbeat) return message.payload;
    }
    ADD_FAILURE() << "no heartbeat";
    return {};
  }
  void hear(TimeNs now, std::span<const std::byte> payload) {
    now_ = now;
    MemberOutputs out;
    wire::Header header;
    header.kind = Kind::kHeartbeat;
    member_.on_message(header, payload, now, out);
    closed_ = !only<MemberOutput::Close>(out).empty();
  }
  void connect() {
    MemberOutputs out;
    member_.tick(kMemberZero, out);
    member_.on_connecting(PeerId(1), kMemberZero, out);
    Hello scheduler;
    scheduler.role = Role::kScheduler;
    member_.on_up(scheduler, kMemberZero, out);
  }

  TimeNs now_ = kMemberZero;
  bool closed_ = false;
  Timeline timeline_{Round(0), Round(9), [this] { return now_; }};
  Member member_{worker_join(0, "alpha:10"), small_job(), &timeline_};
};

TEST_F(ClockTest, a_member_with_a_timeline_learns_the_offset_of_its_clock_from_its_heartbeats) {
  connect();
  Table table;
  const PeerId peer = table.join(worker_join(0, "alpha:10"));
  const TimeNs asked_ns = kMemberZero + kSecond;
  const std::vector<std::byte> question = question_at(asked_ns);
  EXPECT_EQ(wire::decode_heartbeat(question).value().sent_ns, static_cast<std::uint64_t>(asked_ns));

  table.say(peer, Kind::kHeartbeat, question);
  const auto answers = table.sent(peer, Kind::kHeartbeat);
  ASSERT_EQ(answers.size(), 1U) << "at once";
  hear(asked_ns + 2 * kMillisecond, answers[0].payload);
  const auto offset = timeline_.facts().offset;
  ASSERT_TRUE(offset);
  EXPECT_EQ(offset->offset_ns, table.now() - (asked_ns + kMillisecond));
  EXPECT_EQ(offset->error_ns, kMillisecond);
}

TEST_F(ClockTest, a_heartbeat_without_time_is_not_answered_and_teaches_nothing) {
  connect();
  Table table;
  const PeerId peer = table.join(worker_join(0, "alpha:10"));
  table.heartbeat(peer, 0);
  EXPECT_TRUE(table.sent(peer, Kind::kHeartbeat).empty());
  hear(kMemberZero + kSecond, {});
  EXPECT_FALSE(timeline_.facts().offset);
  EXPECT_FALSE(closed_);
}

TEST_F(ClockTest, a_malformed_heartbeat_ends_the_connection_on_either_side) {
  connect();
  Table table;
  const PeerId peer = table.join(worker_join(0, "alpha:10"));
  const std::vector<std::byte> nonsense(3, std::byte{1});
  table.say(peer, Kind::kHeartbeat, nonsense);
  EXPECT_TRUE(table.closed(peer));
  hear(kMemberZero + kSecond, nonsense);
  EXPECT_TRUE(closed_);
}

TEST(Clock, a_member_without_a_timeline_does_not_ask) {
  Member member(worker_join(0, "alpha:10"), small_job());
  MemberOutputs out;
  member.tick(kMemberZero, out);
  member.on_connecting(PeerId(1), kMemberZero, out);
  Hello scheduler;
  scheduler.role = Role::kScheduler;
  member.on_up(scheduler, kMemberZero, out);
  out = {};
  member.tick(kMemberZero + kSecond, out);
  ASSERT_EQ(out.size(), 1U);
  const auto& question = std::get<MemberOutput::Send>(out[0]);
  EXPECT_EQ(question.header.kind, Kind::kHeartbeat);
  EXPECT_TRUE(question.payload.empty());
}

}  // namespace
}  // namespace byteps
