// A worker's coded tensors: what it pushes, again and again, and what it makes of answers.
#include "worker/coder.h"

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/coding.h"
#include "worker/pipeline.h"

namespace byteps {
namespace {

using testing::Each;
using testing::SizeIs;
using wire::Kind;

using Bytes = std::vector<std::byte>;
using Floats = std::vector<float>;

struct Message {
  wire::Header header;
  Bytes payload;
};

Bytes bytes_of(const Floats& floats) {
  Bytes bytes(floats.size() * sizeof(float));
  std::memcpy(bytes.data(), floats.data(), bytes.size());
  return bytes;
}

// One shard. Tensors of 400 elements in one part: as int8 two frames of 256 and 144.
class CoderTest : public testing::Test {
 protected:
  enum class Place : std::uint8_t { kApart, kBehindRelays, kRelay };
  explicit CoderTest(Place place = Place::kApart) : pipeline_(config(place)) {
    pipeline_.on_shard_up(ShardIndex(0));
    for (std::size_t i = 0; i < elements_.size(); ++i) {
      elements_[i] = static_cast<float>(i) * 0.01F - 1.7F;
    }
  }
  PipelineConfig config(Place place) {
    PipelineConfig config{.self = WorkerRank(0),
                          .epoch = Epoch(3),
                          .placement = Placement(4096, 320, std::vector<std::uint32_t>{1})};
    config.keeps_sums = true;
    config.worker_count = 2;
    config.credit_bytes = 1 << 20;
    if (place != Place::kApart) {
      config.groups = std::make_shared<const Groups>(std::vector<std::uint64_t>{1, 1});
      config.is_relay = place == Place::kRelay;
      config.relays.residuals = &lent_;
    }
    return config;
  }
  // In place.
  void submit(Format format = Format::kInt8, bool feeds_back = true) {
    PipelineCall call;
    call.handle = HandleId(++last_handle_);
    call.name = "t";
    call.spec = {.dtype = DType::kFloat32, .total_bytes = elements_.size() * sizeof(float)};
    call.spec.format = format;
    call.input = std::as_bytes(std::span(elements_));
    call.output = std::as_writable_bytes(std::span(elements_));
    call.spec.codec = codec_;
    if (feeds_back) call.carry.residual = std::as_writable_bytes(std::span(residual_));
    if (codec_.momentum) call.carry.momentum = std::as_writable_bytes(std::span(momentum_));
    pipeline_.submit(std::move(call));
  }
  std::vector<Message> send(bool is_taken = true) {
    std::vector<Message> sent;
    Outgoing message;
    while (pipeline_.front(ShardIndex(0), message)) {
      sent.push_back({wire::decode_header(message.header).value(),
                      {message.payload.begin(), message.payload.end()}});
      if (!is_taken) return sent;  // the transport has no room
      pipeline_.pop();
      if (message.token != 0) pipeline_.on_sent(message.token);
    }
    return sent;
  }
  std::vector<Message> pushes() {
    std::vector<Message> pushes;
    for (Message& each : send()) {
      if (each.header.kind == Kind::kPush) pushes.push_back(std::move(each));
    }
    return pushes;
  }
  static Bytes code(const Floats& elements, Format format = Format::kInt8) {
    Bytes payload(payload_bytes(format, elements.size()));
    coding_kernels_for(format, {}, best_kernels()).encode(payload, bytes_of(elements), {}, {});
    return payload;
  }
  void answer(std::uint64_t offset, const Bytes& payload) {
    wire::Header header;
    header.kind = Kind::kAnswer;
    header.epoch = Epoch(3);
    header.key = key_of("t");
    header.offset_bytes = offset;
    answered_ = pipeline_.on_answer(ShardIndex(0), header, payload);
  }
  void reconnect(bool is_successor = false) {
    pipeline_.on_shard_down(ShardIndex(0));
    pipeline_.on_shard_up(ShardIndex(0), is_successor);
  }
  static constexpr std::uint64_t kFrame = 1024;  // bytes of 256 elements

  Floats elements_ = Floats(400);
  Floats residual_ = Floats(400);
  Floats momentum_ = Floats(400);
  Codec codec_;
  Residuals lent_;
  Pipeline pipeline_;
  Status answered_;
  std::int64_t last_handle_ = 0;
};

TEST_F(CoderTest, pushes_codes_of_frames_and_offsets_in_bytes_of_elements) {
  const Floats before = elements_;
  submit();
  const auto sent = pushes();
  ASSERT_THAT(sent, SizeIs(2));
  EXPECT_EQ(sent[0].payload, code(Floats(before.begin(), before.begin() + 256)));
  EXPECT_EQ(sent[1].payload, code(Floats(before.begin() + 256, before.end())));
  EXPECT_EQ(sent[1].header.offset_bytes, kFrame);
  EXPECT_EQ(pipeline_.counters().pushed_bytes, 1600U);
  EXPECT_EQ(pipeline_.counters().pushed_wire_bytes, 260U + 148U);
  EXPECT_EQ(pipeline_.gate(ShardIndex(0)).unanswered_bytes(), 408U + 2 * wire::kHeaderBytes)
      << "the credit is of what travels";
}

TEST_F(CoderTest, answers_are_elements_of_their_codes) {
  submit();
  send();
  const Floats sum(256, -2.5F);
  answer(0, code(sum));
  ASSERT_TRUE(answered_.is_ok()) << answered_.text();
  EXPECT_THAT(std::vector(elements_.begin(), elements_.begin() + 256), Each(-2.5F));
  EXPECT_EQ(pipeline_.counters().pulled_bytes, kFrame);
  EXPECT_EQ(pipeline_.counters().pulled_wire_bytes, 260U);
  answer(kFrame, Bytes(147));
  EXPECT_FALSE(answered_.is_ok()) << "of another length";
}

TEST_F(CoderTest, an_answer_may_have_elements_that_only_workers_had_and_is_kept_so) {
  submit();
  send();
  Floats sum(144);
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = static_cast<float>(i) * 0.3F;
  answer(kFrame, bytes_of(sum));
  ASSERT_TRUE(answered_.is_ok()) << answered_.text();
  EXPECT_EQ(std::vector(elements_.begin() + 256, elements_.end()), sum);
  reconnect(true);
  send();
  wire::Header give;
  give.kind = Kind::kGive;
  give.epoch = Epoch(3);
  give.key = key_of("t");
  give.offset_bytes = kFrame;
  pipeline_.on_recovery(ShardIndex(0), give);
  const auto given = pushes();
  ASSERT_THAT(given, SizeIs(1));
  EXPECT_EQ(given[0].payload, bytes_of(sum));
}

TEST_F(CoderTest, a_frame_is_coded_once_though_it_is_pushed_again_and_its_elements_are_gone) {
  submit();
  const auto first = pushes();
  const Floats left = residual_;
  std::fill(elements_.begin(), elements_.end(), 99.0F);
  reconnect();
  const auto second = pushes();
  ASSERT_THAT(second, SizeIs(2));
  for (int i = 0; i < 2; ++i) EXPECT_EQ(second[i].payload, first[i].payload);
  EXPECT_EQ(residual_, left);
}

TEST_F(CoderTest, a_frame_for_which_there_was_no_room_is_not_coded_again) {
  submit();
  send(false);  // Declare
  send();
  const Floats left = residual_;
  send(false);
  EXPECT_EQ(residual_, left);
}

TEST_F(CoderTest, what_codes_leave_is_in_the_next_round) {
  const Floats before = elements_;
  submit();
  pushes();
  Floats second = before;
  for (std::size_t i = 0; i < second.size(); ++i) second[i] += residual_[i];
  answer(0, code(Floats(256)));
  answer(kFrame, code(Floats(144)));
  elements_ = before;
  submit();
  const auto sent = pushes();
  ASSERT_THAT(sent, SizeIs(2));
  EXPECT_EQ(sent[0].payload, code(Floats(second.begin(), second.begin() + 256)));
}

TEST_F(CoderTest, a_part_that_is_coded_together_is_one_frame) {
  codec_ = {.scaling = true, .error_feedback = true};
  std::fill(elements_.begin(), elements_.end(), -2.0F);
  elements_[0] = 2;
  submit(Format::kOnebit);
  const auto sent = pushes();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].payload.size(), 4U * 13 + 4);
  EXPECT_THAT(residual_, Each(0.0F)) << "all have the mean magnitude";
  answer(0, sent[0].payload);
  ASSERT_TRUE(answered_.is_ok()) << answered_.text();
  EXPECT_EQ(elements_[0], 2);
  EXPECT_EQ(elements_[399], -2);
}

TEST_F(CoderTest, codes_that_there_are_not_break_the_protocol) {
  codec_ = {.k = 2};
  submit(Format::kTopk, false);
  ASSERT_THAT(pushes(), SizeIs(1));
  const std::uint32_t words[] = {3, 0, 400, 0};  // the second is beyond
  Bytes payload(sizeof words);
  std::memcpy(payload.data(), words, sizeof words);
  answer(0, payload);
  EXPECT_FALSE(answered_.is_ok());
}

TEST_F(CoderTest, float32_is_pushed_after_momentum_once_and_answered_as_it_is) {
  codec_ = {.momentum = 0.5};
  std::fill(elements_.begin(), elements_.end(), 2.0F);
  submit(Format::kFloat32, false);
  const Floats given(80, 3.0F);  // of frames of 320 bytes
  const auto sent = pushes();
  ASSERT_THAT(sent, SizeIs(5));
  EXPECT_EQ(sent[0].payload, bytes_of(given));
  reconnect();
  EXPECT_EQ(pushes()[4].payload, bytes_of(given));
  EXPECT_THAT(momentum_, Each(2.0F));
  answer(320, bytes_of(Floats(80, 7.0F)));
  ASSERT_TRUE(answered_.is_ok()) << answered_.text();
  EXPECT_EQ(elements_[80], 7);
}

TEST_F(CoderTest, without_feedback_nothing_is_kept) {
  submit(Format::kInt4, false);
  EXPECT_THAT(pushes(), SizeIs(2)) << "four times as many bytes of elements as of a frame";
  EXPECT_THAT(residual_, Each(0.0F));
}

TEST_F(CoderTest, a_successor_gets_the_codes_that_were_the_sum) {
  submit();
  send();
  const Bytes sum = code(Floats(elements_.begin(), elements_.begin() + 256));
  answer(0, sum);
  reconnect(true);
  send();
  wire::Header give;
  give.kind = Kind::kGive;
  give.epoch = Epoch(3);
  give.key = key_of("t");
  pipeline_.on_recovery(ShardIndex(0), give);
  const auto given = pushes();
  ASSERT_THAT(given, SizeIs(1));
  EXPECT_EQ(given[0].header.flags, wire::kSum);
  EXPECT_EQ(given[0].payload, sum);
}

class CoderBehindRelaysTest : public CoderTest {
 protected:
  CoderBehindRelaysTest() : CoderTest(Place::kBehindRelays) {
    pipeline_.on_shard_up(ShardIndex(1));
  }
  std::size_t lent_bytes() {
    std::size_t bytes = 0;
    lent_.code_with(key_of("t"), 1600, [&](const Carry& lent) { bytes = lent.residual.size(); });
    return bytes;
  }
};

TEST_F(CoderBehindRelaysTest, to_a_relay_go_elements) {
  submit();
  std::vector<Message> sent = pushes();
  Outgoing message;
  while (pipeline_.front(ShardIndex(1), message)) {
    const wire::Header header = wire::decode_header(message.header).value();
    if (header.kind == Kind::kPush) {
      sent.push_back({header, {message.payload.begin(), message.payload.end()}});
    }
    pipeline_.pop();
    if (message.token != 0) pipeline_.on_sent(message.token);
  }
  ASSERT_THAT(sent, SizeIs(2));
  EXPECT_EQ(sent[0].payload.size() + sent[1].payload.size(), 1600U);
  EXPECT_THAT(residual_, Each(0.0F)) << "the relay has it";
}

TEST_F(CoderBehindRelaysTest, the_residual_is_lent_to_relays_until_the_operation_ends) {
  EXPECT_EQ(lent_bytes(), 0U);
  submit();
  EXPECT_EQ(lent_bytes(), 1600U);
  lent_.code_with(key_of("t"), 1604,
                  [](const Carry& lent) { EXPECT_TRUE(lent.empty()) << "that of another tensor"; });
  pipeline_.fail_all({Code::kDisconnected, "a relay was lost"});
  EXPECT_EQ(lent_bytes(), 0U);
}

class CoderOfARelayTest : public CoderTest {
 protected:
  CoderOfARelayTest() : CoderTest(Place::kRelay) {}
};

TEST_F(CoderOfARelayTest, codes_with_what_its_worker_has_lent) {
  std::fill(residual_.begin(), residual_.end(), 0.25F);
  lent_.lend(key_of("t"), {.residual = std::as_writable_bytes(std::span(residual_))}, 1600);
  Floats expected = elements_;
  for (float& each : expected) each += 0.25F;
  submit(Format::kInt8, false);
  const auto sent = pushes();
  ASSERT_THAT(sent, SizeIs(2));
  EXPECT_EQ(sent[0].payload, code(Floats(expected.begin(), expected.begin() + 256)));
  EXPECT_EQ(sent[1].payload, code(Floats(expected.begin() + 256, expected.end())));
  EXPECT_NE(residual_, Floats(400, 0.25F)) << "what the codes left";
}

}  // namespace
}  // namespace byteps
