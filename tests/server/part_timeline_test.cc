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
