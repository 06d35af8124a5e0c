// Credit against a line with a rate, a queue and a delay, as short as it can be written.
#include "worker/credit.h"

#include <deque>
#include <utility>

#include <gtest/gtest.h>

#include "base/prng.h"

namespace byteps {
namespace {

constexpr std::uint64_t kFrame = 32 << 10;
constexpr std::uint64_t kLeast = 2 * kFrame;
constexpr std::uint64_t kMost = 4 << 20;

// Frames leave one after the other at the line's rate, and are answered a delay later.
class Line {
 public:
  Line(std::uint64_t bytes_per_ms, TimeNs delay_ns)
      : bytes_per_ms_(bytes_per_ms), delay_ns_(delay_ns) {}

  // Always has more to send, for so long; returns the bytes answered.
  std::uint64_t run(Credit& credit, TimeNs length_ns) {
    const TimeNs end_ns = now_ + length_ns;
    std::uint64_t answered = 0;
    while (now_ < end_ns) {
      while (unanswered_ + kFrame <= credit.bytes()) {
        free_ns_ =
            std::max(free_ns_, now_) + static_cast<TimeNs>(kFrame * kMillisecond / bytes_per_ms_);
        due_.push_back(free_ns_ + delay_ns_);
        unanswered_ += kFrame;
      }
      credit.on_blocked();
      now_ = due_.front();
      due_.pop_front();
      unanswered_ -= kFrame;
      answered += kFrame;
      credit.on_answered(kFrame, now_);
    }
    return answered;
  }
  void wait(TimeNs length_ns) {
    now_ += length_ns;
    for (TimeNs& due_ns : due_) due_ns += length_ns;
  }
  void set_rate(std::uint64_t bytes_per_ms) { bytes_per_ms_ = bytes_per_ms; }

 private:
  std::uint64_t bytes_per_ms_;
  TimeNs delay_ns_;
  TimeNs now_ = 0;
  TimeNs free_ns_ = 0;
  std::uint64_t unanswered_ = 0;
  std::deque<TimeNs> due_;
};

TEST(Credit, becomes_the_rate_times_the_horizon_whatever_the_rate) {
  for (const std::uint64_t bytes_per_ms : {31'000, 62'500, 125'000, 250'000}) {
    Credit credit(kFrame, kMost);
    Line line(bytes_per_ms, 20 * kMicrosecond);
    line.run(credit, 200 * kMillisecond);
    const auto expect = [&](TimeNs horizon_ns) {
      const double expected = static_cast<double>(bytes_per_ms * horizon_ns) / kMillisecond;
      EXPECT_NEAR(static_cast<double>(credit.bytes()), expected, 0.1 * expected) << bytes_per_ms;
    };
    expect(Credit::kLongHorizonNs);
    credit.on_idle();
    expect(Credit::kHorizonNs);
  }
}

TEST(Credit, fills_the_line_within_milliseconds_from_the_least) {
  Credit credit(kLeast, kMost);
  Line line(125'000, kMillisecond);
  line.run(credit, 10 * kMillisecond);
  EXPECT_GE(line.run(credit, 100 * kMillisecond), 124'000u * 100) << "the line is never idle";
}

TEST(Credit, stays_within_its_bounds) {
  Credit fast(kLeast, kMost);
  Line(50'000'000, 10 * kMicrosecond).run(fast, 100 * kMillisecond);
  EXPECT_EQ(fast.bytes(), kMost);
  Credit slow(kLeast, kMost);
  Line(1'000, kMillisecond).run(slow, 3000 * kMillisecond);
  EXPECT_EQ(slow.bytes(), kLeast);
}

TEST(
    Credit,
    is_three_frames_in_a_long_exchange_where_two_are_the_horizon_and_no_more_than_the_longest_one) {
  for (const auto& [bytes_per_ms, expected] :
       {std::pair(11'000, kLeast * 3 / 2), std::pair(8'000, 80'000UL)}) {
    Credit credit(kLeast, kMost);
    Line line(static_cast<std::uint64_t>(bytes_per_ms), 20 * kMicrosecond);
    line.run(credit, static_cast<TimeNs>(kLeast * (Credit::kLongCredits - 1)) / bytes_per_ms *
                         kMillisecond);
    EXPECT_EQ(credit.bytes(), kLeast) << "not long yet";
    line.run(credit, 100 * kMillisecond);
    EXPECT_NEAR(static_cast<double>(credit.bytes()), static_cast<double>(expected), 0.05 * kLeast);
    credit.on_idle();
    EXPECT_EQ(credit.bytes(), kLeast);
  }
}

TEST(Credit, a_late_worker_does_not_shrink_it) {
  Credit credit(kLeast, kMost);
  Line line(125'000, 200 * kMicrosecond);
  line.run(credit, 100 * kMillisecond);
  const std::uint64_t before = credit.bytes();
  for (int i = 0; i < 3; ++i) {
    line.wait(300 * kMillisecond);
    line.run(credit, 20 * kMillisecond);
    EXPECT_GE(credit.bytes(), before * 9 / 10);
  }
}

TEST(Credit, follows_a_line_that_became_slower) {
  Credit credit(kLeast, kMost);
  Line line(250'000, 200 * kMicrosecond);
  line.run(credit, 100 * kMillisecond);
  line.set_rate(62'500);
  line.run(credit, 300 * kMillisecond);
  EXPECT_NEAR(static_cast<double>(credit.bytes()), 62'500.0 * Credit::kLongHorizonNs / kMillisecond,
              27'000);
}

TEST(Credit, does_not_change_while_the_sender_has_nothing_to_send) {
  Credit credit(kLeast, kMost);
  Prng prng(1);
  TimeNs now = 0;
  for (int i = 0; i < 1000; ++i) {
    now += static_cast<TimeNs>(prng.below(5 * kMillisecond));
    credit.on_answered(kFrame, now);
    if (prng.chance(0.3)) credit.on_idle();
  }
  EXPECT_EQ(credit.bytes(), kLeast);
}

TEST(Credit, on_a_long_line_never_holds_it_back_and_becomes_some_round_trips_of_its_rate) {
  constexpr std::uint64_t kBytesPerMs = 6'000;  // 48 Mbit/s
  constexpr TimeNs kRoundTripNs = 100 * kMillisecond;
  Credit credit(kLeast, kMost);
  credit.set_round_trip(kRoundTripNs);
  Line line(kBytesPerMs, kRoundTripNs);
  line.run(credit, kRoundTripNs);
  EXPECT_GE(line.run(credit, 3 * kSecond), kBytesPerMs * 2'990) << "the line is never idle";
  const auto expected =
      static_cast<double>(kBytesPerMs * Credit::kRoundTrips * kRoundTripNs / kMillisecond);
  EXPECT_NEAR(static_cast<double>(credit.bytes()), expected, 0.1 * expected);
  credit.on_idle();
  EXPECT_NEAR(static_cast<double>(credit.bytes()), expected, 0.1 * expected) << "it stays long";
}

TEST(Credit, with_equal_bounds_is_fixed) {
  Credit credit(kLeast, kLeast);
  Line(125'000, 200 * kMicrosecond).run(credit, 100 * kMillisecond);
  EXPECT_EQ(credit.bytes(), kLeast);
  credit.set_round_trip(100 * kMillisecond);
  EXPECT_EQ(credit.bytes(), kLeast);
}

}  // namespace
}  // namespace byteps
