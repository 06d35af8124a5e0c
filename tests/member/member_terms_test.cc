// What a member does when its scheduler is lost, and another one is begun anew.
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "member/member.h"
#include "tests/base/only.h"
#include "tests/member/joins.h"

namespace byteps {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Kind = wire::Kind;

constexpr std::byte kFirst{1};
constexpr std::byte kSecond_{2};

Config recovering_job() {
  Config config = small_job();
  config.recovers = true;
  config.timeout.recovery_ns = 20 * kSecond;
  return config;
}

wire::Roster roster_of(std::uint32_t epoch, std::uint32_t revision, bool recovers = true) {
  wire::Roster roster;
  roster.epoch = Epoch(epoch);
  roster.revision = revision;
  roster.partition_bytes = 6400;
  roster.frame_bytes = 640;
  roster.members = {{Role::kWorker, 0, "alpha:10", {}},
                    {Role::kWorker, 1, "beta:11", {}},
                    {Role::kServer, 0, "gamma:12", {{"10.0.0.2", 4000}}}};
  roster.slots = {{.server = 0, .shard = 0, .weight = 256}};
  roster.recovers = recovers;
  if (recovers) roster.incarnation[0] = kFirst;
  return roster;
}

// A member in epoch 1 of a job that recovers, whose network grants what it wants.
class MemberOfTerms : public ::testing::Test {
 protected:
  explicit MemberOfTerms(const wire::Join& join = worker_join(1, "beta:11"))
      : member_(join, recovering_job()) {
    meet(kFirst);
    say(Kind::kRoster, wire::encode(roster_of(1, 0)), 1);
    forget();
  }

  void meet(std::byte incarnation) {
    now_ += kSecond;  // until the next attempt
    tick();
    Hello hello;
    hello.role = Role::kScheduler;
    hello.incarnation[0] = incarnation;
    member_.on_up(hello, now_, out_);
  }
  void tick() {
    member_.tick(now_, out_);
    for (const auto& wanted : only<MemberOutput::Connect>(std::exchange(out_, keep()))) {
      member_.on_connecting(PeerId(next_peer_++), now_, out_);
      (void)wanted;
    }
  }
  void pass(TimeNs duration) {
    for (TimeNs left = duration; left > 0; left -= 50 * kMillisecond) {
      now_ += 50 * kMillisecond;
      tick();
      if (is_refused_ && member_.peer()) down();
    }
  }
  void say(Kind kind, const std::vector<std::byte>& payload, std::uint32_t term) {
    wire::Header header;
    header.kind = kind;
    header.epoch = Epoch(1);
    header.round = Round(term);
    header.worker = WorkerRank(1);
    member_.on_message(header, payload, now_, out_);
  }
  void down() { member_.on_down({Code::kDisconnected, "connection refused"}, now_, out_); }
  std::vector<MemberOutput::Send> sent(Kind kind) const {
    std::vector<MemberOutput::Send> found;
    for (MemberOutput::Send& message : only<MemberOutput::Send>(out_)) {
      if (message.header.kind == kind) found.push_back(std::move(message));
    }
    return found;
  }
  wire::Join::Heard heard() const {
    return wire::decode_join(sent(Kind::kJoin).back().payload).value().heard;
  }
  std::vector<std::string> notices() const {
    std::vector<std::string> texts;
    for (const auto& notice : only<MemberOutput::Notice>(out_)) texts.push_back(notice.text);
    return texts;
  }
  void forget() { out_.clear(); }

  Member member_;
  TimeNs now_ = 500 * kSecond;
  bool is_refused_ = false;
  MemberOutputs out_;

 private:
  // All that has happened but attempts, which are granted once.
  MemberOutputs keep() const {
    MemberOutputs kept;
    for (const auto& output : out_) {
      if (!std::holds_alternative<MemberOutput::Connect>(output)) kept.push_back(output);
    }
    return kept;
  }
  std::uint32_t next_peer_ = 1;
};

TEST_F(MemberOfTerms,
       it_goes_on_without_the_scheduler_says_so_and_ends_when_it_has_waited_long_enough) {
  is_refused_ = true;
  down();
  pass(19 * kSecond);
  EXPECT_FALSE(member_.done());
  ASSERT_THAT(notices(), SizeIs(2)) << "soon, and every 10 s";
  EXPECT_THAT(notices()[0],
              AllOf(HasSubstr("scheduler at 10.0.0.9:9000 is lost since"),
                    HasSubstr("connection refused"), HasSubstr("goes on without it")));
  pass(2 * kSecond);
  const auto failed = only<MemberOutput::Failed>(out_);
  ASSERT_THAT(failed, SizeIs(1));
  EXPECT_THAT(failed[0].why.message(), AllOf(HasSubstr("scheduler at 10.0.0.9:9000"),
                                             HasSubstr("BYTEPS_RECOVERY_TIMEOUT_S")));
}

TEST_F(MemberOfTerms, one_that_was_begun_anew_is_told_what_the_former_one_has_said) {
  member_.barrier(now_, out_);
  say(Kind::kBarrierDone, wire::encode(wire::Barrier{0}), 1);
  say(Kind::kLeave, wire::encode(wire::Leave{false, Members(std::vector{0U}), 1}), 1);
  EXPECT_THAT(sent(Kind::kLeave), SizeIs(1)) << "that it knows who leaves";
  member_.barrier(now_, out_);
  down();
  pass(kSecond);
  forget();
  meet(kSecond_);
  EXPECT_EQ(heard().term, 1U);
  EXPECT_EQ(heard().epoch, Epoch(1));
  EXPECT_EQ(heard().barriers, 1U);
  EXPECT_THAT(heard().left_for_a_while, testing::ElementsAre(0U));
  EXPECT_THAT(sent(Kind::kBarrier), IsEmpty()) << "it does not know the job yet";
  say(Kind::kRecall, {}, 2);
  ASSERT_THAT(sent(Kind::kRoster), SizeIs(1));
  EXPECT_EQ(sent(Kind::kRoster)[0].payload, wire::encode(roster_of(1, 0)));
  say(Kind::kRoster, wire::encode(roster_of(1, 0)), 2);
  ASSERT_THAT(sent(Kind::kBarrier), SizeIs(1));
  EXPECT_THAT(only<MemberOutput::Amended>(out_), IsEmpty()) << "nothing has changed";
  EXPECT_THAT(only<MemberOutput::Began>(out_), IsEmpty());
  say(Kind::kBarrierDone, wire::encode(wire::Barrier{1}), 2);
  EXPECT_THAT(only<MemberOutput::BarrierDone>(out_), SizeIs(1));
}

TEST_F(MemberOfTerms, a_scheduler_of_a_lower_term_is_not_heard_any_more) {
  down();
  meet(kSecond_);
  say(Kind::kRoster, wire::encode(roster_of(1, 0)), 2);
  down();
  meet(kFirst);
  forget();
  say(Kind::kFail, wire::encode(wire::Text{"worker 0 is gone", 1}), 1);
  EXPECT_FALSE(member_.done());
  EXPECT_THAT(only<MemberOutput::Close>(out_), SizeIs(1));
}

TEST_F(MemberOfTerms, a_revision_of_the_next_scheduler_counts_and_is_told_to_the_one_after_it) {
  down();
  meet(kSecond_);
  say(Kind::kRoster, wire::encode(roster_of(1, 1500)), 2);
  EXPECT_THAT(only<MemberOutput::Amended>(out_), SizeIs(1));
  down();
  forget();
  meet(std::byte{3});
  EXPECT_EQ(heard().term, 2U);
  EXPECT_EQ(heard().revision, 1500U);
}

TEST_F(MemberOfTerms, that_a_scheduler_has_a_successor_is_told_once_and_when_that_knows_the_job) {
  down();
  meet(kSecond_);
  EXPECT_THAT(only<MemberOutput::Succeeded>(out_), IsEmpty());
  now_ += 3 * kSecond;
  say(Kind::kRoster, wire::encode(roster_of(1, 0)), 2);
  say(Kind::kRoster, wire::encode(roster_of(1, 0)), 2);
  const auto told = only<MemberOutput::Succeeded>(out_);
  ASSERT_THAT(told, SizeIs(1));
  EXPECT_EQ(told[0].term, 2U);
  EXPECT_EQ(told[0].text,
            "scheduler at 10.0.0.9:9000 was lost (connection refused); started anew, it had the "
            "job again 3 s later (term 2)")
      << "less what was a pause of its own";
  forget();
  down();
  meet(kSecond_);
  say(Kind::kRoster, wire::encode(roster_of(1, 0)), 2);
  EXPECT_THAT(only<MemberOutput::Succeeded>(out_), IsEmpty()) << "it was there all the time";
}

TEST_F(MemberOfTerms, who_leaves_waits_for_the_scheduler_that_is_away_and_then_goes_well) {
  is_refused_ = true;
  down();
  member_.leave(true, now_, out_);
  pass(10 * kSecond);
  EXPECT_FALSE(member_.done());
  pass(11 * kSecond);
  EXPECT_THAT(only<MemberOutput::Left>(out_), SizeIs(1));
}

TEST_F(MemberOfTerms, who_leaves_says_so_at_once_to_one_that_was_begun_anew) {
  member_.leave(true, now_, out_);
  down();
  forget();
  meet(kSecond_);
  EXPECT_THAT(sent(Kind::kLeave), SizeIs(1));
  say(Kind::kLeave, wire::encode(wire::Leave{true}), 2);
  EXPECT_THAT(only<MemberOutput::Left>(out_), SizeIs(1));
}

}  // namespace
}  // namespace byteps
