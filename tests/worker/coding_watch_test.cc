#include "worker/coding_watch.h"

#include "gtest/gtest.h"

namespace byteps {
namespace {

constexpr std::uint64_t kFrame = 256 << 10;
constexpr std::uint64_t kMiB = 1 << 20;

class CodingWatchTest : public testing::Test {
 protected:
  // Frames of what is not coded, four under way, which a line of such a rate carries.
  void carry(std::uint64_t frame_count, std::uint64_t bytes_per_ms, std::uint64_t says = kFrame) {
    for (int i = 0; i < 4; ++i) watch_.on_sent(now_);
    for (std::uint64_t i = 0; i < frame_count; ++i) {
      now_ += static_cast<TimeNs>(kFrame * 1000 / bytes_per_ms) * kMicrosecond;
      watch_.on_answered(says, now_);
      if (i + 4 < frame_count) watch_.on_sent(now_);
    }
  }
  // So much more was coded, in so much time.
  bool is_told(std::uint64_t bytes, TimeNs took_ns) {
    coded_bytes_ += bytes;
    coding_ns_ += took_ns;
    return watch_.judge(coded_bytes_, coding_ns_).has_value();
  }

  CodingWatch watch_;
  TimeNs now_ = kSecond;
  std::uint64_t coded_bytes_ = 0;
  TimeNs coding_ns_ = 0;
};

constexpr std::uint64_t kGigabit = 125'000;  // bytes a millisecond
constexpr std::uint64_t kMemory = 4'000'000;

TEST_F(CodingWatchTest, on_a_slow_line_coding_pays_though_it_is_slow) {
  carry(400, kGigabit);
  EXPECT_FALSE(is_told(1024 * kMiB, 8 * kSecond)) << "134 MB/s; the line has 125";
}

TEST_F(CodingWatchTest, where_coding_takes_longer_than_the_line_would_the_user_hears_it_once) {
  carry(400, kMemory);
  EXPECT_FALSE(is_told(1023 * kMiB, kSecond)) << "not enough yet";
  coded_bytes_ += kMiB;
  const auto verdict = watch_.judge(coded_bytes_, coding_ns_);
  ASSERT_TRUE(verdict.has_value());
  EXPECT_EQ(verdict->coded_bytes, 1024 * kMiB);
  EXPECT_EQ(verdict->coding_ns, kSecond);
  EXPECT_NEAR(static_cast<double>(verdict->line_bytes_per_ms), kMemory, kMemory / 50.0);
  EXPECT_NEAR(static_cast<double>(verdict->line_ns), 268e6, 8e6);
  EXPECT_FALSE(is_told(4096 * kMiB, 10 * kSecond));
}

TEST_F(CodingWatchTest, each_stretch_is_judged_by_itself) {
  carry(400, kMemory);
  EXPECT_FALSE(is_told(1024 * kMiB, 240 * kMillisecond));
  EXPECT_FALSE(is_told(968 * kMiB, 280 * kMillisecond));
  EXPECT_TRUE(is_told(56 * kMiB, 0)) << "280 ms, and 268 on the line";
}

TEST_F(CodingWatchTest, a_line_of_which_nothing_is_known_is_no_reason) {
  carry(400, kMemory, 0);  // all that travels is coded, or small
  EXPECT_FALSE(is_told(1024 * kMiB, 10 * kSecond));
  carry(63, kMemory);
  EXPECT_FALSE(is_told(1024 * kMiB, 10 * kSecond)) << "15.75 MiB";
}

TEST_F(CodingWatchTest,
       waiting_for_others_is_the_lines_and_the_time_when_nothing_is_under_way_not) {
  for (int i = 0; i < 100; ++i) {
    now_ += kSecond;  // computing
    carry(4, kMemory);
  }
  EXPECT_TRUE(is_told(1024 * kMiB, 400 * kMillisecond));
  CodingWatch late;
  watch_ = late;
  coded_bytes_ = coding_ns_ = 0;
  carry(200, kMemory);
  watch_.on_sent(now_);
  now_ += kSecond;  // another worker comes late to this one
  watch_.on_answered(kFrame, now_);
  carry(200, kMemory);
  EXPECT_FALSE(is_told(1024 * kMiB, 400 * kMillisecond));
}

TEST_F(CodingWatchTest, answers_that_never_come_do_no_harm_behind_the_end_of_all) {
  for (int i = 0; i < 3; ++i) watch_.on_sent(now_);
  watch_.on_idle();
  now_ += kSecond;
  carry(400, kMemory);
  EXPECT_TRUE(is_told(1024 * kMiB, 400 * kMillisecond));
}

}  // namespace
}  // namespace byteps
