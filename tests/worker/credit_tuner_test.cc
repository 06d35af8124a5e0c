// The tuner, with the credit that it steers, on a model of workers whose sums wait for each other: each has a line with
// a rate and a delay, and a frame is answered when it has come from all of them.
#include "worker/credit_tuner.h"

#include <algorithm>
#include <deque>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/prng.h"
#include "worker/credit.h"

namespace byteps {
namespace {

constexpr std::uint64_t kFrame = 60 << 10;
constexpr std::uint64_t kLeast = 2 * kFrame;
constexpr std::uint64_t kMost = 4 << 20;
constexpr std::uint64_t kGigabit = 125'000'000;  // bytes per second

struct Member {
  Credit credit{kLeast, kMost};
  CreditTuner tuner;
  std::uint64_t unanswered_bytes = 0;
  std::uint64_t sent_count = 0;
  TimeNs free_ns = 0;  // the line, again
  std::vector<std::string> news;
};

class Model {
 public:
  Model(std::size_t worker_count, TimeNs delay) : delay_ns(delay), workers(worker_count) {}

  // All send as much as they can for so long; in the end all is answered and nothing is under way. Bytes per second.
  double run(TimeNs length_ns) {
    const TimeNs start_ns = now_ns;
    const std::uint64_t before = answered_count_;
    const TimeNs end_ns = now_ns + length_ns;
    send();
    while (!due_ns_.empty()) {
      now_ns = due_ns_.front();
      due_ns_.pop_front();
      ++answered_count_;
      for (Member& worker : workers) answer(worker);
      if (now_ns < end_ns) send();
      catch_up(now_ns >= end_ns);
    }
    for (Member& worker : workers) {
      worker.credit.on_idle();
      worker.tuner.on_idle();
    }
    return static_cast<double>((answered_count_ - before) * kFrame) * kSecond /
           static_cast<double>(now_ns - start_ns);
  }

  TimeNs delay_ns;
  double noise = 0;  // the lines' rate differs by so much, one way or the other, every 20 ms
  Prng prng{1};
  std::vector<Member> workers;
  TimeNs now_ns = 0;
  TimeNs late_ns = 0;  // the last worker stands still for so long, each second

 private:
  void answer(Member& worker) {
    worker.unanswered_bytes -= kFrame;
    worker.credit.on_answered(kFrame, now_ns);
    EXPECT_GE(worker.credit.bytes(), kLeast);
    EXPECT_LE(worker.credit.bytes(), kMost);
    if (!worker.tuner.on_answered(kFrame, worker.credit.bytes(), now_ns)) return;
    worker.credit.set_horizon(worker.tuner.horizon_ns());
    if (std::string news = worker.tuner.take_news(); !news.empty()) worker.news.push_back(news);
  }

  // At the end no worker has sent a frame that another one has not.
  void catch_up(bool is_end) {
    if (!is_end) return;
    const auto most = std::max_element(workers.begin(), workers.end(), [](auto& a, auto& b) {
                        return a.sent_count < b.sent_count;
                      })->sent_count;
    for (Member& worker : workers) {
      while (worker.sent_count < most) send_frame(worker);
    }
  }

  void send() {
    for (Member& worker : workers) {
      while (worker.unanswered_bytes + kFrame <= worker.credit.bytes()) send_frame(worker);
      worker.credit.on_blocked();
      worker.tuner.on_blocked();
    }
  }

  void send_frame(Member& worker) {
    if (now_ns / (20 * kMillisecond) != factor_of_) {
      factor_of_ = now_ns / (20 * kMillisecond);
      factor_ = 1 + noise * (2 * static_cast<double>(prng.below(1'000'001)) / 1e6 - 1);
    }
    TimeNs from_ns = std::max(worker.free_ns, now_ns);
    if (&worker == &workers.back() && from_ns % kSecond < late_ns) {
      from_ns += late_ns - from_ns % kSecond;
    }
    worker.free_ns =
        from_ns + static_cast<TimeNs>(kFrame * 1e9 / (static_cast<double>(kGigabit) * factor_));
    worker.unanswered_bytes += kFrame;
    const std::uint64_t place = worker.sent_count++ - answered_count_ - due_ns_.size();
    if (place >= waiting_.size()) waiting_.resize(place + 1);
    waiting_[place].last_ns = std::max(waiting_[place].last_ns, worker.free_ns + delay_ns);
    ++waiting_[place].count;
    while (!waiting_.empty() && waiting_.front().count == workers.size()) {
      due_ns_.push_back(std::max(due_ns_.empty() ? 0 : due_ns_.back(), waiting_.front().last_ns));
      waiting_.pop_front();
    }
  }

  struct Sum {
    TimeNs last_ns = 0;
    std::size_t count = 0;
  };
  std::deque<Sum> waiting_;    // for a worker
  std::deque<TimeNs> due_ns_;  // their answers
  std::uint64_t answered_count_ = 0;
  TimeNs factor_of_ = -1;
  double factor_ = 1;
};

TEST(CreditTuner, finds_a_long_horizon_where_answers_need_long) {
  Model model(1, 20 * kMillisecond);
  const double before = model.run(kSecond / 5);
  model.run(200 * kSecond);
  EXPECT_EQ(model.workers[0].tuner.chosen_ns(), 32 * kMillisecond);
  EXPECT_LT(before, 0.3 * kGigabit);
  EXPECT_GT(model.run(50 * kSecond), 0.98 * kGigabit) << "between two searches";
  ASSERT_FALSE(model.workers[0].news.empty());
  EXPECT_TRUE(model.workers[0].news[0].starts_with("autotune: credit is now "))
      << model.workers[0].news[0];
}

TEST(CreditTuner, ends_at_a_short_horizon_where_answers_come_soon) {
  Model model(1, 200 * kMicrosecond);
  model.run(60 * kSecond);
  EXPECT_LE(model.workers[0].tuner.chosen_ns(), 2 * kMillisecond);
  EXPECT_GT(model.run(5 * kSecond), 0.98 * kGigabit);
}

TEST(CreditTuner, is_not_moved_by_noise) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Model model(1, 700 * kMicrosecond);
    model.prng = Prng(seed);
    model.noise = 0.05;
    model.run(60 * kSecond);
    EXPECT_EQ(model.workers[0].tuner.chosen_ns(), Credit::kHorizonNs) << "seed " << seed;
  }
}

TEST(CreditTuner, says_at_once_that_nothing_is_better_and_then_nothing_more) {
  Model model(1, 700 * kMicrosecond);
  model.run(300 * kSecond);
  ASSERT_EQ(model.workers[0].news.size(), 1u);
  EXPECT_TRUE(model.workers[0].news[0].starts_with("autotune: credit stays at "))
      << model.workers[0].news[0];
}

// A sum waits for the slowest: whoever tries alone sees no gain.
TEST(CreditTuner, of_several_workers_find_it_together) {
  Model model(4, 20 * kMillisecond);
  model.noise = 0.02;
  model.run(200 * kSecond);
  for (const Member& worker : model.workers) {
    EXPECT_EQ(worker.tuner.chosen_ns(), 32 * kMillisecond);
  }
  EXPECT_GT(model.run(50 * kSecond), 0.95 * kGigabit) << "between two searches";
}

TEST(CreditTuner, finds_it_in_spite_of_a_late_worker) {
  Model model(2, 20 * kMillisecond);
  model.late_ns = 300 * kMillisecond;
  model.run(300 * kSecond);
  for (const Member& worker : model.workers) {
    EXPECT_EQ(worker.tuner.chosen_ns(), 32 * kMillisecond);
  }
}

TEST(CreditTuner, is_not_moved_by_a_late_worker) {
  Model model(2, 700 * kMicrosecond);
  model.late_ns = 50 * kMillisecond;
  model.run(200 * kSecond);
  for (const Member& worker : model.workers)
    EXPECT_EQ(worker.tuner.chosen_ns(), Credit::kHorizonNs);
}

TEST(CreditTuner, finds_it_in_steps_with_pauses_between_them) {
  Model model(2, 20 * kMillisecond);
  for (int step = 0; step < 600; ++step) {
    model.run(300 * kMillisecond);
    model.now_ns += 500 * kMillisecond;
  }
  for (const Member& worker : model.workers) {
    EXPECT_EQ(worker.tuner.chosen_ns(), 32 * kMillisecond);
  }
}

TEST(CreditTuner, does_not_go_to_and_fro) {
  for (const TimeNs delay_ns : {1, 2, 4, 7, 12, 20, 28, 60}) {
    Model model(2, delay_ns * kMillisecond);
    model.noise = 0.01;
    model.run(600 * kSecond);
    EXPECT_LE(model.workers[0].news.size(), 4u) << delay_ns << " ms";
  }
}

TEST(CreditTuner, goes_back_when_the_delay_is_gone) {
  Model model(1, 20 * kMillisecond);
  model.run(200 * kSecond);
  ASSERT_EQ(model.workers[0].tuner.chosen_ns(), 32 * kMillisecond);
  model.delay_ns = 200 * kMicrosecond;
  model.run(300 * kSecond);
  EXPECT_LE(model.workers[0].tuner.chosen_ns(), 2 * kMillisecond);
}

// Answers of frames that had not to wait for credit say nothing; neither do trials in which a connection was lost.
TEST(CreditTuner, learns_nothing_where_there_is_nothing_to_learn) {
  for (const bool is_blocked : {false, true}) {
    CreditTuner tuner;
    TimeNs now = 0;
    for (int i = 0; i < 300'000; ++i) {
      now += 500 * kMicrosecond;
      if (is_blocked) tuner.on_blocked();
      if (is_blocked && i % 10 == 0) tuner.on_shard_down();
      tuner.on_answered(kFrame, kLeast, now);
      EXPECT_GE(tuner.horizon_ns(), kMillisecond);
      EXPECT_LE(tuner.horizon_ns(), 32 * kMillisecond);
    }
    EXPECT_EQ(tuner.chosen_ns(), Credit::kHorizonNs);
    EXPECT_EQ(tuner.take_news(), "");
  }
}

}  // namespace
}  // namespace byteps
