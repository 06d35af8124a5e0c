// One tensor on a device, step by step: what is ordered when, and what happens when the operation ends early.
#include "worker/staging.h"

#include <cstring>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/pipeline.h"

namespace byteps {
namespace {

using device::Order;
using testing::ElementsAre;
using testing::IsEmpty;
using wire::Kind;

constexpr std::uint64_t kFrameBytes = 64;
constexpr std::uint64_t kPartBytes = 4 * kFrameBytes;
constexpr std::uint64_t kChunkBytes = 2 * kFrameBytes;

// Worker 0 of two, and one shard or some, whose answers the test makes.
class StagingTest : public testing::Test {
 protected:
  explicit StagingTest(std::size_t pool_pages = 16, const std::vector<std::uint32_t>& weights = {1},
                       TimelineLane* timeline = nullptr)
      : pool_(pool_pages * device::kSlabAlignment),
        staging_(pool_, kChunkBytes),
        placement_(kPartBytes, kFrameBytes, weights) {
    PipelineConfig config{.self = WorkerRank(0), .epoch = Epoch(3), .placement = placement_};
    config.credit_bytes = 1 << 20;
    config.road_ends = staging_.road_ends();
    config.measured.timeline = timeline;
    staging_.begin(config.self, true, timeline);
    pipeline_.emplace(config);
    for (std::uint32_t i = 0; i < placement_.shard_count(); ++i) {
      pipeline_->on_shard_up(ShardIndex(i));
    }
  }

  // The input is `values`, the output beside it unless it is in place.
  void submit(std::vector<std::byte>& input, std::vector<std::byte>& output,
              std::int64_t handle = 1, const std::string& name = "t",
              Operation operation = Operation::kSum, std::uint32_t root = 0) {
    PipelineCall call;
    call.handle = HandleId(handle);
    call.name = name;
    call.spec = {.dtype = DType::kUint8,
                 .operation = operation,
                 .total_bytes = input.size(),
                 .root = WorkerRank(root)};
    if (call.spec.gives(WorkerRank(0))) call.input = input;
    call.output = output;
    staging_.take(call);
    pipeline_->submit(std::move(call));
    turn();
  }
  // Takes what is ordered, as "await", "out 0.1" (part, chunk), "in 0.1" or "within 0.1".
  std::vector<std::string> ordered() {
    turn();
    std::vector<std::string> texts;
    for (auto& orders = staging_.orders(); !orders.empty(); orders.pop_front()) {
      texts.push_back(text_of(orders.front()));
      under_way_.push_back(std::move(orders.front()));
    }
    return texts;
  }
  // The first one that is under way happens.
  void happen(const Status& result = Status::ok()) {
    const Order order = std::move(under_way_.front());
    under_way_.erase(under_way_.begin());
    auto* const address = reinterpret_cast<void*>(order.address);
    if (order.kind == Order::Kind::kOut) std::memcpy(order.host, address, order.bytes);
    if (order.kind == Order::Kind::kIn) std::memcpy(address, order.host, order.bytes);
    staging_.on_report({order.kind, order.operation, order.part, order.chunk, result});
    turn();
  }
  // What goes to the shards now: frames as "part.frame".
  std::vector<std::string> send() {
    std::vector<std::string> sent;
    for (std::uint32_t i = 0; i < placement_.shard_count(); ++i) send_to(ShardIndex(i), sent);
    return sent;
  }
  void send_to(ShardIndex shard, std::vector<std::string>& sent) {
    Outgoing message;
    while (pipeline_->front(shard, message)) {
      const wire::Header header = wire::decode_header(message.header).value();
      if (header.kind == Kind::kPush) {
        sent.push_back(std::to_string(header.part.value) + "." +
                       std::to_string(header.offset_bytes / kFrameBytes));
        pushes_.push_back({shard, header, {message.payload.begin(), message.payload.end()}});
      }
      if (message.token != 0) lent_.push_back(message.token);
      pipeline_->pop();
    }
  }
  void give_back() {
    for (const SendToken token : std::exchange(lent_, {})) pipeline_->on_sent(token);
    turn();
  }
  // Twice what was pushed: the other worker has the same.
  void answer(std::size_t push) {
    Pushed& pushed = pushes_[push];
    wire::Header header = pushed.header;
    header.kind = Kind::kAnswer;
    for (std::byte& value : pushed.payload) value = std::byte(static_cast<int>(value) * 2);
    const Status fine = pipeline_->on_answer(pushed.shard, header, pushed.payload);
    ASSERT_TRUE(fine.is_ok()) << fine.text();
    turn();
  }
  void turn() {
    do {
      pipeline_->tick();
    } while (pipeline_->next_deadline() == 0);
    for (const auto& output : pipeline_->outputs()) {
      if (const auto* const end = std::get_if<PipelineOutput::Complete>(&output)) {
        ended_.push_back({end->handle.value, end->status});
        staging_.on_ended(end->handle);
      }
    }
    pipeline_->clear_outputs();
  }
  static std::string text_of(const Order& order) {
    if (order.kind == Order::Kind::kAwait) return "await";
    const char* const name = order.kind == Order::Kind::kOut  ? "out "
                             : order.kind == Order::Kind::kIn ? "in "
                                                              : "within ";
    return name + std::to_string(order.part) + "." + std::to_string(order.chunk);
  }
  static std::vector<std::byte> values(std::uint64_t count) {
    std::vector<std::byte> made(count);
    for (std::size_t i = 0; i < made.size(); ++i) made[i] = std::byte(i % 100);
    return made;
  }

  struct Pushed {
    ShardIndex shard;
    wire::Header header;
    std::vector<std::byte> payload;
  };
  std::vector<std::byte> pool_;
  Staging staging_;
  const Placement placement_;
  std::optional<Pipeline> pipeline_;
  std::vector<Order> under_way_;
  std::vector<Pushed> pushes_;
  std::vector<SendToken> lent_;
  std::vector<std::pair<std::int64_t, Status>> ended_;
};

TEST_F(StagingTest, copies_out_pushes_and_copies_in_overlap_chunk_by_chunk) {
  std::vector<std::byte> memory = values(kPartBytes);
  const std::vector<std::byte> before = memory;
  submit(memory, memory);
  EXPECT_THAT(ordered(), ElementsAre("await"));
  EXPECT_THAT(send(), IsEmpty());
  happen();
  EXPECT_THAT(ordered(), ElementsAre("out 0.0", "out 0.1"));
  EXPECT_THAT(send(), IsEmpty()) << "nothing is there yet";
  happen();
  EXPECT_THAT(send(), ElementsAre("0.0", "0.1"));
  answer(1);
  EXPECT_THAT(ordered(), IsEmpty()) << "half a chunk";
  happen();
  EXPECT_THAT(send(), ElementsAre("0.2", "0.3"));
  answer(0);
  EXPECT_THAT(ordered(), ElementsAre("in 0.0"));
  give_back();
  answer(2);
  answer(3);
  EXPECT_THAT(ordered(), ElementsAre("in 0.1"));
  happen();
  EXPECT_THAT(ended_, IsEmpty());
  happen();
  ASSERT_EQ(ended_.size(), 1U);
  EXPECT_TRUE(ended_[0].second.is_ok());
  for (std::size_t i = 0; i < memory.size(); ++i) {
    ASSERT_EQ(static_cast<int>(memory[i]), 2 * static_cast<int>(before[i])) << i;
  }
  EXPECT_TRUE(staging_.slabs().all_is_free());
  EXPECT_EQ(staging_.counters().out_bytes, kPartBytes);
  EXPECT_EQ(staging_.counters().in_bytes, kPartBytes);
}

TEST_F(StagingTest, an_operation_that_fails_ends_when_its_copies_are_over) {
  std::vector<std::byte> memory = values(kPartBytes);
  submit(memory, memory);
  EXPECT_THAT(ordered(), ElementsAre("await"));
  happen();
  EXPECT_THAT(ordered(), ElementsAre("out 0.0", "out 0.1"));
  pipeline_->on_mismatch(key_of("t"), Status(Code::kMismatch, "ranks disagree"));
  turn();
  EXPECT_THAT(ended_, IsEmpty()) << "two copies still read it";
  EXPECT_FALSE(staging_.slabs().all_is_free());
  happen();
  EXPECT_THAT(ended_, IsEmpty());
  happen();
  ASSERT_EQ(ended_.size(), 1U);
  EXPECT_TRUE(ended_[0].second.is(Code::kMismatch));
  EXPECT_TRUE(staging_.slabs().all_is_free());
  EXPECT_FALSE(staging_.waits_for_device());
}

TEST_F(StagingTest, an_operation_that_fails_while_it_is_pushed_and_landed_ends_when_both_are_over) {
  std::vector<std::byte> memory = values(kPartBytes);
  submit(memory, memory);
  ordered();
  happen();
  ordered();
  happen();
  happen();
  send();
  answer(0);
  answer(1);
  EXPECT_THAT(ordered(), ElementsAre("in 0.0"));
  pipeline_->fail_all(Status(Code::kCancelled, "the job ends"));
  turn();
  EXPECT_THAT(ended_, IsEmpty());
  happen();
  EXPECT_THAT(ended_, IsEmpty()) << "frames are at the transport";
  EXPECT_FALSE(staging_.slabs().all_is_free());
  give_back();
  ASSERT_EQ(ended_.size(), 1U);
  EXPECT_TRUE(staging_.slabs().all_is_free());
}

TEST_F(StagingTest, one_that_fails_before_its_stream_came_so_far_ends_at_once) {
  std::vector<std::byte> memory = values(kPartBytes);
  submit(memory, memory);
  EXPECT_THAT(ordered(), ElementsAre("await"));
  pipeline_->fail_all(Status(Code::kCancelled, "the job ends"));
  turn();
  EXPECT_EQ(ended_.size(), 1U);
  happen();
  EXPECT_FALSE(staging_.waits_for_device());
  EXPECT_THAT(ordered(), IsEmpty());
}

// That its event has not happened is nobody's matter any more.
TEST_F(StagingTest, one_that_has_failed_is_not_waited_for_however_long_its_stream_takes) {
  std::vector<std::byte> memory = values(kPartBytes);
  submit(memory, memory);
  EXPECT_TRUE(staging_.waits_for_device());
  pipeline_->on_mismatch(key_of("t"), Status(Code::kMismatch, "ranks disagree"));
  turn();
  EXPECT_EQ(ended_.size(), 1U);
  EXPECT_FALSE(staging_.waits_for_device());
}

TEST_F(StagingTest, who_gets_a_broadcast_copies_nothing_out) {
  std::vector<std::byte> memory = values(kChunkBytes);
  submit(memory, memory, 1, "t", Operation::kBroadcast, 1);
  ordered();
  happen();
  EXPECT_THAT(ordered(), IsEmpty());
  EXPECT_THAT(send(), ElementsAre("0.0", "0.1"));
  for (Pushed& push : pushes_) {
    EXPECT_THAT(push.payload, IsEmpty());
    push.payload.assign(kFrameBytes, std::byte{21});
  }
  answer(0);
  answer(1);
  give_back();
  EXPECT_THAT(ordered(), ElementsAre("in 0.0"));
  happen();
  EXPECT_EQ(ended_.size(), 1U);
  EXPECT_EQ(memory, std::vector<std::byte>(kChunkBytes, std::byte{42}));
}

TEST_F(StagingTest, the_root_of_a_broadcast_copies_its_output_on_the_device) {
  std::vector<std::byte> input = values(kChunkBytes);
  std::vector<std::byte> output(kChunkBytes);
  submit(input, output, 1, "t", Operation::kBroadcast, 0);
  ordered();
  happen();
  EXPECT_THAT(ordered(), ElementsAre("out 0.0"));
  happen();
  EXPECT_THAT(send(), ElementsAre("0.0", "0.1"));
  for (Pushed& push : pushes_) push.payload.clear();
  answer(0);
  answer(1);
  give_back();
  EXPECT_THAT(ordered(), ElementsAre("within 0.0"));
  happen();
  EXPECT_EQ(ended_.size(), 1U);
}

class SmallPoolTest : public StagingTest {
 protected:
  SmallPoolTest() : StagingTest(1) {}
  void wanted(const std::string& name, std::uint32_t part = 0) {
    wire::Header header;
    header.kind = Kind::kWanted;
    header.epoch = Epoch(3);
    header.key = key_of(name);
    header.part = PartIndex(part);
    pipeline_->on_wanted(ShardIndex(0), header);
    turn();
  }
};

TEST_F(SmallPoolTest, the_next_part_waits_for_the_slab_of_the_one_before) {
  std::vector<std::byte> a = values(kChunkBytes);
  std::vector<std::byte> b = values(kChunkBytes);
  submit(a, a, 1, "a");
  submit(b, b, 2, "b");
  EXPECT_THAT(ordered(), ElementsAre("await", "await"));
  happen();
  happen();
  EXPECT_THAT(ordered(), ElementsAre("out 0.0"));
  happen();
  send();
  answer(0);
  answer(1);
  give_back();
  EXPECT_THAT(ordered(), ElementsAre("in 0.0"));
  happen();
  EXPECT_EQ(ended_.size(), 1U);
  EXPECT_THAT(ordered(), ElementsAre("out 0.0")) << "that of b";
  EXPECT_EQ(staging_.counters().unpinned_parts, 0U);
}

// As at the gates, so that all ranks fill their pools with the same.
TEST_F(SmallPoolTest, slabs_go_by_key_and_not_by_submission) {
  const bool a_is_first = key_of("a").value < key_of("b").value;
  const std::string first = a_is_first ? "a" : "b";
  const std::string second = a_is_first ? "b" : "a";
  std::vector<std::byte> x = values(kChunkBytes);
  std::vector<std::byte> y = values(kChunkBytes);
  std::vector<std::byte> z = values(kChunkBytes);
  submit(x, x, 1, "taken");
  submit(y, y, 2, second);
  submit(z, z, 3, first);
  ordered();
  for (int i = 0; i < 3; ++i) happen();
  EXPECT_THAT(ordered(), ElementsAre("out 0.0"));
  happen();
  send();
  answer(0);
  answer(1);
  give_back();
  ordered();
  happen();
  ordered();
  ASSERT_EQ(under_way_.size(), 1U);
  EXPECT_EQ(under_way_[0].operation, 3U);
}

TEST_F(SmallPoolTest, what_others_wait_for_goes_beyond_the_pool) {
  std::vector<std::byte> a = values(kChunkBytes);
  std::vector<std::byte> b = values(kChunkBytes);
  submit(a, a, 1, "a");
  submit(b, b, 2, "b");
  ordered();
  happen();
  happen();
  EXPECT_THAT(ordered(), ElementsAre("out 0.0"));
  wanted("b");
  EXPECT_THAT(ordered(), ElementsAre("out 0.0"));
  EXPECT_EQ(staging_.counters().unpinned_parts, 1U);
}

// Others may submit what has the slab only when they have what waits for it.
TEST_F(SmallPoolTest, where_no_slab_comes_back_one_part_after_the_other_goes_without) {
  std::vector<std::byte> memory = values(5 * kPartBytes);
  submit(memory, memory);
  ordered();
  happen();
  EXPECT_THAT(ordered(), ElementsAre("out 0.0", "out 0.1"));
  const auto ordered_at = [&](TimeNs now) {
    pipeline_->begin_turn(now);
    return ordered();
  };
  const TimeNs first_ns = Staging::kStallFirstNs;
  EXPECT_THAT(ordered_at(first_ns - 1), IsEmpty());
  EXPECT_THAT(ordered_at(first_ns), ElementsAre("out 1.0", "out 1.1"));
  EXPECT_EQ(staging_.counters().unpinned_parts, 1U);
  EXPECT_THAT(ordered_at(3 * first_ns - 1), IsEmpty()) << "twice as long";
  EXPECT_THAT(ordered_at(3 * first_ns), ElementsAre("out 2.0", "out 2.1"));
  EXPECT_EQ(pipeline_->next_deadline(), 7 * first_ns);
  staging_.end();
  EXPECT_THAT(ordered_at(7 * first_ns), IsEmpty()) << "nothing more is begun";
}

TEST_F(SmallPoolTest, what_was_wanted_before_it_was_ready_goes_beyond_it_too) {
  std::vector<std::byte> a = values(kChunkBytes);
  std::vector<std::byte> b = values(kChunkBytes);
  submit(a, a, 1, "a");
  submit(b, b, 2, "b");
  ordered();
  happen();
  EXPECT_THAT(ordered(), ElementsAre("out 0.0"));
  wanted("b");
  EXPECT_THAT(ordered(), IsEmpty());
  happen();
  EXPECT_THAT(ordered(), ElementsAre("out 0.0"));
}

// Ranks may disagree about a tensor, of which one has a single part: the shard of the first part alone hears of it.
TEST_F(SmallPoolTest, with_a_part_that_others_wait_for_goes_the_first_of_its_tensor) {
  std::vector<std::byte> a = values(kChunkBytes);
  std::vector<std::byte> b = values(3 * kPartBytes);
  submit(a, a, 1, "a");
  submit(b, b, 2, "b");
  ordered();
  happen();
  EXPECT_THAT(ordered(), ElementsAre("out 0.0"));
  happen();
  EXPECT_THAT(ordered(), IsEmpty());
  wanted("b", 2);
  EXPECT_THAT(ordered(), ElementsAre("out 0.0", "out 0.1", "out 2.0", "out 2.1"));
}

// Shards with unequal shares: at the end of a tensor some have nothing of it.
class UnequalSharesTest : public StagingTest {
 protected:
  UnequalSharesTest() : StagingTest(16, {1, 16}) {}
  // How long a tensor is that has an empty part.
  std::uint64_t bytes_with_empty_part() const {
    for (std::uint64_t bytes = kFrameBytes; bytes < 64 * kPartBytes; bytes += kFrameBytes) {
      for (std::uint64_t part = 0; part < placement_.part_count(bytes); ++part) {
        if (placement_.part(key_of("t"), bytes, part).bytes == 0) return bytes;
      }
    }
    return 0;
  }
};

TEST_F(UnequalSharesTest, an_empty_part_of_a_tensor_is_not_copied) {
  ASSERT_GT(bytes_with_empty_part(), 0U);
  const std::vector<std::byte> begun = values(bytes_with_empty_part());
  std::vector<std::byte> memory = begun;
  submit(memory, memory);
  for (std::size_t answered = 0; ended_.empty();) {
    ordered();
    if (!under_way_.empty()) {
      EXPECT_TRUE(under_way_.front().kind == Order::Kind::kAwait || under_way_.front().bytes > 0);
      happen();
      continue;
    }
    send();
    give_back();
    ASSERT_LT(answered, pushes_.size()) << "nothing more happens";
    answer(answered++);
  }
  EXPECT_TRUE(ended_[0].second.is_ok());
  for (std::size_t i = 0; i < memory.size(); ++i) {
    ASSERT_EQ(static_cast<int>(memory[i]), 2 * static_cast<int>(begun[i])) << i;
  }
}

// A pool that holds no part at all.
class NoPoolTest : public StagingTest {
 protected:
  NoPoolTest() : StagingTest(0) {}
};

TEST_F(NoPoolTest, parts_that_no_pool_would_hold_pass_one_after_the_other) {
  std::vector<std::byte> memory = values(3 * kPartBytes);
  submit(memory, memory);
  ordered();
  happen();
  EXPECT_THAT(ordered(), ElementsAre("out 0.0", "out 0.1")) << "of one part";
  EXPECT_EQ(staging_.counters().unpinned_parts, 1U);
}

// ---- the timeline

// What a test does takes a millisecond, and each look at the clock a microsecond: so a look has the milliseconds of
// what it was for.
struct PlayedTimeline {
  void pass() { now += kMillisecond; }
  std::vector<TimelineRecord> records(TimelineRecord::Kind kind) const {
    std::vector<TimelineRecord> found;
    for (const TimelineRecord& record : lane.records()) {
      if (record.kind == kind) found.push_back(record);
    }
    return found;
  }
  // In milliseconds; -1: not seen.
  static std::vector<int> times(const TimelineRecord& record, std::size_t count) {
    std::vector<int> milliseconds;
    for (std::size_t i = 0; i < count; ++i) {
      const TimeNs time = record.at_ns[i];
      milliseconds.push_back(time == 0 ? -1 : static_cast<int>(time / kMillisecond));
    }
    return milliseconds;
  }
  TimeNs now = 0;
  Timeline timeline{Round(0), Round(0), [this] { return now += kMicrosecond; }};
  TimelineLane& lane = timeline.open_lane();
};

class StagingTimelineTest : protected PlayedTimeline, public StagingTest {
 protected:
  explicit StagingTimelineTest(std::size_t pool_pages = 16) : StagingTest(pool_pages, {1}, &lane) {}
  void happen() {
    pass();
    StagingTest::happen();
  }
  void answer(std::size_t push) {
    pass();
    StagingTest::answer(push);
  }
};

TEST_F(StagingTimelineTest, a_part_has_the_times_of_its_stream_its_slab_and_its_copies) {
  std::vector<std::byte> memory = values(kPartBytes);
  submit(memory, memory);
  ordered();
  happen();  // 1: its stream
  ordered();
  happen();  // 2: the first chunk is out
  pass();
  send();    // 3
  happen();  // 4: the second
  send();
  give_back();
  for (const std::size_t push : {0U, 1U, 2U, 3U}) answer(push);  // 5 to 8
  ordered();
  happen();  // 9
  happen();  // 10
  ASSERT_EQ(ended_.size(), 1U);
  const auto outs = records(TimelineRecord::Kind::kCopyOut);
  ASSERT_EQ(outs.size(), 1U);
  EXPECT_THAT(times(outs[0], 5), ElementsAre(0, 1, 1, 2, 4));
  EXPECT_EQ(outs[0].key, key_of("t").value);
  EXPECT_EQ(outs[0].bytes, kPartBytes);
  const auto ins = records(TimelineRecord::Kind::kCopyIn);
  ASSERT_EQ(ins.size(), 1U);
  EXPECT_THAT(times(ins[0], 2), ElementsAre(6, 10))
      << "the first chunk is ordered with its answers";
  const auto parts = records(TimelineRecord::Kind::kPart);
  ASSERT_EQ(parts.size(), 1U);
  EXPECT_THAT(times(parts[0], 5), ElementsAre(2, 3, 4, 5, 8)) << "at the gate with the first chunk";
  const auto operations = records(TimelineRecord::Kind::kOperation);
  ASSERT_EQ(operations.size(), 1U);
  EXPECT_EQ(times(operations[0], 3)[TimelineRecord::kDone], 10);
}

TEST_F(StagingTimelineTest, other_rounds_cost_no_look_at_the_clock) {
  std::vector<std::byte> memory = values(kChunkBytes);
  for (int round = 0; round < 2; ++round) {
    now = 0;
    submit(memory, memory, round + 1);
    ordered();
    StagingTest::happen();
    ordered();
    StagingTest::happen();
    send();
    give_back();
    StagingTest::answer(0);
    StagingTest::answer(1);
    pushes_.clear();
    ordered();
    StagingTest::happen();
    EXPECT_EQ(now == 0, round == 1);
  }
  EXPECT_EQ(ended_.size(), 2U);
  EXPECT_EQ(records(TimelineRecord::Kind::kCopyIn).size(), 1U);
}

TEST_F(StagingTimelineTest, a_part_that_gives_nothing_has_no_times_of_a_copy_out) {
  std::vector<std::byte> memory = values(kChunkBytes);
  submit(memory, memory, 1, "t", Operation::kBroadcast, 1);
  ordered();
  happen();
  const auto outs = records(TimelineRecord::Kind::kCopyOut);
  ASSERT_EQ(outs.size(), 1U);
  EXPECT_THAT(times(outs[0], 5), ElementsAre(0, 1, 1, -1, -1));
}

class SmallPoolTimelineTest : public StagingTimelineTest {
 protected:
  SmallPoolTimelineTest() : StagingTimelineTest(1) {}
};

TEST_F(SmallPoolTimelineTest, the_wait_for_a_slab_is_told_from_that_for_the_stream) {
  std::vector<std::byte> a = values(kChunkBytes);
  std::vector<std::byte> b = values(kChunkBytes);
  submit(a, a, 1, "a");
  submit(b, b, 2, "b");
  ordered();
  happen();  // 1 and 2: their streams
  happen();
  ordered();
  happen();  // 3: that of a is out
  send();
  give_back();
  answer(0);  // 4 and 5
  answer(1);
  ordered();
  happen();  // 6: it is on its device again, and b has its slab
  ordered();
  happen();  // 7
  const auto outs = records(TimelineRecord::Kind::kCopyOut);
  ASSERT_EQ(outs.size(), 2U);
  EXPECT_THAT(times(outs[1], 5), ElementsAre(0, 2, 6, 7, 7));
}

}  // namespace
}  // namespace byteps
