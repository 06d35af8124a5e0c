#include "server/lateness.h"

#include <gtest/gtest.h>

namespace byteps {
namespace {

constexpr TimeNs kWantedNs = 5 * kMillisecond;
constexpr std::size_t kFrameBytes = 60 << 10;
constexpr std::uint32_t kWorkers = 4;

// Contributions that come one after the other, one each `every_ns`.
class Line {
 public:
  Line() { lateness.begin_epoch(kWorkers * kFrameBytes); }
  void carry(int frames, TimeNs every_ns) {
    for (int i = 0; i < frames; ++i) lateness.on_contribution(kFrameBytes, now += every_ns);
  }
  Lateness lateness{kWantedNs};
  TimeNs now = kSecond;
};

TEST(Lateness, is_wanted_ns_until_the_rate_is_known_and_where_the_line_is_fast) {
  Line line;
  EXPECT_EQ(line.lateness.age_ns(), kWantedNs);
  line.carry(20, 5 * kMillisecond);
  EXPECT_EQ(line.lateness.age_ns(), kWantedNs) << "too few samples";
  Line fast;
  fast.carry(1000, kMillisecond / 10);
  EXPECT_EQ(fast.lateness.age_ns(), kWantedNs);
}

TEST(Lateness, is_as_long_as_a_slow_line_takes_for_two_frames_of_each_worker) {
  Line line;
  line.carry(100, 5 * kMillisecond);
  EXPECT_EQ(line.lateness.age_ns(), 2 * kWorkers * 5 * kMillisecond);
}

TEST(Lateness, does_not_grow_by_pauses_and_has_a_limit) {
  Line line;
  for (int step = 0; step < 10; ++step) {
    line.carry(20, 5 * kMillisecond);
    line.now += kSecond;
    EXPECT_LE(line.lateness.age_ns(), 2 * kWorkers * 5 * kMillisecond) << step;
  }
  line.carry(100, kSecond);
  EXPECT_EQ(line.lateness.age_ns(), Lateness::kMostTimes * kWantedNs);
  line.carry(100, kMillisecond / 10);
  EXPECT_EQ(line.lateness.age_ns(), kWantedNs) << "the line is fast again";
}

TEST(Lateness, begins_anew_with_an_epoch_and_stands_time_that_goes_back) {
  Line line;
  line.carry(100, 5 * kMillisecond);
  line.now -= kSecond / 2;
  line.carry(3, 0);
  EXPECT_EQ(line.lateness.age_ns(), 2 * kWorkers * 5 * kMillisecond);
  line.lateness.begin_epoch(kWorkers * kFrameBytes);
  EXPECT_EQ(line.lateness.age_ns(), kWantedNs);
}

}  // namespace
}  // namespace byteps
