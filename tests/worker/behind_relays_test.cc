// The pipeline of a worker whose machine sums first: its ways lead to the relays of the workers there.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/pipeline.h"

namespace byteps {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using wire::Kind;

constexpr TimeNs kDeparted = 3 * kSecond;

// Workers 0, 1 and 3 are on one machine; this is worker 0. Ways 0, 1 and 2 lead to their relays.
class BehindRelaysTest : public testing::Test {
 protected:
  BehindRelaysTest() : pipeline_(config(true)) { all_up(pipeline_); }
  static PipelineConfig config(bool has_relays) {
    PipelineConfig config{
        .self = WorkerRank(0), .epoch = Epoch(3), .placement = Placement(64, 64, {1, 1, 1})};
    config.departed_ns = kDeparted;
    if (has_relays) {
      config.groups = std::make_shared<const Groups>(std::vector<std::uint64_t>{1, 1, 2, 1});
    }
    return config;
  }
  static void all_up(Pipeline& pipeline) {
    for (std::uint32_t way = 0; way < 3; ++way) pipeline.on_shard_up(ShardIndex(way));
  }
  // A tensor of one part, which this worker leads.
  static std::string name_led_by(std::uint32_t rank, const Crew& crew) {
    for (int i = 0;; ++i) {
      std::string name = "t" + std::to_string(i);
      if (leader_of(crew, key_of(name), 0, 3) == WorkerRank(rank)) return name;
    }
  }
  static Crew machine() { return {WorkerRank(0), WorkerRank(1), WorkerRank(3)}; }
  void submit(const std::string& name, const Members& members = {}) {
    submit(pipeline_, name, members);
  }
  void submit(Pipeline& pipeline, const std::string& name, const Members& members = {}) {
    PipelineCall call;
    call.handle = HandleId(++last_handle_);
    call.name = name;
    call.spec = {.dtype = DType::kFloat32, .operation = Operation::kSum, .total_bytes = 16};
    call.spec.members = members;
    call.input = memory_;
    call.output = memory_;
    pipeline.submit(std::move(call));
  }
  std::vector<Kind> send(std::uint32_t way) {
    std::vector<Kind> kinds;
    Outgoing message;
    for (; pipeline_.front(ShardIndex(way), message); pipeline_.pop()) {
      kinds.push_back(wire::decode_header(message.header).value().kind);
      if (message.token != 0) lent_.push_back(message.token);
    }
    return kinds;
  }
  void lose(std::uint32_t way) {
    for (const SendToken token : std::exchange(lent_, {})) pipeline_.on_sent(token);
    pipeline_.on_shard_down(ShardIndex(way));
  }
  void leave(std::uint32_t rank) { pipeline_.on_worker_left(WorkerRank(rank)); }
  void at(TimeNs now) {
    for (TimeNs next = pipeline_.next_deadline(); next < now; next = pipeline_.next_deadline()) {
      pipeline_.begin_turn(next);
      pipeline_.tick();
    }
    pipeline_.begin_turn(now);
    pipeline_.tick();
  }
  // How the last operation has ended.
  std::optional<Status> result() { return result(pipeline_); }
  static std::optional<Status> result(const Pipeline& pipeline) {
    std::optional<Status> result;
    for (const auto& output : pipeline.outputs()) {
      if (const auto* const end = std::get_if<PipelineOutput::Complete>(&output)) {
        result = end->status;
      }
    }
    return result;
  }

  Pipeline pipeline_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(16);
  std::vector<SendToken> lent_;
  std::int64_t last_handle_ = 0;
};

TEST_F(BehindRelaysTest, what_goes_through_the_relay_of_a_worker_that_left_fails_and_names_it) {
  submit(name_led_by(3, machine()));
  EXPECT_THAT(send(2), ElementsAre(Kind::kDeclare, Kind::kPush));
  lose(2);
  leave(3);
  at(kDeparted - 1);
  EXPECT_FALSE(result());
  at(kDeparted);
  ASSERT_TRUE(result());
  EXPECT_TRUE(result()->is(Code::kDisconnected));
  EXPECT_THAT(result()->message(), HasSubstr("waits for worker 3, which has left the job"));
  EXPECT_EQ(result()->cause().kind, CauseKind::kLeft);
  EXPECT_EQ(result()->cause().who.rank, 3U);
}

TEST_F(BehindRelaysTest, what_goes_through_another_relay_does_not_fail_with_one_that_has_gone) {
  submit(name_led_by(0, machine()));
  send(0);
  lose(2);
  leave(3);
  at(10 * kDeparted);
  EXPECT_FALSE(result()) << "no relay says that it misses that worker";
}

TEST_F(BehindRelaysTest, a_worker_that_left_is_not_blamed_for_another_relay_that_is_not_connected) {
  submit(name_led_by(1, machine()));
  send(1);
  lose(1);
  lose(2);
  leave(3);
  at(10 * kDeparted);
  EXPECT_FALSE(result()) << "the scheduler knows what has become of worker 1";
  leave(1);
  at(20 * kDeparted);
  ASSERT_TRUE(result());
  EXPECT_THAT(result()->message(), HasSubstr("worker 1"));
}

// Its neighbour gave up a moment sooner, and ended.
TEST_F(BehindRelaysTest,
       who_left_first_is_blamed_in_time_also_when_the_relay_that_said_so_has_gone) {
  const std::string name = name_led_by(3, machine());
  submit(name);
  send(2);
  leave(2);  // of another machine
  wire::Header header;
  header.kind = Kind::kMissing;
  header.epoch = Epoch(3);
  header.key = key_of(name);
  const std::vector<std::uint32_t> missed = {2};
  pipeline_.on_missing(ShardIndex(2), header, Members(missed));
  at(kDeparted - 1);
  EXPECT_FALSE(result());
  lose(2);
  leave(3);
  at(kDeparted);
  ASSERT_TRUE(result());
  EXPECT_THAT(result()->message(), HasSubstr("waits for worker 2, which has left the job"));
}

// ---- where workers that disagree meet

TEST_F(BehindRelaysTest,
       a_tensor_of_some_members_is_declared_once_more_where_all_of_the_machine_meet) {
  const std::vector<std::uint32_t> ranks = {0, 1};
  const std::string name = name_led_by(3, machine());
  submit(name, Members(ranks));
  const bool is_first = leader_of({WorkerRank(0), WorkerRank(1)}, key_of(name), 0, 3).value == 0;
  EXPECT_THAT(send(2), ElementsAre(Kind::kDeclare));
  EXPECT_THAT(send(is_first ? 0 : 1), ElementsAre(Kind::kDeclare, Kind::kPush));
  EXPECT_THAT(send(is_first ? 1 : 0), IsEmpty());
}

TEST_F(BehindRelaysTest, a_tensor_is_declared_at_once_whatever_credit_there_is_and_once) {
  PipelineConfig tight = config(true);
  tight.credit_bytes = 1;
  tight.credit_frames_min = 1;
  Pipeline pipeline(tight);
  all_up(pipeline);
  const auto sent = [&] {
    std::vector<Kind> kinds;
    Outgoing message;
    for (; pipeline.front(ShardIndex(0), message); pipeline.pop()) {
      kinds.push_back(wire::decode_header(message.header).value().kind);
    }
    return kinds;
  };
  std::string name = name_led_by(0, machine());
  submit(pipeline, name);
  EXPECT_THAT(sent(), ElementsAre(Kind::kDeclare, Kind::kPush));
  while (leader_of(machine(), key_of(name), 0, 3) != WorkerRank(0) || name.size() < 6) name += "x";
  submit(pipeline, name);
  EXPECT_THAT(sent(), ElementsAre(Kind::kDeclare)) << "the credit is spent";
  wire::Header wanted;
  wanted.kind = Kind::kWanted;
  wanted.epoch = Epoch(3);
  wanted.key = key_of(name);
  pipeline.on_wanted(ShardIndex(0), wanted);
  EXPECT_THAT(sent(), ElementsAre(Kind::kPush));
}

TEST_F(BehindRelaysTest, what_a_relay_says_of_a_name_before_its_first_use_ends_that_use) {
  const std::string name = name_led_by(1, machine());
  pipeline_.on_mismatch(key_of(name), {Code::kMismatch, "ranks disagree"});
  submit(name);
  ASSERT_TRUE(result());
  EXPECT_TRUE(result()->is(Code::kMismatch));
  EXPECT_EQ(result()->message(), "ranks disagree");
  EXPECT_THAT(send(1), IsEmpty());
  pipeline_.clear_outputs();
  submit(name);
  ASSERT_TRUE(result()) << "later uses too";
  EXPECT_EQ(result()->message(), "ranks disagree");
  pipeline_.clear_outputs();
  submit("another");
  EXPECT_FALSE(result());
}

TEST_F(BehindRelaysTest, the_first_word_about_a_name_stays) {
  pipeline_.on_mismatch(key_of("t"), {Code::kMismatch, "ranks 0 and 1 disagree"});
  pipeline_.on_mismatch(key_of("t"), {Code::kMismatch, "ranks 0 and 2 disagree"});
  submit("t");
  ASSERT_TRUE(result());
  EXPECT_EQ(result()->message(), "ranks 0 and 1 disagree");
}

TEST_F(BehindRelaysTest, of_names_that_are_never_used_here_some_are_kept_and_no_more) {
  for (int i = 0; i < 5000; ++i) {
    pipeline_.on_mismatch(key_of("n" + std::to_string(i)), {Code::kMismatch, "ranks disagree"});
  }
  submit("n0");
  EXPECT_TRUE(result());
  pipeline_.clear_outputs();
  submit("n4999");
  EXPECT_FALSE(result()) << "everything has a limit";
}

TEST_F(BehindRelaysTest, a_shard_says_it_again_to_who_comes_later_so_nothing_is_kept) {
  Pipeline direct(config(false));
  all_up(direct);
  direct.on_mismatch(key_of("t"), {Code::kMismatch, "ranks disagree"});
  submit(direct, "t");
  EXPECT_FALSE(result(direct));
}

}  // namespace
}  // namespace byteps
