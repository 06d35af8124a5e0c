// What a worker keeps of sums, and tells the successor of a shard that is lost.
#include "worker/kept_sums.h"

#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/pipeline.h"

namespace byteps {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;
using wire::Kind;

using Bytes = std::vector<std::byte>;

Bytes filled(std::size_t bytes, int value) {
  return Bytes(bytes, static_cast<std::byte>(value));
}

struct Message {
  wire::Header header;
  Bytes payload;
};

// A worker with one shard, and tensors of up to two parts of two frames of 64 bytes.
class KeptSumsTest : public testing::Test {
 protected:
  explicit KeptSumsTest(bool keeps_sums = true) : pipeline_(config(keeps_sums)) {
    pipeline_.on_shard_up(ShardIndex(0));
  }
  static PipelineConfig config(bool keeps_sums) {
    PipelineConfig config{.self = WorkerRank(0),
                          .epoch = Epoch(3),
                          .placement = Placement(128, 64, std::vector<std::uint32_t>{1})};
    config.keeps_sums = keeps_sums;
    config.worker_count = 2;
    config.credit_bytes = 1 << 20;
    return config;
  }
  void submit(const std::string& name, bool once = false, Operation operation = Operation::kSum,
              const Members& members = {}) {
    PipelineCall call;
    call.handle = HandleId(++last_handle_);
    call.name = name;
    call.once = once;
    call.spec = {.dtype = DType::kFloat32, .operation = operation, .total_bytes = memory_.size()};
    call.spec.members = members;
    call.input = memory_;
    call.output = memory_;
    pipeline_.submit(std::move(call));
  }
  // The root alone gets the result.
  void submit_reduced(const std::string& name, std::uint32_t root) {
    PipelineCall call;
    call.handle = HandleId(++last_handle_);
    call.name = name;
    call.spec = {
        .dtype = DType::kFloat32, .operation = Operation::kSum, .total_bytes = memory_.size()};
    call.spec.root = WorkerRank(root);
    call.spec.root_only = true;
    call.input = memory_;
    if (root == 0) call.output = memory_;
    pipeline_.submit(std::move(call));
  }
  // All that may go now.
  std::vector<Message> send() {
    std::vector<Message> sent;
    Outgoing message;
    for (; pipeline_.front(ShardIndex(0), message); pipeline_.pop()) {
      sent.push_back({wire::decode_header(message.header).value(),
                      {message.payload.begin(), message.payload.end()}});
      if (message.token != 0) lent_.push_back(message.token);
    }
    for (const SendToken token : std::exchange(lent_, {})) pipeline_.on_sent(token);
    return sent;
  }
  std::vector<Kind> kinds() {
    std::vector<Kind> kinds;
    for (const Message& message : send()) kinds.push_back(message.header.kind);
    return kinds;
  }
  static wire::Header about(Kind kind, const std::string& name, std::uint32_t round,
                            std::uint32_t part = 0, std::uint64_t offset = 0) {
    wire::Header header;
    header.kind = kind;
    header.epoch = Epoch(3);
    header.key = key_of(name);
    header.part = PartIndex(part);
    header.round = Round(round);
    header.offset_bytes = offset;
    return header;
  }
  void answer(const std::string& name, std::uint32_t round, int value, std::uint32_t part = 0,
              std::uint64_t offset = 0) {
    const Bytes sum = filled(64, value);
    EXPECT_TRUE(
        pipeline_.on_answer(ShardIndex(0), about(Kind::kAnswer, name, round, part, offset), sum)
            .is_ok());
  }
  void answer_all(const std::string& name, std::uint32_t round, int value) {
    for (const std::uint32_t part : {0U, 1U}) {
      for (const std::uint64_t offset : {0U, 64U}) answer(name, round, value, part, offset);
    }
  }
  // Of so many answers on this connection all have the sums.
  void settle(std::uint32_t count) {
    wire::Header header = about(Kind::kSettled, "", 0);
    header.count = count;
    pipeline_.on_recovery(ShardIndex(0), header);
  }
  void reconnect() {
    pipeline_.on_shard_down(ShardIndex(0));
    pipeline_.on_shard_up(ShardIndex(0));
  }
  // The shard is lost, and another takes its place.
  void take_over() {
    pipeline_.on_shard_down(ShardIndex(0));
    pipeline_.on_shard_up(ShardIndex(0), true);
  }

  Bytes memory_ = filled(256, 1);
  Pipeline pipeline_;
  std::vector<SendToken> lent_;
  std::int64_t last_handle_ = 0;
};

TEST_F(KeptSumsTest, a_successor_hears_first_of_which_frames_there_are_sums) {
  submit("t");
  send();
  answer_all("t", 0, 10);
  submit("t");
  send();
  answer("t", 1, 11, 0, 64);
  take_over();
  const std::vector<Message> sent = send();
  ASSERT_THAT(sent, SizeIs(7));
  EXPECT_EQ(sent[0].header.kind, Kind::kDeclare);
  EXPECT_EQ(sent[1].header.kind, Kind::kHave);
  EXPECT_EQ(sent[1].header.round, Round(1));
  EXPECT_EQ(sent[1].header.flags, wire::kHasFormer);
  EXPECT_EQ(sent[1].payload, Bytes{std::byte{0b10}});
  EXPECT_EQ(sent[2].header.kind, Kind::kHave);
  EXPECT_THAT(sent[2].payload, IsEmpty());
  EXPECT_EQ(sent[3].header.flags, wire::kAll);
  for (std::size_t at = 4; at < 7; ++at) EXPECT_EQ(sent[at].header.kind, Kind::kPush);
}

TEST_F(KeptSumsTest, a_sum_is_given_although_its_operation_has_ended_and_its_memory_is_used) {
  submit("t");
  send();
  answer_all("t", 0, 10);
  std::fill(memory_.begin(), memory_.end(), std::byte{99});
  take_over();
  send();
  pipeline_.on_recovery(ShardIndex(0), about(Kind::kGive, "t", 0, 1, 64));
  const std::vector<Message> sent = send();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].header.kind, Kind::kPush);
  EXPECT_EQ(sent[0].header.flags, wire::kSum);
  EXPECT_EQ(sent[0].header.round, Round(0));
  EXPECT_EQ(sent[0].payload, filled(64, 10));
}

TEST_F(KeptSumsTest,
       of_a_frame_under_way_the_sum_of_the_round_before_is_given_until_it_is_answered) {
  submit("t");
  send();
  answer_all("t", 0, 10);
  submit("t");
  send();
  answer("t", 1, 11, 0, 0);
  const auto given = [&](std::uint32_t round, std::uint64_t offset) {
    pipeline_.on_recovery(ShardIndex(0), about(Kind::kGive, "t", round, 0, offset));
    return send();
  };
  ASSERT_THAT(given(1, 0), SizeIs(1));
  EXPECT_EQ(given(1, 0)[0].payload, filled(64, 11));
  ASSERT_THAT(given(0, 64), SizeIs(1));
  EXPECT_EQ(given(0, 64)[0].payload, filled(64, 10));
  EXPECT_THAT(given(0, 0), IsEmpty()) << "nobody can lack it any more";
  EXPECT_THAT(given(1, 64), IsEmpty());
}

TEST_F(KeptSumsTest, of_a_name_that_is_used_once_it_is_kept_until_all_have_it) {
  submit("t", true);
  EXPECT_THAT(kinds(),
              ElementsAre(Kind::kDeclare, Kind::kPush, Kind::kPush, Kind::kPush, Kind::kPush));
  answer_all("t", 0, 10);
  EXPECT_THAT(kinds(), ElementsAre(Kind::kForget));
  take_over();
  EXPECT_THAT(kinds(), ElementsAre(Kind::kDeclare, Kind::kHave, Kind::kHave, Kind::kForget,
                                   Kind::kHave, Kind::kForget));
  pipeline_.on_recovery(ShardIndex(0), about(Kind::kForgotten, "t", 0));
  pipeline_.on_recovery(ShardIndex(0), about(Kind::kGive, "t", 0));
  EXPECT_THAT(kinds(), IsEmpty());
}

TEST_F(KeptSumsTest, the_root_of_a_broadcast_keeps_what_it_has_brought) {
  submit("t", false, Operation::kBroadcast);
  send();
  for (const std::uint32_t part : {0U, 1U}) {
    for (const std::uint64_t offset : {0U, 64U}) {
      EXPECT_TRUE(pipeline_.on_answer(ShardIndex(0), about(Kind::kAnswer, "t", 0, part, offset), {})
                      .is_ok());
    }
  }
  std::fill(memory_.begin(), memory_.end(), std::byte{99});
  pipeline_.on_recovery(ShardIndex(0), about(Kind::kGive, "t", 0));
  const std::vector<Message> sent = send();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].payload, filled(64, 1));
}

TEST_F(KeptSumsTest, who_does_not_get_what_the_root_alone_gets_knows_that_the_root_has_it) {
  submit_reduced("t", 1);
  send();
  for (const std::uint32_t part : {0U, 1U}) {
    for (const std::uint64_t offset : {0U, 64U}) {
      EXPECT_TRUE(pipeline_.on_answer(ShardIndex(0), about(Kind::kAnswer, "t", 0, part, offset), {})
                      .is_ok());
    }
  }
  EXPECT_EQ(pipeline_.counters().kept_bytes, 0U);
  take_over();
  const std::vector<Message> told = send();
  ASSERT_THAT(told, SizeIs(4)) << "Declare, Have of both parts, and that this was all";
  EXPECT_EQ(told[1].header.kind, Kind::kHave);
  EXPECT_EQ(told[1].header.round, Round(1));
  EXPECT_EQ(told[1].header.flags, wire::kHasFormer);
  pipeline_.on_recovery(ShardIndex(0), about(Kind::kGive, "t", 0));
  const std::vector<Message> sent = send();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].header.flags, wire::kSum);
  EXPECT_THAT(sent[0].payload, IsEmpty());
}

TEST_F(KeptSumsTest, the_root_says_at_once_that_it_has_what_it_alone_gets) {
  submit_reduced("t", 0);
  send();
  answer("t", 0, 10);
  const std::vector<Message> sent = send();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].header.kind, Kind::kAck);
  EXPECT_EQ(sent[0].header.count, 1U);
}

TEST_F(KeptSumsTest, what_a_shard_could_not_sum_its_successor_is_told) {
  submit("t");
  send();
  pipeline_.on_mismatch(key_of("t"), {Code::kMismatch, "they differ"});
  take_over();
  const std::vector<Message> sent = send();
  ASSERT_THAT(sent, SizeIs(3));
  EXPECT_EQ(sent[0].header.kind, Kind::kMismatch);
  EXPECT_EQ(wire::decode_text(sent[0].payload).value().text, "they differ");
  EXPECT_EQ(sent[1].header.flags, wire::kAll);
  EXPECT_EQ(sent[2].header.kind, Kind::kForget);
}

TEST_F(KeptSumsTest, what_a_shard_could_not_sum_all_its_shards_are_to_forget) {
  submit("t");
  send();
  pipeline_.on_mismatch(key_of("t"), {Code::kMismatch, "they differ"});
  pipeline_.on_mismatch(key_of("t"), {Code::kMismatch, "says another"});
  const std::vector<Message> sent = send();
  ASSERT_THAT(sent, SizeIs(1)) << "for others may have pushed to them, and wait for this one";
  EXPECT_EQ(sent[0].header.kind, Kind::kForget);
  EXPECT_EQ(sent[0].header.key, key_of("t"));
}

TEST_F(KeptSumsTest, what_nobody_has_is_pushed_again) {
  submit("t");
  send();
  answer("t", 0, 10, 0, 0);
  pipeline_.on_recovery(ShardIndex(0), about(Kind::kAgain, "t", 0, 0, 64));
  const std::vector<Message> sent = send();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].header.kind, Kind::kPush);
  EXPECT_EQ(sent[0].header.offset_bytes, 64U);
  pipeline_.on_recovery(ShardIndex(0), about(Kind::kAgain, "t", 1, 0, 64));
  EXPECT_THAT(send(), IsEmpty()) << "of another round";
}

TEST_F(KeptSumsTest, a_shard_that_is_the_same_is_told_of_sums_that_were_not_settled) {
  submit("t");
  submit("u");
  send();
  answer_all("t", 0, 10);
  answer_all("u", 0, 10);
  settle(6);  // the first part of the second, too
  reconnect();
  const std::vector<Message> sent = send();
  ASSERT_THAT(sent, SizeIs(2));
  EXPECT_EQ(sent[0].header.kind, Kind::kDeclare);
  EXPECT_EQ(sent[1].header.kind, Kind::kHave);
  EXPECT_EQ(sent[1].header.key, key_of("u"));
  EXPECT_EQ(sent[1].header.part, PartIndex(1));
  EXPECT_EQ(sent[1].header.round, Round(1));
  EXPECT_EQ(sent[1].header.flags, wire::kHasFormer);
}

TEST_F(KeptSumsTest, an_operation_that_ends_leaves_copies_of_what_is_not_settled_until_it_is) {
  submit("t");
  send();
  answer("t", 0, 10);
  answer("t", 0, 10, 0, 64);
  answer("t", 0, 10, 1, 0);
  settle(2);
  EXPECT_EQ(pipeline_.counters().kept_bytes, 0U) << "the operation's memory has them";
  answer("t", 0, 10, 1, 64);
  EXPECT_EQ(pipeline_.counters().kept_bytes, 2U * 64);
  settle(3);
  EXPECT_EQ(pipeline_.counters().kept_bytes, 64U);
  settle(4);
  EXPECT_EQ(pipeline_.counters().kept_bytes, 0U);
  take_over();
  send();
  pipeline_.on_recovery(ShardIndex(0), about(Kind::kGive, "t", 0, 1, 64));
  EXPECT_THAT(send(), IsEmpty()) << "nobody lacks it";
}

TEST_F(KeptSumsTest, an_answer_says_what_is_settled_as_well) {
  submit("t");
  send();
  answer_all("t", 0, 10);
  EXPECT_EQ(pipeline_.counters().kept_bytes, 4U * 64);
  submit("u");
  send();
  wire::Header header = about(Kind::kAnswer, "u", 0);
  header.count = 4;
  EXPECT_TRUE(pipeline_.on_answer(ShardIndex(0), header, filled(64, 1)).is_ok());
  EXPECT_EQ(pipeline_.counters().kept_bytes, 0U);
}

TEST_F(KeptSumsTest, pushes_say_how_many_answers_came_and_an_ack_where_none_does_for_a_while) {
  submit("t");
  for (const Message& each : send()) EXPECT_EQ(each.header.count, 0U);
  answer_all("t", 0, 10);
  submit("t");
  for (const Message& each : send()) EXPECT_EQ(each.header.count, 4U);
  EXPECT_EQ(pipeline_.next_deadline() > KeptSums::kSilenceNs, true) << "all is said";
  answer("t", 1, 10);
  EXPECT_THAT(send(), IsEmpty());
  EXPECT_EQ(pipeline_.next_deadline(), KeptSums::kSilenceNs);
  pipeline_.begin_turn(KeptSums::kSilenceNs);
  const std::vector<Message> sent = send();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].header.kind, Kind::kAck);
  EXPECT_EQ(sent[0].header.count, 5U);
  EXPECT_THAT(send(), IsEmpty());
}

TEST_F(KeptSumsTest, where_a_push_goes_it_says_what_an_ack_would) {
  submit("t");
  send();
  answer_all("t", 0, 10);
  pipeline_.begin_turn(KeptSums::kSilenceNs);
  submit("t");
  for (const Message& each : send()) EXPECT_EQ(each.header.kind, Kind::kPush);
}

TEST_F(KeptSumsTest, what_nobody_else_contributes_to_is_not_kept) {
  const std::vector<std::uint32_t> self = {0};
  submit("own", false, Operation::kSum, Members(self));
  send();
  answer_all("own", 0, 10);
  EXPECT_EQ(pipeline_.counters().kept_bytes, 0U);
  reconnect();
  EXPECT_THAT(kinds(), ElementsAre(Kind::kDeclare, Kind::kHave, Kind::kHave))
      << "the shard may not know that it came";
  pipeline_.on_recovery(ShardIndex(0), about(Kind::kGive, "own", 0));
  EXPECT_THAT(kinds(), IsEmpty());
}

TEST_F(KeptSumsTest, counts_begin_anew_with_a_connection) {
  submit("t");
  send();
  answer("t", 0, 10);
  settle(1);
  reconnect();
  for (const Message& each : send()) EXPECT_EQ(each.header.count, 0U);
  answer("t", 0, 10, 0, 64);
  answer("t", 0, 10, 1, 0);
  answer("t", 0, 10, 1, 64);
  EXPECT_EQ(pipeline_.counters().kept_bytes, 3U * 64);
  settle(1);
  EXPECT_EQ(pipeline_.counters().kept_bytes, 2U * 64);
}

TEST_F(KeptSumsTest, what_an_earlier_connection_left_open_is_kept_until_the_next_round) {
  submit("t");
  send();
  answer_all("t", 0, 10);
  reconnect();
  send();
  EXPECT_EQ(pipeline_.counters().kept_bytes, 4U * 64);
  submit("t");
  send();
  answer_all("t", 1, 20);
  settle(4);
  EXPECT_EQ(pipeline_.counters().kept_bytes, 0U);
}

class NoKeptSumsTest : public KeptSumsTest {
 protected:
  NoKeptSumsTest() : KeptSumsTest(false) {}
};

TEST_F(NoKeptSumsTest, where_no_server_is_replaced_nothing_is_kept_or_told) {
  submit("t");
  send();
  answer_all("t", 0, 10);
  take_over();
  EXPECT_THAT(kinds(), IsEmpty());
}

}  // namespace
}  // namespace byteps
