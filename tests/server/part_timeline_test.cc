// Here each look at the clock takes a microsecond, so the times say in which order it was looked at.
#include "server/part_timeline.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/shelf_world.h"

namespace byteps {
namespace {

using At = TimelineRecord::At;

class PartTimelineTest : public testing::Test {
 protected:
  ShelfSettings settings() {
    ShelfSettings settings;
    settings.timeline = &lane_;
    return settings;
  }
  // At the relay of worker 0, on whose machine is worker 1 too.
  ShelfEpoch relayed() const {
    return {.epoch = Epoch(7),
            .worker_count = 2,
            .placement = placed(256, 64),
            .groups = std::make_shared<const Groups>(std::vector<std::uint64_t>{1, 1}),
            .relay = WorkerRank(0),
            .keeps_links = true};
  }
  // Whose first part the relay leads.
  static std::string led_name() {
    std::string name = "w";
    while (leader_of({WorkerRank(0), WorkerRank(1)}, key_of(name), 0, 1) != WorkerRank(0)) {
      name += "w";
    }
    return name;
  }
  TimeNs now_ = 0;
  Timeline timeline_{Round(1), Round(2), [this] { return now_ += kMicrosecond; }};
  TimelineLane& lane_ = timeline_.open_lane();
};

TEST_F(PartTimelineTest, says_which_worker_was_last_and_how_late) {
  ShelfWorld world(3, 256, 64, settings());
  world.declare_all(declaration("w", DType::kUint8, 64));
  for (const std::uint32_t worker : {0U, 1U, 2U}) world.push(worker, "w", 0, filled(64, 1));
  EXPECT_EQ(now_, 0) << "round 0 is not recorded";
  world.push(1, "w", 1, filled(64, 1));
  now_ += kMillisecond;
  world.push(2, "w", 1, filled(64, 1));
  now_ += 20 * kMillisecond;
  world.push(0, "w", 1, filled(64, 1));
  ASSERT_EQ(lane_.records().size(), 1U);
  const TimelineRecord& record = lane_.records()[0];
  EXPECT_EQ(record.kind, TimelineRecord::Kind::kSum);
  EXPECT_EQ(record.key, key_of("w").value);
  EXPECT_EQ(record.round, 1U);
  EXPECT_EQ(record.bytes, 64U);
  EXPECT_EQ(record.first_worker, 1U);
  EXPECT_EQ(record.worker, 0U);
  EXPECT_EQ(record.at_ns[At::kLastCame] - record.at_ns[At::kLastButOneCame],
            20 * kMillisecond + 2 * kMicrosecond);
  EXPECT_EQ(record.at_ns[At::kLastButOneCame] - record.at_ns[At::kFirstCame],
            kMillisecond + 2 * kMicrosecond);
  EXPECT_EQ(record.at_ns[At::kFirstFrameSummed], record.at_ns[At::kLastCame] + kMicrosecond);
  EXPECT_EQ(record.at_ns[At::kFirstFrameSummed], record.at_ns[At::kLastFrameSummed]);
  EXPECT_EQ(timeline_.facts().names.at(key_of("w")), "w");
}

TEST_F(PartTimelineTest,
       at_a_relay_summing_ends_when_it_is_handed_on_and_the_answer_is_spread_later) {
  ShelfWorld world(relayed(), settings());
  const std::string name = led_name();
  world.declare_all(declaration(name, DType::kUint8, 128));
  std::vector<wire::Header> forwarded;
  const auto push_all = [&](std::uint32_t round) {
    for (const std::uint64_t offset : {0U, 64U}) {
      for (const std::uint32_t worker : {1U, 0U}) {
        now_ += kMillisecond;
        world.push(worker, name, round, filled(64, 1), {0, offset});
      }
      forwarded.push_back(world.take().forwards.back().header);
    }
  };
  const auto answer_all = [&] {
    for (const wire::Header& header : std::exchange(forwarded, {})) {
      now_ += kMillisecond;
      ShelfOutputs answers;
      world.shelf.answered(header, filled(64, 2), answers);
    }
  };
  push_all(0);
  answer_all();
  EXPECT_EQ(now_ % kMillisecond, 0) << "round 0 is not recorded";
  push_all(1);
  ASSERT_EQ(lane_.records().size(), 1U);
  const TimelineRecord& sum = lane_.records()[0];
  EXPECT_EQ(sum.kind, TimelineRecord::Kind::kSum);
  EXPECT_EQ(sum.worker, 0U);
  EXPECT_EQ(sum.at_ns[At::kLastCame] - sum.at_ns[At::kFirstCame], kMillisecond + 2 * kMicrosecond);
  EXPECT_EQ(sum.at_ns[At::kLastFrameSummed], now_);
  now_ += 20 * kMillisecond;  // at the server
  answer_all();
  ASSERT_EQ(lane_.records().size(), 2U);
  const TimelineRecord& spread = lane_.records()[1];
  EXPECT_EQ(spread.kind, TimelineRecord::Kind::kSpread);
  EXPECT_EQ(spread.key, key_of(name).value);
  EXPECT_EQ(spread.round, 1U);
  EXPECT_EQ(spread.bytes, 128U);
  EXPECT_EQ(spread.at_ns[At::kFirstReturned] - sum.at_ns[At::kLastFrameSummed],
            21 * kMillisecond + kMicrosecond);
  EXPECT_EQ(spread.at_ns[At::kLastSpread] - spread.at_ns[At::kFirstReturned],
            kMillisecond + kMicrosecond);
  push_all(2);
  answer_all();
  EXPECT_EQ(lane_.records().size(), 4U);
}

TEST_F(PartTimelineTest, measures_every_eighth_frame_and_counts_each_repeat_once) {
  constexpr std::uint64_t kFrames = 16;
  ShelfWorld world(1, kFrames * 64, 64, settings());
  world.declare_all(declaration("w", DType::kUint8, kFrames * 64));
  for (const std::uint32_t round : {0U, 1U, 2U, 3U}) {
    for (std::uint64_t frame = 0; frame < kFrames; ++frame) {
      now_ += kMillisecond;
      world.push(0, "w", round, filled(64, 1), {0, frame * 64});
      world.push(0, "w", round, filled(64, 1), {0, frame * 64});
    }
  }
  ASSERT_EQ(lane_.records().size(), 2U) << "rounds 1 and 2";
  EXPECT_EQ(lane_.records()[0].busy_ns, 16 * kMicrosecond) << "from two that took 1 us each";
  EXPECT_EQ(lane_.records()[1].round, 2U);
  EXPECT_GT(lane_.records()[1].at_ns[At::kFirstCame],
            lane_.records()[0].at_ns[At::kLastFrameSummed]);
}

}  // namespace
}  // namespace byteps
