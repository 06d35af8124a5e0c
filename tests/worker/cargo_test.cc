// The pipeline as a relay uses it: operations whose frames become ready one by one, only of parts that it leads, and
// the end of inputs that it says for the worker beside it.
#include "worker/cargo.h"

#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/pipeline.h"

namespace byteps {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using wire::Kind;

constexpr std::uint64_t kFrameBytes = 64;

// Four frames to a part.
class Frames final : public Cargo {
 public:
  std::map<std::uint32_t, std::uint32_t> ready;  // by part; the parts that are led
  std::map<std::uint32_t, int> lent;             // by part: what a transport has of it
  std::vector<std::string> answers;

  bool leads(std::uint32_t part) const override { return ready.contains(part); }
  std::uint32_t ready_frames(std::uint32_t part) const override { return ready.at(part); }
  std::span<const std::byte> frame(std::uint32_t part, std::uint32_t frame) const override {
    EXPECT_LT(frame, ready.at(part)) << "it is not there yet";
    return bytes_;
  }
  void on_lent(std::uint32_t part) override { ++lent[part]; }
  void on_given_back(std::uint32_t part) override { --lent[part]; }
  void answered(const wire::Header& header, std::span<const std::byte> payload) override {
    EXPECT_EQ(payload.size(), kFrameBytes);
    answers.push_back(place_text(header));
  }
  static std::string place_text(const wire::Header& header) {
    return std::to_string(header.part.value) + "." +
           std::to_string(header.offset_bytes / kFrameBytes);
  }

 private:
  const std::vector<std::byte> bytes_ = std::vector<std::byte>(kFrameBytes);
};

// The uplink of worker 0's relay; worker 1 is on its machine, worker 2 on another.
class UplinkTest : public testing::Test {
 protected:
  explicit UplinkTest(std::uint32_t shards = 1) : uplink_(config(shards)) {
    for (std::uint32_t shard = 0; shard < shards; ++shard) uplink_.on_shard_up(ShardIndex(shard));
  }
  static PipelineConfig config(std::uint32_t shards) {
    PipelineConfig config{.self = WorkerRank(0),
                          .epoch = Epoch(3),
                          .placement = Placement(4 * kFrameBytes, kFrameBytes,
                                                 std::vector<std::uint32_t>(shards, 1))};
    config.credit_bytes = 1 << 20;
    config.is_relay = true;
    config.groups = std::make_shared<const Groups>(std::vector<std::uint64_t>{1, 1, 2});
    return config;
  }
  void submit(Frames& frames, std::int64_t handle = 1, std::uint64_t parts = 2) {
    PipelineCall call;
    call.handle = HandleId(handle);
    call.name = "t";
    call.spec = {.dtype = DType::kFloat32,
                 .operation = Operation::kSum,
                 .total_bytes = parts * 4 * kFrameBytes};
    call.cargo = &frames;
    uplink_.submit(std::move(call));
  }
  void ready(Frames& frames, std::uint32_t part, std::uint32_t count) {
    frames.ready[part] = count;
    uplink_.uplink().on_ready({0, part});
  }
  // What goes to the shard now: frames as "part.frame", other messages as their kinds' names. What was lent is given
  // back by give_back().
  std::vector<std::string> send(std::uint32_t shard = 0) {
    std::vector<std::string> sent;
    Outgoing message;
    while (uplink_.front(ShardIndex(shard), message)) {
      const wire::Header header = wire::decode_header(message.header).value();
      sent.push_back(text_of(header));
      if (header.kind == Kind::kPush) pushes_.push_back(header);
      if (message.token != 0) lent_.push_back(message.token);
      uplink_.pop();
    }
    return sent;
  }
  void give_back() {
    for (const SendToken token : std::exchange(lent_, {})) uplink_.on_sent(token);
  }
  void answer(std::size_t push) {
    wire::Header header = pushes_[push];
    header.kind = Kind::kAnswer;
    const std::vector<std::byte> sum(kFrameBytes);
    ASSERT_TRUE(uplink_.on_answer(ShardIndex(0), header, sum).is_ok());
  }
  void answer_all() {
    for (std::size_t i = 0; i < pushes_.size(); ++i) answer(i);
    pushes_.clear();
  }
  void inputs_done(std::uint32_t generation, std::uint32_t shard = 0, std::uint32_t last = 2) {
    wire::Header header;
    header.kind = Kind::kInputsDone;
    header.epoch = Epoch(3);
    header.round = Round(generation);
    header.worker = WorkerRank(last);
    uplink_.on_inputs_done(ShardIndex(shard), header);
  }
  // Handles that ended since the last call.
  std::vector<std::int64_t> ended() {
    std::vector<std::int64_t> handles;
    for (const auto& output : uplink_.outputs()) {
      if (const auto* const end = std::get_if<PipelineOutput::Complete>(&output)) {
        handles.push_back(end->handle.value);
        statuses_[end->handle.value] = end->status;
      }
    }
    uplink_.clear_outputs();
    return handles;
  }
  static std::string text_of(const wire::Header& header) {
    switch (header.kind) {
      case Kind::kPush:
        return Frames::place_text(header);
      case Kind::kDeclare:
        return "Declare";
      case Kind::kInputs:
        return header.flags == wire::kNoMore ? "no more" : "inputs";
      default:
        return "another kind";
    }
  }

  Pipeline uplink_;
  std::vector<wire::Header> pushes_;
  std::vector<SendToken> lent_;
  std::map<std::int64_t, Status> statuses_;
};

TEST_F(UplinkTest, frames_go_as_they_become_ready_and_the_part_waits_outside_the_gate_meanwhile) {
  Frames frames;
  frames.ready = {{0, 1}, {1, 0}};
  submit(frames);
  EXPECT_THAT(send(), ElementsAre("Declare", "0.0"));
  EXPECT_TRUE(uplink_.gate(ShardIndex(0)).empty());
  frames.ready[0] = 2;
  EXPECT_THAT(send(), IsEmpty()) << "nobody has said so";
  ready(frames, 0, 3);
  ready(frames, 0, 3);
  EXPECT_EQ(uplink_.gate(ShardIndex(0)).size(), 1U);
  ready(frames, 1, 4);
  EXPECT_THAT(send(), ElementsAre("0.1", "0.2", "1.0", "1.1", "1.2", "1.3"));
  EXPECT_TRUE(uplink_.gate(ShardIndex(0)).empty());
  answer_all();
  give_back();
  EXPECT_THAT(ended(), IsEmpty()) << "a frame has not come";
  ready(frames, 0, 4);
  EXPECT_THAT(send(), ElementsAre("0.3"));
  answer_all();
  give_back();
  EXPECT_THAT(ended(), ElementsAre(1));
  EXPECT_THAT(frames.answers, ElementsAre("0.0", "0.1", "0.2", "1.0", "1.1", "1.2", "1.3", "0.3"));
}

TEST_F(UplinkTest, cargo_knows_of_which_part_a_transport_has_something) {
  Frames frames;
  frames.ready = {{0, 2}, {1, 1}};
  submit(frames);
  EXPECT_THAT(send(), ElementsAre("Declare", "0.0", "0.1", "1.0"));
  EXPECT_EQ(frames.lent, (std::map<std::uint32_t, int>{{0, 3}, {1, 1}})) << "the declaration too";
  give_back();
  EXPECT_EQ(frames.lent, (std::map<std::uint32_t, int>{{0, 0}, {1, 0}}));
}

TEST_F(UplinkTest, an_operation_ends_with_the_parts_that_are_led_here) {
  Frames frames;
  frames.ready = {{1, 4}};
  submit(frames, 1, 3);
  EXPECT_THAT(send(), ElementsAre("Declare", "1.0", "1.1", "1.2", "1.3"));
  answer_all();
  give_back();
  EXPECT_THAT(ended(), ElementsAre(1));
}

TEST_F(UplinkTest, a_lost_connection_takes_again_what_was_ready_and_has_no_answer) {
  Frames frames;
  frames.ready = {{0, 2}, {1, 0}};
  submit(frames);
  EXPECT_THAT(send(), ElementsAre("Declare", "0.0", "0.1"));
  answer(0);
  give_back();
  uplink_.on_shard_down(ShardIndex(0));
  uplink_.on_shard_up(ShardIndex(0));
  EXPECT_THAT(send(), ElementsAre("Declare", "0.1"));
  ready(frames, 0, 4);
  EXPECT_THAT(send(), ElementsAre("0.2", "0.3"));
  EXPECT_THAT(frames.answers, ElementsAre("0.0"));
}

TEST_F(UplinkTest, a_frame_that_is_ready_while_there_is_no_connection_goes_on_the_next) {
  Frames frames;
  frames.ready = {{0, 1}, {1, 0}};
  submit(frames);
  send();
  give_back();
  uplink_.on_shard_down(ShardIndex(0));
  ready(frames, 0, 2);
  EXPECT_THAT(send(), IsEmpty());
  uplink_.on_shard_up(ShardIndex(0));
  EXPECT_THAT(send(), ElementsAre("Declare", "0.0", "0.1"));
}

TEST_F(UplinkTest, words_go_before_frames_and_their_payload_is_lent_like_theirs) {
  Frames frames;
  frames.ready = {{0, 1}, {1, 0}};
  submit(frames);
  uplink_.uplink().say(ShardIndex(0),
                       {.kind = Kind::kMissing, .key = Key(1), .payload = {std::byte{7}}});
  Outgoing message;
  ASSERT_TRUE(uplink_.front(ShardIndex(0), message));
  EXPECT_EQ(wire::decode_header(message.header).value().kind, Kind::kMissing);
  uplink_.pop();
  uplink_.on_shard_down(ShardIndex(0));
  EXPECT_EQ(message.payload[0], std::byte{7}) << "it was said, and its sender reads it still";
  uplink_.on_sent(message.token);
  uplink_.on_shard_up(ShardIndex(0));
  EXPECT_THAT(send(), ElementsAre("Declare", "0.0"));
}

TEST_F(UplinkTest, without_answers_frames_pass_in_spite_of_credit_for_nobody_else_asks_for_them) {
  PipelineConfig tight = config(1);
  tight.credit_bytes = 1;
  tight.credit_frames_min = 1;
  Pipeline uplink(tight);
  uplink.on_shard_up(ShardIndex(0));
  Frames frames;
  frames.ready = {{0, 4}, {1, 4}};
  PipelineCall call;
  call.handle = HandleId(1);
  call.name = "t";
  call.spec = {
      .dtype = DType::kFloat32, .operation = Operation::kSum, .total_bytes = 8 * kFrameBytes};
  call.cargo = &frames;
  uplink.submit(std::move(call));
  std::vector<int> counts;
  for (TimeNs now = 0; now < 16 * kMillisecond; now += tight.stalled_ns) {
    uplink.begin_turn(now);
    uplink.tick();
    int& count = counts.emplace_back(0);
    Outgoing message;
    for (; uplink.front(ShardIndex(0), message); uplink.pop()) {
      if (wire::decode_header(message.header).value().kind == Kind::kPush) ++count;
    }
  }
  EXPECT_THAT(counts, ElementsAre(1, 1, 2, 4));
}

// ---- the end of inputs

class UplinkOfTwoShardsTest : public UplinkTest {
 protected:
  UplinkOfTwoShardsTest() : UplinkTest(2) {}
};

TEST_F(UplinkOfTwoShardsTest, says_that_its_worker_has_no_more_whatever_others_have_under_way) {
  Frames frames;
  frames.ready = {{0, 0}};
  submit(frames, 1, 1);
  uplink_.finish_inputs(HandleId(9));
  EXPECT_THAT(send(0), ElementsAre("no more"));
  EXPECT_THAT(send(1), IsEmpty()) << "the first has not heard";
  EXPECT_FALSE(uplink_.uplink().inputs_are_heard());
  inputs_done(0, 1);
  EXPECT_FALSE(uplink_.uplink().inputs_are_heard()) << "that is not the first";
  inputs_done(0);
  EXPECT_TRUE(uplink_.uplink().inputs_are_heard());
  EXPECT_THAT(send(0), IsEmpty());
  EXPECT_THAT(send(1), ElementsAre("no more"));
  EXPECT_THAT(ended(), IsEmpty());
}

TEST_F(UplinkTest, operations_may_begin_after_its_worker_has_no_more) {
  uplink_.finish_inputs(HandleId(9));
  EXPECT_THAT(send(), ElementsAre("no more"));
  Frames frames;
  frames.ready = {{0, 4}};
  submit(frames, 1, 1);
  EXPECT_THAT(send(), ElementsAre("Declare", "0.0", "0.1", "0.2", "0.3"));
}

TEST_F(UplinkTest, the_next_generation_begins_when_the_last_operation_has_ended) {
  Frames frames;
  frames.ready = {{0, 4}};
  submit(frames, 1, 1);
  uplink_.finish_inputs(HandleId(9));
  send();
  answer_all();  // its payload is lent still
  inputs_done(1);
  uplink_.tick();
  EXPECT_THAT(ended(), IsEmpty());
  EXPECT_EQ(uplink_.uplink().inputs_generation(), 0U);
  give_back();
  EXPECT_THAT(ended(), ElementsAre(1));
  EXPECT_EQ(uplink_.uplink().inputs_generation(), 0U) << "that is for the next turn";
  uplink_.tick();
  EXPECT_THAT(ended(), ElementsAre(9));
  EXPECT_TRUE(statuses_[9].is_ok());
  EXPECT_EQ(uplink_.uplink().inputs_generation(), 1U);
  EXPECT_EQ(uplink_.inputs().last(), WorkerRank(2));
  EXPECT_FALSE(uplink_.uplink().inputs_are_heard());
  EXPECT_THAT(send(), ElementsAre("inputs")) << "of the new generation";
}

TEST_F(UplinkTest, a_job_that_fails_between_the_word_and_the_last_operation_ends_inputs_once) {
  Frames frames;
  frames.ready = {{0, 4}};
  submit(frames, 1, 1);
  uplink_.finish_inputs(HandleId(9));
  send();
  inputs_done(1);
  uplink_.fail_all({Code::kDisconnected, "the job has failed"});
  EXPECT_THAT(ended(), ElementsAre(9));
  EXPECT_TRUE(statuses_[9].is(Code::kDisconnected));
  give_back();
  EXPECT_THAT(ended(), ElementsAre(1));
  uplink_.tick();
  EXPECT_THAT(ended(), IsEmpty());
  EXPECT_EQ(uplink_.uplink().inputs_generation(), 0U);
}

}  // namespace
}  // namespace byteps
