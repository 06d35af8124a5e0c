// What passes a gate without credit where no answers come.
#include "worker/flow.h"

#include <vector>

#include <gtest/gtest.h>

#include "net/transport.h"

namespace byteps {
namespace {

constexpr TimeNs kStalledNs = 5 * kMillisecond;

// Two workers of one machine, and another; two shards, with credit for one frame each.
PipelineConfig config_of(bool is_relay) {
  PipelineConfig config{
      .self = WorkerRank(0), .epoch = Epoch(3), .placement = Placement(256, 64, {1, 1})};
  config.credit_bytes = 1;
  config.credit_frames_min = 1;
  config.stalled_ns = kStalledNs;
  config.is_relay = is_relay;
  config.groups = std::make_shared<const Groups>(std::vector<std::uint64_t>{1, 1, 2});
  return config;
}

class FlowTest : public testing::Test {
 protected:
  explicit FlowTest(bool is_relay = true) : work_(config_of(is_relay)), flow_(work_) {
    for (ShardWay& shard : work_.shards) shard.gate().add({}, false, 0);
  }
  ShardWay& way(std::size_t shard = 0) { return work_.shards[shard]; }
  // How many frames pass now; then one has to wait.
  int pass(std::size_t shard = 0) {
    int count = 0;
    for (; way(shard).gate().may_pass(kCost) && count < 10'000; ++count) {
      way(shard).gate().on_sent(kCost, 0);
    }
    flow_.on_blocked(way(shard), kCost);
    return count;
  }
  void at(TimeNs now) {
    work_.now = now;
    flow_.tick();
  }
  // At the next deadline, that of the first way.
  int pass_later() {
    EXPECT_EQ(flow_.next_deadline(), work_.now + kStalledNs);
    at(work_.now + kStalledNs - 1);
    EXPECT_EQ(pass(), 0) << "not before";
    at(work_.now + 1);
    return pass();
  }

  static constexpr std::uint64_t kCost = credit_cost(64);
  Work work_;
  Flow flow_;
};

class FlowOfWorkerTest : public FlowTest {
 protected:
  FlowOfWorkerTest() : FlowTest(false) {}
};

TEST_F(FlowTest, while_no_answer_comes_at_a_relay_ever_more_frames_pass_without_credit) {
  EXPECT_EQ(pass(), 1) << "its credit";
  for (const int expected : {1, 2, 4, 8}) EXPECT_EQ(pass_later(), expected);
  for (int i = 0; i < 12; ++i) pass_later();
  EXPECT_EQ(pass_later(), 1024) << "everything has a limit";
}

// That of a part that is coded together.
TEST_F(FlowTest, a_frame_that_costs_as_much_as_many_passes_as_the_first_of_them) {
  EXPECT_EQ(pass(), 1);
  constexpr std::uint64_t kLarge = 100 * kCost;
  flow_.on_blocked(way(), kLarge);
  EXPECT_FALSE(way().gate().may_pass(kLarge));
  at(flow_.next_deadline());
  EXPECT_TRUE(way().gate().may_pass(kLarge));
}

TEST_F(FlowTest, an_answer_is_credit_again_and_the_next_stall_begins_with_one_frame) {
  EXPECT_EQ(pass(), 1);
  EXPECT_EQ(pass_later(), 1);
  EXPECT_EQ(pass_later(), 2);
  at(work_.now + kStalledNs);  // four may pass
  for (int i = 0; i < 4; ++i) flow_.free(way(), kCost, 0);
  EXPECT_EQ(pass(), 1) << "credit, and no more";
  EXPECT_EQ(pass_later(), 1);
}

TEST_F(FlowTest, ways_stall_by_themselves) {
  EXPECT_EQ(pass(0), 1);
  at(2 * kMillisecond);
  EXPECT_EQ(pass(1), 1);
  EXPECT_EQ(flow_.next_deadline(), kStalledNs);
  at(kStalledNs);
  EXPECT_EQ(pass(0), 1);
  EXPECT_EQ(pass(1), 0);
  EXPECT_EQ(flow_.next_deadline(), 2 * kMillisecond + kStalledNs);
  at(2 * kMillisecond + kStalledNs);
  EXPECT_EQ(pass(1), 1);
}

TEST_F(FlowTest, with_the_connection_ends_what_may_pass_without_credit) {
  EXPECT_EQ(pass(), 1);
  EXPECT_EQ(pass_later(), 1);
  at(work_.now + kStalledNs);
  way().up();
  way().down();
  flow_.on_shard_down(way());
  way().up();
  EXPECT_EQ(pass(), 1) << "the credit of a new connection";
  EXPECT_EQ(pass_later(), 1);
}

// A relay that finds its credit by itself, and has found that answers come at this rate.
class FlowOfSlowNetworkTest : public testing::Test {
 protected:
  static PipelineConfig config() {
    PipelineConfig config = config_of(true);
    config.credit_bytes = 0;
    return config;
  }
  FlowOfSlowNetworkTest() {
    for (ShardWay& shard : work_.shards) shard.gate().add({}, false, 0);
  }
  // Frames of 1 MiB wait for credit, and are answered one by one at this rate.
  void answers(int count, std::uint64_t bytes_per_ms) {
    for (int i = 0; i < count; ++i) {
      flow_.on_blocked(way(), kMiB);
      work_.now += static_cast<TimeNs>(kMiB * 1000 / bytes_per_ms) * kMicrosecond;
      way().gate().on_sent(kMiB, 0);
      flow_.free(way(), kMiB, 0);
    }
  }
  TimeNs patience_with(std::uint64_t unanswered_bytes) {
    work_.now += kSecond;
    flow_.tick();  // no earlier deadline is left
    way(1).gate().on_sent(unanswered_bytes, 0);
    flow_.on_blocked(way(), kMiB);
    const TimeNs patience = flow_.next_deadline() - work_.now;
    flow_.free(way(1), unanswered_bytes, 0);
    return patience;
  }
  ShardWay& way(std::size_t shard = 0) { return work_.shards[shard]; }

  static constexpr std::uint64_t kMiB = 1 << 20;
  Work work_{config()};
  Flow flow_{work_};
};

TEST_F(FlowOfSlowNetworkTest, frames_pass_without_credit_when_what_is_under_way_should_have_come) {
  EXPECT_EQ(patience_with(kMiB), kStalledNs) << "the rate is not known";
  answers(20, 64'000);
  const TimeNs usual = kMiB / 64 * kMicrosecond;  // 16 ms
  EXPECT_NEAR(static_cast<double>(patience_with(kMiB)), static_cast<double>(kStalledNs + 2 * usual),
              static_cast<double>(kMillisecond));
}

TEST_F(FlowOfSlowNetworkTest,
       the_patience_with_a_slow_network_has_a_limit_and_a_fast_one_is_as_ever) {
  answers(20, 64'000);
  EXPECT_EQ(patience_with(100 * kMiB), 10 * kStalledNs);
  answers(1000, 10'000'000);
  EXPECT_LT(patience_with(kMiB), kStalledNs + kMillisecond);
}

TEST_F(FlowOfSlowNetworkTest, a_rate_below_a_megabyte_a_second_is_known_too) {
  answers(20, 500);
  EXPECT_EQ(patience_with(10'000), kStalledNs + 2 * 20 * kMillisecond);
}

TEST_F(FlowOfWorkerTest, while_no_answer_comes_at_a_worker_some_frames_pass_without_credit) {
  EXPECT_EQ(pass(), 1) << "its credit";
  at(250 * kMillisecond - 1);
  EXPECT_EQ(pass(), 0) << "it is patient";
  at(250 * kMillisecond);
  EXPECT_EQ(pass(), 1);
  for (const int expected : {2, 4, 8, 8, 8}) EXPECT_EQ(pass_later(), expected);
  for (int answer = 0; answer < 20; ++answer) {
    at(work_.now + kStalledNs - 1);
    flow_.free(way(), kCost, 0);
    EXPECT_EQ(pass(), 1) << "in place of what is answered, and no more";
  }
  while (way().gate().unanswered_bytes() > 0) flow_.free(way(), kCost, 0);
  EXPECT_EQ(pass(), 1) << "credit again";
}

TEST_F(FlowOfWorkerTest, tensors_that_go_on_meanwhile_do_not_end_a_stall) {
  EXPECT_EQ(pass(), 1);
  Gate::Order urgent;
  urgent.priority = 1;
  for (TimeNs now = 0; now < 250 * kMillisecond; now += 10 * kMillisecond) {
    at(now);
    const Gate::Ticket ticket = way().gate().add(urgent, true, 1);  // others want it
    way().gate().on_sent(kCost, 1);
    way().gate().remove(ticket);
    flow_.free(way(), kCost, 1);
    EXPECT_EQ(pass(), 0) << now;
  }
  at(250 * kMillisecond);
  EXPECT_EQ(pass(), 1);
}

TEST_F(FlowOfWorkerTest, whoever_was_first_when_the_way_stalled_is_first_or_it_is_no_stall) {
  EXPECT_EQ(pass(), 1);
  Gate::Order urgent;
  urgent.priority = 1;
  way().gate().add(urgent, false, 1);
  at(250 * kMillisecond);
  EXPECT_EQ(pass(), 0);
  at(500 * kMillisecond);
  EXPECT_EQ(pass(), 1);
}

// A worker that sends to servers.
PipelineConfig config_of_servers(std::uint64_t credit_bytes) {
  PipelineConfig config = config_of(false);
  config.groups = nullptr;
  config.credit_bytes = credit_bytes;
  return config;
}

bool may_overtake(ShardWay& way) {
  way.gate().on_sent(way.gate().credit_bytes(), 0);
  Gate::Order urgent;
  urgent.priority = 1;
  way.gate().add(urgent, false, 0);
  return way.gate().may_pass(credit_cost(64));
}

TEST(FlowToServers, more_than_a_credit_is_under_way_only_where_the_worker_finds_the_credit_itself) {
  Work own(config_of_servers(0));
  const Flow flow(own);
  EXPECT_TRUE(may_overtake(own.shards[0]));
  Work set(config_of_servers(1 << 20));
  const Flow of_set(set);
  EXPECT_FALSE(may_overtake(set.shards[0])) << "who sets it means it";
  Work ring(config_of_servers(0));
  Flow of_ring(ring);
  of_ring.set_capacity(ShardIndex(0), 1 << 20);
  EXPECT_FALSE(may_overtake(ring.shards[0])) << "more would only wait";
}

TEST(FlowToServers, after_a_long_exchange_the_gates_have_the_credit_of_a_short_one) {
  Work work(config_of_servers(0));
  Flow flow(work);
  Gate& gate = work.shards[0].gate();
  const std::uint64_t least = gate.credit_bytes();
  gate.add({}, false, 0);
  for (int i = 0; i < 200; ++i) {  // 64 MB/s: 2 ms of it are 128,000 bytes
    flow.on_blocked(work.shards[0], 64'000);
    work.now += kMillisecond;
    gate.on_sent(64'000, 0);
    flow.free(work.shards[0], 64'000, 0);
  }
  EXPECT_EQ(gate.credit_bytes(), 8 * 64'000 / 2) << "one of two ways";
  flow.on_idle();
  EXPECT_EQ(gate.credit_bytes(), std::max<std::uint64_t>(least, 2 * 64'000 / 2));
}

TEST(FlowToServers, the_longest_line_decides_how_much_may_be_under_way) {
  Work work(config_of_servers(0));
  Flow flow(work);
  const Gate& gate = work.shards[0].gate();
  const std::uint64_t least = gate.credit_bytes();
  flow.set_round_trip(ShardIndex(0), kLongLineNs - 1);
  EXPECT_EQ(gate.credit_bytes(), least) << "answers come soon";
  flow.set_round_trip(ShardIndex(1), 100 * kMillisecond);
  EXPECT_EQ(gate.credit_bytes(), (4U << 20) / 2) << "of two ways, until the rate is known";
  Work set(config_of_servers(1 << 20));
  Flow of_set(set);
  of_set.set_round_trip(ShardIndex(0), 100 * kMillisecond);
  EXPECT_EQ(set.shards[0].gate().credit_bytes(), (1U << 20) / 2) << "who sets it means it";
}

TEST_F(FlowOfWorkerTest, to_a_relay_as_much_may_be_on_the_way_as_memory_holds) {
  PipelineConfig config = config_of(false);
  config.credit_bytes = 0;
  Work work(config);
  Flow flow(work);
  ASSERT_EQ(work.shards.size(), 2U) << "relays";
  for (std::uint32_t shard = 0; shard < 2; ++shard) {
    EXPECT_EQ(work.shards[shard].gate().credit_bytes(), 4U << 20);
    flow.set_capacity(ShardIndex(shard), 1 << 20);
    EXPECT_EQ(work.shards[shard].gate().credit_bytes(), 4U << 20)
        << "a part is under way there until its sum has come over the network";
  }
}

TEST_F(FlowOfWorkerTest, to_a_relay_without_servers_as_much_may_be_on_the_way_as_its_ring_holds) {
  PipelineConfig config = config_of(false);
  config.credit_bytes = 0;
  config.relays.are_alone = true;
  Work work(config);
  Flow flow(work);
  EXPECT_EQ(work.shards[0].gate().credit_bytes(), 4U << 20) << "over TCP";
  flow.set_capacity(ShardIndex(0), 256 << 10);
  EXPECT_EQ(work.shards[0].gate().credit_bytes(), 256U << 10);
}

TEST_F(FlowOfWorkerTest, a_frame_that_is_larger_than_a_ring_may_have_goes_alone) {
  constexpr std::uint64_t kLarge = 8 << 20;
  PipelineConfig config = config_of(false);
  config.placement = Placement(kLarge, kLarge, {1, 1});
  config.credit_bytes = 0;
  config.relays.are_alone = true;
  Work work(config);
  Flow flow(work);
  flow.set_capacity(ShardIndex(0), 256 << 10);
  EXPECT_EQ(work.shards[0].gate().credit_bytes(), credit_cost(kLarge));
}

TEST_F(FlowOfWorkerTest, who_waits_for_much_is_patient) {
  EXPECT_EQ(flow_.patience(), 0);
  way(0).gate().on_sent((1 << 20) - 1, 0);
  EXPECT_EQ(flow_.patience(), 0) << "some way might run dry";
  way(1).gate().on_sent(1, 0);
  EXPECT_GT(flow_.patience(), 0);
  flow_.free(way(1), 1, 0);
  EXPECT_EQ(flow_.patience(), 0);
}

TEST_F(FlowTest, a_relay_is_patient_while_each_way_is_in_use_and_more_waits) {
  EXPECT_EQ(flow_.patience(), 0) << "both ways are idle";
  way(0).gate().on_sent(kCost, 0);
  EXPECT_EQ(flow_.patience(), 0) << "one is";
  way(1).gate().on_sent(kCost, 0);
  EXPECT_GT(flow_.patience(), 0);
  way(0).gate().remove(way(0).gate().front());
  EXPECT_GT(flow_.patience(), 0) << "something waits at the other";
  way(1).gate().remove(way(1).gate().front());
  EXPECT_EQ(flow_.patience(), 0) << "nothing waits";
}

TEST(Flow, where_servers_sum_nobody_is_patient) {
  PipelineConfig config = config_of(false);
  config.groups = nullptr;
  Work work(config);
  Flow flow(work);
  for (ShardWay& way : work.shards) way.gate().on_sent(100 << 20, 0);
  EXPECT_EQ(flow.patience(), 0);
}

// ---- coding that takes longer than the line would

constexpr std::uint64_t kMiB = 1 << 20;

template <int kMilliseconds>
TimeNs slow_clock() {
  static TimeNs now = 0;
  return now += kMilliseconds * kMillisecond;
}

// Weights are broadcast over a line that carries a MiB in a millisecond, and then gradients coded.
PipelineOutputs said_of(Stopwatch stopwatch, std::uint32_t rank = 0) {
  PipelineConfig config{
      .self = WorkerRank(rank), .epoch = Epoch(3), .placement = Placement(kMiB, kMiB, {1})};
  config.measured.stopwatch = stopwatch;
  Work work(config);
  Flow flow(work);
  const auto exchange = [&](const Tensor& tensor) {
    flow.on_sent();
    work.now += kMillisecond;
    flow.on_answer(tensor, tensor.codes ? kMiB / 4 : kMiB);
  };
  Tensor weights;
  weights.spec = {.operation = Operation::kBroadcast, .total_bytes = kMiB};
  for (int i = 0; i < 64; ++i) exchange(weights);
  Tensor gradient;
  gradient.spec = {.total_bytes = kMiB, .format = Format::kInt8};
  gradient.parts.resize(1);
  gradient.frames_per_part = 1;
  work.coder.begin(gradient);
  const std::vector<std::byte> elements(kMiB);
  for (int i = 0; i < 2100; ++i) {
    work.coder.payload(gradient, {}, WorkerRank(0), elements, {});
    exchange(gradient);
    Coder::end(gradient);
  }
  return work.outputs;
}

TEST(FlowOfCodes, the_user_hears_once_that_coding_is_slower_than_the_line) {
  const PipelineOutputs said = said_of(slow_clock<3>);  // 2 ms for a MiB both ways
  ASSERT_EQ(said.size(), 1U);
  EXPECT_EQ(std::get<PipelineOutput::Notice>(*said.begin()).text,
            "compression makes exchanges slower here: coding 1024 MiB of gradients took 3 s, and "
            "they would have travelled in 2 s as they are, at the 4194 Mbit/s of what was not "
            "coded. Use Compression.none and unset BYTEPS_COMPRESSION, or choose one that is coded "
            "faster: bps doctor says how fast each is");
  EXPECT_TRUE(said_of(slow_clock<3>, 1).empty()) << "worker 0 says it";
}

TEST(FlowOfCodes, coding_that_the_line_waits_for_no_longer_than_for_elements_is_no_news) {
  EXPECT_TRUE(said_of(slow_clock<1>).empty());
  EXPECT_TRUE(said_of(nullptr).empty());
}

}  // namespace
}  // namespace byteps
