#include "loop/executor.h"

#include <future>
#include <memory>
#include <vector>

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

namespace byteps {
namespace {

constexpr TimeNs kLongNs = 20 * kSecond;

TEST(Executor, one_thread_runs_jobs_in_the_order_posted) {
  std::vector<int> seen;
  Executor executor("test", 100);
  for (int i = 0; i < 50; ++i)
    ASSERT_TRUE(executor.post([&seen, i] { seen.push_back(i); }).is_ok());
  ASSERT_TRUE(executor.settle(kLongNs));
  ASSERT_EQ(seen.size(), 50U);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(seen[static_cast<std::size_t>(i)], i);
}

TEST(Executor, a_job_that_hangs_keeps_none_of_several_threads_from_the_others) {
  std::promise<void> release;
  std::shared_future<void> released = release.get_future().share();
  std::promise<void> other_ran;
  Executor executor("test", 100, 2);
  ASSERT_TRUE(executor.post([released] { released.wait(); }).is_ok());
  ASSERT_TRUE(executor.post([&other_ran] { other_ran.set_value(); }).is_ok());
  EXPECT_EQ(other_ran.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
  EXPECT_FALSE(executor.settle(0));
  release.set_value();
  EXPECT_TRUE(executor.settle(kLongNs));
}

TEST(Executor, takes_no_more_than_may_wait) {
  std::promise<void> release;
  std::shared_future<void> released = release.get_future().share();
  std::promise<void> running;
  Executor executor("test", 2);
  ASSERT_TRUE(executor
                  .post([released, &running] {
                    running.set_value();
                    released.wait();
                  })
                  .is_ok());
  running.get_future().wait();
  EXPECT_TRUE(executor.post([] {}).is_ok());
  EXPECT_TRUE(executor.post([] {}).is_ok());
  EXPECT_TRUE(executor.post([] {}).is(Code::kAgain));
  release.set_value();
  ASSERT_TRUE(executor.settle(kLongNs));
}

TEST(Executor, ends_without_a_job_that_hangs_and_drops_what_waits) {
  std::promise<void> release;
  std::shared_future<void> released = release.get_future().share();
  const auto owned = std::make_shared<int>(0);
  auto done = std::make_shared<std::promise<void>>();
  auto running = std::make_shared<std::promise<void>>();
  {
    Executor executor("test", 10);
    ASSERT_TRUE(executor
                    .post([released, owned, done, running] {
                      running->set_value();
                      released.wait();
                      done->set_value();
                    })
                    .is_ok());
    running->get_future().wait();
    ASSERT_TRUE(executor.post([owned] { ++*owned; }).is_ok());
  }
  EXPECT_EQ(owned.use_count(), 2) << "the job that hangs still has what it uses, the other is gone";
  release.set_value();
  done->get_future().wait();
  EXPECT_EQ(*owned, 0);
}

TEST(Executor, its_threads_get_no_signals_but_those_of_their_own_doing) {
  sigset_t blocked;
  sigemptyset(&blocked);
  Executor executor("test", 1);
  ASSERT_TRUE(
      executor.post([&blocked] { pthread_sigmask(SIG_SETMASK, nullptr, &blocked); }).is_ok());
  ASSERT_TRUE(executor.settle(kLongNs));
  for (const int number : {SIGINT, SIGTERM, SIGPIPE, SIGUSR1, SIGCHLD, SIGALRM}) {
    EXPECT_EQ(sigismember(&blocked, number), 1) << strsignal(number);
  }
  for (const int number : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL}) {
    EXPECT_EQ(sigismember(&blocked, number), 0) << strsignal(number);
  }
}

}  // namespace
}  // namespace byteps
