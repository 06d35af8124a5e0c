#include "base/timeline.h"

#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace byteps {
namespace {

constexpr TimeNs kAhead = 7 * kSecond;  // of their clock

// They answer at once; there and back takes this long.
void ask(ClockOffset& offset, TimeNs at_ns, TimeNs there_ns, TimeNs back_ns) {
  offset.sample(at_ns, at_ns + there_ns + kAhead, at_ns + there_ns + back_ns);
}

TEST(ClockOffset, is_exact_when_both_ways_take_the_same_time) {
  ClockOffset offset;
  EXPECT_FALSE(offset.best());
  ask(offset, kSecond, kMillisecond, kMillisecond);
  EXPECT_EQ(offset.best()->offset_ns, kAhead);
  EXPECT_EQ(offset.best()->error_ns, kMillisecond);
}

TEST(ClockOffset, is_wrong_by_no_more_than_it_says) {
  ClockOffset offset;
  ask(offset, kSecond, 9 * kMillisecond, kMillisecond);
  EXPECT_EQ(offset.best()->error_ns, 5 * kMillisecond);
  EXPECT_LE(std::abs(offset.best()->offset_ns - kAhead), offset.best()->error_ns);
}

TEST(ClockOffset, comes_from_the_quickest_answer) {
  ClockOffset offset;
  ask(offset, 1 * kSecond, 8 * kMillisecond, kMillisecond);
  ask(offset, 2 * kSecond, kMicrosecond, kMicrosecond);
  ask(offset, 3 * kSecond, kMillisecond, 8 * kMillisecond);
  EXPECT_EQ(offset.best()->offset_ns, kAhead);
  EXPECT_EQ(offset.best()->error_ns, kMicrosecond);
}

TEST(ClockOffset, also_of_a_clock_that_is_behind) {
  ClockOffset offset;
  offset.sample(10 * kSecond, 2 * kSecond + kMicrosecond, 10 * kSecond + 2 * kMicrosecond);
  EXPECT_EQ(offset.best()->offset_ns, -8 * kSecond);
}

TEST(ClockOffset,
     forgets_a_quick_answer_when_the_clocks_may_have_drifted_further_than_a_slow_one_is_wrong) {
  ClockOffset offset;
  ask(offset, 0, kMicrosecond, kMicrosecond);
  constexpr TimeNs kHour = 3600 * kSecond;  // 180 ms of drift at most
  offset.sample(kHour, kHour + kAhead + 100 * kMillisecond, kHour + 2 * kMillisecond);
  EXPECT_EQ(offset.best()->offset_ns, kAhead + 99 * kMillisecond);
}

TEST(ClockOffset, ignores_an_answer_before_its_question) {
  ClockOffset offset;
  offset.sample(2 * kSecond, 0, 1 * kSecond);
  EXPECT_FALSE(offset.best());
}

TEST(Timeline, records_the_rounds_between_the_first_and_the_last_both_included) {
  const Timeline timeline(Round(2), Round(3), [] { return TimeNs{0}; });
  EXPECT_FALSE(timeline.traces(Round(1)));
  EXPECT_TRUE(timeline.traces(Round(2)));
  EXPECT_TRUE(timeline.traces(Round(3)));
  EXPECT_FALSE(timeline.traces(Round(4)));
}

TimelineRecord numbered(std::uint32_t number) {
  TimelineRecord record{};
  record.part = number;
  record.key = number;
  return record;
}

TEST(Timeline, a_full_lane_keeps_what_it_has_and_counts_the_rest) {
  Timeline timeline(
      Round(0), Round(9), [] { return TimeNs{0}; }, 2);
  TimelineLane& lane = timeline.open_lane();
  for (std::uint32_t i = 0; i < 5; ++i) lane.add(numbered(i));
  ASSERT_EQ(lane.records().size(), 2U);
  EXPECT_EQ(lane.records()[1].part, 1U);
  EXPECT_EQ(lane.dropped(), 3U);
  TimelineLane& other = timeline.open_lane();
  other.add(numbered(7));
  EXPECT_EQ(timeline.record_count(), 3U);
  EXPECT_EQ(timeline.facts().lanes.size(), 2U);
}

TEST(Timeline, has_marks_of_what_happened_to_the_job_each_once_and_not_too_many) {
  Timeline timeline(Round(0), Round(9), [] { return TimeNs{0}; });
  timeline.mark({.name = "server 1 replaced", .text = "first", .number = 3, .at_ns = 5});
  timeline.mark({.name = "server 1 replaced", .text = "again", .number = 3, .at_ns = 6});
  timeline.mark({.name = "server 1 replaced", .text = "another", .number = 4, .at_ns = 7});
  EXPECT_EQ(timeline.record_count(), 2U);
  ASSERT_EQ(timeline.facts().marks.size(), 2U);
  EXPECT_EQ(timeline.facts().marks[0].text, "first");
  EXPECT_EQ(timeline.facts().marks[1].text, "another");
  for (std::size_t i = 0; i < 2 * Timeline::kMarksMax; ++i) {
    timeline.mark({.name = "x", .text = {}, .number = i});
  }
  EXPECT_EQ(timeline.facts().marks.size(), Timeline::kMarksMax);
}

TEST(Timeline, knows_whose_the_records_of_a_lane_are_and_whom_they_name) {
  Timeline timeline(Round(0), Round(9), [] { return TimeNs{0}; });
  EXPECT_EQ(timeline.open_lane().recorder(), Recorder::kProcess);
  EXPECT_EQ(timeline.open_lane(Recorder::kRelay).recorder(), Recorder::kRelay);
  timeline.set_servers({0, 0, 1});
  timeline.set_relays({4, 5});
  EXPECT_THAT(timeline.facts().server_of_shard, testing::ElementsAre(0, 0, 1));
  EXPECT_THAT(timeline.facts().relay_of_way, testing::ElementsAre(4, 5));
}

TEST(Timeline, can_be_read_while_it_is_added_to) {
  constexpr std::uint32_t kCount = 20'000;
  Timeline timeline(
      Round(0), Round(9), [] { return TimeNs{0}; }, kCount);
  TimelineLane& lane = timeline.open_lane();
  std::thread adder([&] {
    for (std::uint32_t i = 0; i < kCount; ++i) lane.add(numbered(i));
  });
  std::size_t seen = 0;
  while (seen < kCount) {
    const auto records = lane.records();
    for (; seen < records.size(); ++seen) {
      ASSERT_EQ(records[seen].part, seen);
      ASSERT_EQ(records[seen].key, seen);
    }
  }
  adder.join();
}

}  // namespace
}  // namespace byteps
