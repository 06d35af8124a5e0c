#include "loop/runner.h"

#include <condition_variable>
#include <functional>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "loop/mailbox.h"

namespace byteps {
namespace {

class TestWaiter final : public Waiter {
 public:
  // A finite timeout ends at once and moves the clock; kNever waits for wake().
  explicit TestWaiter(std::atomic<TimeNs>& clock) : clock_(clock) {}
  void wait(TimeNs timeout_ns) override {
    std::unique_lock lock(mutex_);
    ++waits_;
    if (timeout_ns != kNever) {
      clock_ += timeout_ns;
      return;
    }
    asleep_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return pending_; });
    pending_ = false;
    asleep_ = false;
  }
  void doze(TimeNs /*timeout_ns*/, TimeNs patience_ns) override {
    const std::lock_guard lock(mutex_);
    dozed_ns.push_back(patience_ns);
    clock_ += patience_ns;
  }
  std::vector<TimeNs> dozed_ns;
  void wake() override {
    const std::lock_guard lock(mutex_);
    pending_ = true;
    changed_.notify_all();
  }
  void until_asleep() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return asleep_ && !pending_; });
  }
  int waits() {
    const std::lock_guard lock(mutex_);
    return waits_;
  }

 private:
  std::atomic<TimeNs>& clock_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool pending_ = false;
  bool asleep_ = false;
  int waits_ = 0;
};

class TestClock final : public Clock {
 public:
  explicit TestClock(std::atomic<TimeNs>& now) : now_(now) {}
  TimeNs now() override { return now_; }

 private:
  std::atomic<TimeNs>& now_;
};

class TestActor final : public Actor {
 public:
  explicit TestActor(std::function<std::size_t(TimeNs)> on_turn) : on_turn_(std::move(on_turn)) {}
  std::size_t turn(TimeNs now) override { return on_turn_(now); }
  TimeNs next_deadline() const override { return deadline; }
  TimeNs patience() const override { return patience_ns; }
  bool finished() const override { return done; }
  void failed(const Status& why) override { failures.push_back(why.text()); }
  std::vector<std::string> failures;
  TimeNs deadline = kNever;
  TimeNs patience_ns = 0;
  bool done = false;

 private:
  std::function<std::size_t(TimeNs)> on_turn_;
};

class RunnerTest : public testing::Test {
 protected:
  std::atomic<TimeNs> now_{1000};
  TestClock clock_{now_};
  TestWaiter waiter_{now_};
};

TEST_F(RunnerTest, turns_without_sleeping_while_there_is_work_and_ends_when_finished) {
  int turns = 0;
  TestActor actor([&](TimeNs) -> std::size_t { return actor.done = ++turns == 5, 1; });
  const std::atomic<bool> stop{false};
  run_actor(actor, waiter_, clock_, stop);
  EXPECT_EQ(turns, 5);
  EXPECT_EQ(waiter_.waits(), 0);
}

TEST_F(RunnerTest, sleeps_exactly_until_the_deadline_and_one_that_has_passed_is_no_sleep) {
  std::vector<TimeNs> turns;
  TestActor actor([&](TimeNs now) -> std::size_t {
    turns.push_back(now);
    actor.deadline = turns.size() == 1 ? 1500 : 1200;
    actor.done = turns.size() == 3;
    return 0;
  });
  const std::atomic<bool> stop{false};
  run_actor(actor, waiter_, clock_, stop);
  EXPECT_EQ(turns, (std::vector<TimeNs>{1000, 1500, 1500}));
}

TEST_F(RunnerTest, who_is_patient_dozes_once_after_work_and_then_sleeps) {
  std::vector<TimeNs> turns;
  TestActor actor([&](TimeNs now) -> std::size_t {
    turns.push_back(now);
    actor.deadline = turns.size() < 4 ? 5000 : 9000;
    actor.patience_ns = 100;
    actor.done = turns.size() == 6;
    return turns.size() == 2 ? 1 : 0;
  });
  const std::atomic<bool> stop{false};
  run_actor(actor, waiter_, clock_, stop);
  // Sleeps, has work, dozes, sleeps twice.
  EXPECT_EQ(turns, (std::vector<TimeNs>{1000, 5000, 5000, 5100, 9000, 9000}));
  EXPECT_EQ(waiter_.dozed_ns, std::vector<TimeNs>{100});
}

TEST_F(RunnerTest, spinning_looks_again_until_so_long_after_the_last_work) {
  std::vector<TimeNs> turns;
  TestActor actor([&](TimeNs now) -> std::size_t {
    turns.push_back(now);
    now_ = now + 10;
    actor.deadline = 5000;
    actor.done = now >= 5000;
    return turns.size() == 2 ? 1 : 0;  // work at 1010
  });
  const std::atomic<bool> stop{false};
  run_actor(actor, waiter_, clock_, stop, 25);
  // At 1000 nothing has been done yet, but spinning begins at once.
  EXPECT_EQ(turns, (std::vector<TimeNs>{1000, 1010, 1020, 1030, 1040, 5000}));
  EXPECT_EQ(waiter_.waits(), 4);  // only the last one slept: the others looked
}

TEST_F(RunnerTest, stop_ends_a_runner_that_sleeps_without_limit) {
  std::atomic<int> turns{0};
  TestActor actor([&](TimeNs) -> std::size_t { return ++turns, 0; });
  Runner runner("test", actor, waiter_, clock_);
  waiter_.until_asleep();
  runner.stop();
  runner.join();
  EXPECT_EQ(turns, 1);
}

TEST_F(RunnerTest, destruction_stops_and_joins_a_busy_runner) {
  std::atomic<int> turns{0};
  TestActor actor([&](TimeNs) -> std::size_t { return ++turns, 1; });
  {
    const Runner runner("test", actor, waiter_, clock_);
    while (turns == 0) std::this_thread::yield();
  }
  const int after = turns;
  EXPECT_EQ(turns, after) << "no turn after the destructor";
}

TEST_F(RunnerTest, a_post_wakes_the_actor_that_sleeps_and_none_is_lost) {
  constexpr int kPosts = 2000;
  Mailbox<int> mailbox(kPosts, &waiter_);
  std::vector<int> items;
  int received = 0;
  TestActor actor([&](TimeNs) -> std::size_t {
    mailbox.drain(items);
    received += static_cast<int>(items.size());
    actor.done = received == kPosts;
    return items.size();
  });
  Runner runner("test", actor, waiter_, clock_);
  for (int i = 0; i < kPosts; ++i) EXPECT_TRUE(mailbox.post(int{i}).is_ok());
  runner.join();
  EXPECT_EQ(received, kPosts);
}

TEST_F(RunnerTest, what_a_turn_throws_is_told_to_the_actor_which_goes_on_until_it_is_finished) {
  int turns = 0;
  TestActor actor([&](TimeNs) -> std::size_t {
    ++turns;
    if (turns == 2) throw std::bad_alloc();
    if (turns == 3) throw std::length_error("too long");
    actor.done = turns == 4;
    return 1;
  });
  const std::atomic<bool> stop{false};
  run_actor(actor, waiter_, clock_, stop);
  EXPECT_EQ(turns, 4);
  EXPECT_EQ(actor.failures,
            (std::vector<std::string>{"System: out of memory", "System: unexpected: too long"}));
  EXPECT_EQ(waiter_.waits(), 2) << "memory may be there in a moment";
}

TEST_F(RunnerTest, an_actor_that_cannot_even_be_told_is_told_again) {
  int turns = 0;
  class Stubborn final : public Actor {
   public:
    explicit Stubborn(int& turns) : turns_(turns) {}
    std::size_t turn(TimeNs) override { return ++turns_ < 4 ? throw std::bad_alloc() : 0; }
    TimeNs next_deadline() const override { return kNever; }
    bool finished() const override { return told_ == 3; }
    void failed(const Status&) override {
      if (++told_ < 3) throw std::bad_alloc();
    }

   private:
    int& turns_;
    int told_ = 0;
  } actor(turns);
  const std::atomic<bool> stop{false};
  run_actor(actor, waiter_, clock_, stop);
  EXPECT_EQ(turns, 3);
}

// Nanoseconds that the kernel lets the calling thread run before another has its turn; 0: it does not tell.
std::uint64_t slice_ns() {
  struct {  // sched_getattr(2)
    std::uint32_t size, policy;
    std::uint64_t flags;
    std::int32_t nice;
    std::uint32_t priority;
    std::uint64_t runtime_ns, deadline_ns, period_ns;
  } found = {};
  const long code = syscall(SYS_sched_getattr, 0, &found, sizeof found, 0);
  return code == 0 && found.policy == SCHED_OTHER ? found.runtime_ns : 0;
}

TEST_F(RunnerTest, its_thread_has_short_slices_and_the_one_that_started_it_its_usual_ones) {
  const std::uint64_t usual_ns = slice_ns();
  if (usual_ns <= 100'000)
    GTEST_SKIP() << "this kernel tells no slices, or threads have short ones here";
  std::uint64_t of_loop_ns = 0;
  TestActor actor([&](TimeNs) -> std::size_t {
    of_loop_ns = slice_ns();
    return actor.done = true, 1;
  });
  Runner runner("test", actor, waiter_, clock_);
  runner.join();
  EXPECT_EQ(of_loop_ns, 100'000U);
  EXPECT_EQ(slice_ns(), usual_ns);
}

TEST_F(RunnerTest, joining_within_a_time_says_when_that_was_not_enough) {
  TestActor actor([&](TimeNs) -> std::size_t { return 0; });
  Runner runner("test", actor, waiter_, clock_);
  EXPECT_FALSE(runner.join_within(kMillisecond));
  runner.stop();
  EXPECT_TRUE(runner.join_within(20 * kSecond));
}

TEST_F(RunnerTest, its_thread_gets_no_signals_but_those_of_its_own_doing) {
  sigset_t blocked;
  sigemptyset(&blocked);
  TestActor actor([&](TimeNs) -> std::size_t {
    pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    actor.done = true;
    return 0;
  });
  Runner runner("test", actor, waiter_, clock_);
  runner.join();
  for (const int number : {SIGINT, SIGTERM, SIGPIPE, SIGUSR1}) {
    EXPECT_EQ(sigismember(&blocked, number), 1) << strsignal(number);
  }
  for (const int number : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL}) {
    EXPECT_EQ(sigismember(&blocked, number), 0) << strsignal(number);
  }
}

}  // namespace
}  // namespace byteps
