// What a relay keeps of sums for its crew, in a job that goes on without a worker that is lost: what counts as being
// here, and what one that stands in for another says.
#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/kept_sums.h"
#include "worker/pipeline.h"

namespace byteps {
namespace {

using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;
using wire::Kind;

using Bytes = std::vector<std::byte>;

struct Message {
  wire::Header header;
  Bytes payload;
};

// The way up of a relay with one shard; tensors are of one part of two frames of 64 bytes.
class CrewSumsTest : public testing::Test {
 protected:
  explicit CrewSumsTest(bool stands_in = false) : pipeline_(config(stands_in)) {
    pipeline_.on_shard_up(ShardIndex(0));
  }
  static PipelineConfig config(bool stands_in) {
    PipelineConfig config{.self = WorkerRank(0),
                          .epoch = Epoch(3),
                          .placement = Placement(128, 64, std::vector<std::uint32_t>{1})};
    config.keeps_sums = true;
    config.worker_count = 3;
    config.credit_bytes = 1 << 20;
    config.duties = {.waits_for_crew = true, .stands_in = stands_in};
    return config;
  }
  static Spec spec() {
    Spec spec{.dtype = DType::kFloat32, .operation = Operation::kSum, .total_bytes = 128};
    return spec;
  }
  static wire::Declare declaration(const std::string& name) {
    wire::Declare declared;
    static_cast<Spec&>(declared) = spec();
    declared.name = name;
    return declared;
  }
  void submit(const std::string& name, bool is_for_root = false, bool once = false) {
    PipelineCall call;
    call.handle = HandleId(++last_handle_);
    call.name = name;
    call.spec = spec();
    call.spec.root_only = is_for_root;  // worker 0
    call.input = memory_;
    call.output = memory_;
    call.once = once;
    pipeline_.submit(std::move(call));
    send();
  }
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
  std::vector<Message> sent_of(Kind kind) {
    std::vector<Message> found;
    for (Message& each : send()) {
      if (each.header.kind == kind) found.push_back(std::move(each));
    }
    return found;
  }
  std::vector<std::uint8_t> flags_of_haves() {
    std::vector<std::uint8_t> flags;
    for (const Message& each : sent_of(Kind::kHave)) flags.push_back(each.header.flags);
    return flags;
  }
  // What an Ack says that is due by now, or in a while.
  std::optional<std::uint32_t> said(TimeNs after = KeptSums::kSilenceNs) {
    pipeline_.begin_turn(now_ += after);
    std::optional<std::uint32_t> count;
    for (const Message& each : sent_of(Kind::kAck)) count = each.header.count;
    return count;
  }
  static wire::Header about(Kind kind, const std::string& name, std::uint32_t round,
                            std::uint64_t offset) {
    wire::Header header;
    header.kind = kind;
    header.epoch = Epoch(3);
    header.key = key_of(name);
    header.round = Round(round);
    header.offset_bytes = offset;
    return header;
  }
  void answer(const std::string& name, std::uint32_t round, std::uint64_t offset) {
    const Bytes sum(64, std::byte{9});
    EXPECT_TRUE(
        pipeline_.on_answer(ShardIndex(0), about(Kind::kAnswer, name, round, offset), sum).is_ok());
  }
  void crew_has(const std::string& name, std::uint32_t round, std::uint64_t offset) {
    pipeline_.uplink().note_crew_has(key_of(name), PartIndex(0), offset, Round(round));
  }
  // The crew have fetched it from one of them.
  void inherit(const std::string& name, std::uint32_t round, std::uint64_t offset) {
    const Bytes sum(64, std::byte{7});
    pipeline_.uplink().inherit(declaration(name), PartIndex(0), offset, Round(round),
                               std::span<const std::byte>(sum));
  }
  void spoil(const std::string& name) {
    pipeline_.on_mismatch(key_of(name), {Code::kMismatch, "they differ"});
  }
  void settle(std::uint32_t count) {
    wire::Header header = about(Kind::kSettled, "", 0, 0);
    header.count = count;
    pipeline_.on_recovery(ShardIndex(0), header);
  }
  void reconnect(bool is_successor = false) {
    pipeline_.on_shard_down(ShardIndex(0));
    pipeline_.on_shard_up(ShardIndex(0), is_successor);
  }

  Bytes memory_ = Bytes(128, std::byte{1});
  Pipeline pipeline_;
  std::vector<SendToken> lent_;
  std::int64_t last_handle_ = 0;
  TimeNs now_ = 0;
};

TEST_F(CrewSumsTest, an_answer_counts_when_all_of_the_crew_have_the_sum) {
  submit("t");
  answer("t", 0, 0);
  EXPECT_EQ(said(), std::nullopt);
  crew_has("t", 0, 0);
  EXPECT_EQ(said(0), std::nullopt) << "a push may say it";
  EXPECT_EQ(said(), 1U);
  EXPECT_EQ(said(), std::nullopt) << "once";
}

TEST_F(CrewSumsTest, pushes_say_what_counts_and_not_what_came) {
  submit("t");
  answer("t", 0, 0);
  answer("t", 0, 64);
  crew_has("t", 0, 0);
  PipelineCall call;
  call.handle = HandleId(++last_handle_);
  call.name = "t";
  call.spec = spec();
  call.input = memory_;
  call.output = memory_;
  pipeline_.submit(std::move(call));
  const auto pushes = sent_of(Kind::kPush);
  ASSERT_THAT(pushes, SizeIs(2));
  for (const Message& each : pushes) EXPECT_EQ(each.header.count, 1U);
}

TEST_F(CrewSumsTest, answers_count_in_the_order_in_which_they_came) {
  submit("t");
  answer("t", 0, 0);
  answer("t", 0, 64);
  crew_has("t", 0, 64);
  EXPECT_EQ(said(), std::nullopt) << "the crew may lack the one before";
  crew_has("t", 0, 0);
  EXPECT_EQ(said(), 2U);
}

TEST_F(CrewSumsTest, another_round_or_frame_that_the_crew_have_is_not_it) {
  submit("t");
  answer("t", 0, 0);
  crew_has("t", 1, 0);
  crew_has("t", 0, 64);
  crew_has("u", 0, 0);
  EXPECT_EQ(said(), std::nullopt);
}

TEST_F(CrewSumsTest, behind_an_answer_of_a_tensor_that_cannot_be_summed_others_count) {
  submit("t");
  submit("u");
  answer("t", 0, 0);
  answer("u", 0, 0);
  crew_has("u", 0, 0);
  EXPECT_EQ(said(), std::nullopt);
  spoil("t");
  EXPECT_EQ(said(), 2U);
}

TEST_F(CrewSumsTest, what_comes_of_it_later_counts_at_once) {
  submit("t");
  spoil("t");
  answer("t", 0, 0);
  EXPECT_EQ(said(), 1U);
}

TEST_F(CrewSumsTest, what_is_no_news_counts_at_once) {
  submit("t");
  answer("t", 0, 0);
  answer("t", 0, 64);
  crew_has("t", 0, 0);
  crew_has("t", 0, 64);
  EXPECT_EQ(said(), 2U);
  answer("t", 0, 0);
  EXPECT_EQ(said(), 3U) << "the crew have it";
  submit("t");
  answer("t", 1, 0);
  answer("t", 0, 64);
  answer("t", 0, 0);
  EXPECT_EQ(said(), std::nullopt) << "behind one that they may lack";
  crew_has("t", 1, 0);
  EXPECT_EQ(said(), 6U);
}

TEST_F(CrewSumsTest, counts_begin_anew_with_a_connection) {
  submit("t");
  answer("t", 0, 0);
  answer("t", 0, 64);
  crew_has("t", 0, 0);
  EXPECT_EQ(said(), 1U);
  reconnect();
  send();
  crew_has("t", 0, 64);  // it came on the one before
  EXPECT_EQ(said(), std::nullopt);
  submit("t");
  answer("t", 1, 0);
  EXPECT_EQ(said(), std::nullopt);
  crew_has("t", 1, 0);
  EXPECT_EQ(said(), 1U);
}

TEST_F(CrewSumsTest, what_came_on_an_earlier_connection_is_told_and_whether_all_have_it) {
  submit("t");
  answer("t", 0, 0);
  answer("t", 0, 64);
  crew_has("t", 0, 0);
  reconnect();
  const auto told = sent_of(Kind::kHave);
  ASSERT_THAT(told, SizeIs(2));
  EXPECT_EQ(told[0].header.flags & wire::kSome, 0);
  EXPECT_EQ(told[0].payload, Bytes{std::byte{0b01}});
  EXPECT_EQ(told[1].header.flags, wire::kSome);
  EXPECT_EQ(told[1].payload, Bytes{std::byte{0b10}});
  crew_has("t", 0, 64);
  const auto news = sent_of(Kind::kHave);
  ASSERT_THAT(news, SizeIs(1));
  EXPECT_EQ(news[0].header.flags & wire::kSome, 0);
  EXPECT_EQ(news[0].payload, Bytes{std::byte{0b11}});
}

TEST_F(CrewSumsTest, a_frame_that_was_told_of_is_settled_by_its_name) {
  submit("t");
  answer("t", 0, 0);
  answer("t", 0, 64);
  crew_has("t", 0, 0);
  crew_has("t", 0, 64);
  reconnect();
  send();
  EXPECT_TRUE(pipeline_.uplink().keeps_any());
  wire::Header settled = about(Kind::kSettled, "t", 1, 0);
  settled.flags = wire::kOfFrame;
  pipeline_.on_recovery(ShardIndex(0), settled);
  EXPECT_TRUE(pipeline_.uplink().keeps_any()) << "of another round";
  for (const std::uint64_t offset : {0U, 64U}) {
    settled.round = Round(0);
    settled.offset_bytes = offset;
    pipeline_.on_recovery(ShardIndex(0), settled);
  }
  EXPECT_FALSE(pipeline_.uplink().keeps_any());
  EXPECT_THAT(pipeline_.uplink().take_settled(), SizeIs(2)) << "the crew are to hear it";
}

TEST_F(CrewSumsTest, or_its_whole_part_is) {
  submit("t");
  answer("t", 0, 0);
  answer("t", 0, 64);
  reconnect();
  send();
  wire::Header settled = about(Kind::kSettled, "t", 3, wire::kWholePart);
  settled.flags = wire::kOfFrame;
  pipeline_.on_recovery(ShardIndex(0), settled);
  EXPECT_FALSE(pipeline_.uplink().keeps_any());
}

TEST_F(CrewSumsTest, behind_the_word_that_a_name_is_given_up_nothing_is_said_of_it) {
  submit("t", false, true);
  answer("t", 0, 0);
  reconnect();
  crew_has("t", 0, 0);
  answer("t", 0, 64);
  crew_has("t", 0, 64);
  std::vector<Kind> kinds;
  for (const Message& each : send()) {
    if (each.header.key == key_of("t")) kinds.push_back(each.header.kind);
  }
  const auto forget = std::find(kinds.begin(), kinds.end(), Kind::kForget);
  ASSERT_NE(forget, kinds.end());
  EXPECT_THAT(std::vector(forget, kinds.end()), Each(Kind::kForget)) << "it may be said again";
}

TEST_F(CrewSumsTest, what_it_had_before_it_is_said_first) {
  send();
  pipeline_.uplink().inherit(declaration("t"), PartIndex(0), 0, Round(0), std::nullopt);
  pipeline_.uplink().forget(key_of("t"), declaration("t"));
  std::vector<Kind> kinds;
  for (const Message& each : send()) {
    if (each.header.key == key_of("t")) kinds.push_back(each.header.kind);
  }
  EXPECT_THAT(kinds, ElementsAre(Kind::kDeclare, Kind::kHave, Kind::kForget));
}

TEST_F(CrewSumsTest, what_the_root_alone_gets_it_says_to_have_at_once_when_the_root_has) {
  submit("t", true);
  answer("t", 0, 0);
  EXPECT_EQ(said(0), std::nullopt);
  crew_has("t", 0, 0);
  EXPECT_EQ(said(0), 1U) << "others wait for it";
}

TEST_F(CrewSumsTest, what_all_of_other_machines_have_can_be_told_to_the_crew) {
  submit("t");
  answer("t", 0, 0);
  answer("t", 0, 64);
  EXPECT_THAT(pipeline_.uplink().take_settled(), IsEmpty());
  settle(1);
  auto settled = pipeline_.uplink().take_settled();
  ASSERT_THAT(settled, SizeIs(1));
  EXPECT_EQ(settled[0].key, key_of("t"));
  EXPECT_EQ(settled[0].offset_bytes, 0U);
  settle(2);
  settled = pipeline_.uplink().take_settled();
  ASSERT_THAT(settled, SizeIs(1));
  EXPECT_EQ(settled[0].offset_bytes, 64U);
  EXPECT_EQ(settled[0].round, Round(0));
}

TEST_F(CrewSumsTest, its_own_worker_beside_it_may_say_all_at_once) {
  reconnect(true);
  EXPECT_THAT(flags_of_haves(), ElementsAre(wire::kAll));
}

// ---- one that stands in for another

class StandInSumsTest : public CrewSumsTest {
 protected:
  StandInSumsTest() : CrewSumsTest(true) {}
};

TEST_F(StandInSumsTest, says_all_to_a_successor_when_its_crew_have_and_each_time_from_then_on) {
  reconnect(true);
  EXPECT_THAT(send(), IsEmpty());
  submit("t");
  EXPECT_THAT(flags_of_haves(), IsEmpty()) << "pushes go on";
  pipeline_.uplink().say_all();
  EXPECT_THAT(flags_of_haves(), ElementsAre(wire::kAll));
  EXPECT_THAT(send(), IsEmpty());
  reconnect(true);
  EXPECT_THAT(flags_of_haves(), Contains(wire::kAll)) << "to the next one as well";
}

TEST_F(StandInSumsTest, meanwhile_it_says_what_it_gets_from_its_crew_and_gives_it) {
  reconnect(true);
  send();
  inherit("t", 4, 0);
  const auto told = send();
  ASSERT_THAT(told, SizeIs(3));
  EXPECT_EQ(told[0].header.kind, Kind::kDeclare);
  EXPECT_EQ(told[1].header.kind, Kind::kHave);
  EXPECT_EQ(told[1].header.flags, wire::kHasFormer) << "of the round before";
  EXPECT_THAT(told[1].payload, IsEmpty());
  EXPECT_EQ(told[2].header.kind, Kind::kHave);
  EXPECT_EQ(told[2].header.flags, wire::kSome);
  EXPECT_EQ(told[2].header.round, Round(4));
  EXPECT_EQ(told[2].payload, Bytes{std::byte{0b01}});
  pipeline_.on_recovery(ShardIndex(0), about(Kind::kGive, "t", 4, 0));
  const auto given = send();
  ASSERT_THAT(given, SizeIs(1));
  EXPECT_EQ(given[0].header.flags, wire::kSum);
  EXPECT_EQ(given[0].payload, Bytes(64, std::byte{7}));
  crew_has("t", 4, 0);
  const auto news = sent_of(Kind::kHave);
  ASSERT_THAT(news, SizeIs(1));
  EXPECT_EQ(news[0].header.flags & wire::kSome, 0);
  EXPECT_EQ(news[0].payload, Bytes{std::byte{0b01}});
}

TEST_F(StandInSumsTest, an_answer_to_what_its_crew_have_not_pushed_here_does_not_count) {
  answer("t", 4, 0);  // the relay before it has
  EXPECT_EQ(said(), std::nullopt);
  crew_has("t", 4, 0);
  EXPECT_EQ(said(), 1U);
}

TEST_F(StandInSumsTest, unless_it_is_of_a_tensor_that_cannot_be_summed) {
  answer("t", 4, 0);
  spoil("t");
  answer("t", 4, 64);
  EXPECT_EQ(said(), 2U);
}

TEST_F(StandInSumsTest, a_sum_of_an_earlier_round_than_it_has_is_not_taken) {
  inherit("t", 4, 0);
  send();
  inherit("t", 3, 0);
  EXPECT_THAT(send(), IsEmpty());
  pipeline_.on_recovery(ShardIndex(0), about(Kind::kGive, "t", 4, 0));
  EXPECT_THAT(sent_of(Kind::kPush), SizeIs(1));
}

}  // namespace
}  // namespace byteps
