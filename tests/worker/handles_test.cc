// Handles, alone and under several threads. The threads meet at the handles themselves: nothing sleeps.
#include "worker/handles.h"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace byteps {
namespace {

TEST(Handles, count_from_one_and_never_come_back) {
  Handles handles;
  EXPECT_EQ(handles.create().value(), HandleId(1));
  EXPECT_EQ(handles.create().value(), HandleId(2));
  handles.complete(HandleId(1), Status::ok());
  EXPECT_TRUE(handles.wait(HandleId(1), 0).is_ok());
  EXPECT_EQ(handles.create().value(), HandleId(3));
}

TEST(Handles, give_the_result_once_and_are_used_up) {
  Handles handles;
  const HandleId handle = handles.create().value();
  EXPECT_FALSE(handles.poll(handle).value());
  EXPECT_TRUE(handles.wait(handle, 0).is(Code::kAgain));
  EXPECT_TRUE(handles.wait(handle, kMillisecond).is(Code::kAgain));
  EXPECT_EQ(handles.pending_count(), 1u);
  handles.complete(handle, Status(Code::kMismatch, "sizes differ"));
  EXPECT_EQ(handles.pending_count(), 0u);
  EXPECT_TRUE(handles.poll(handle).value());
  const Status result = handles.wait(handle, -1);
  EXPECT_TRUE(result.is(Code::kMismatch));
  EXPECT_EQ(result.message(), "sizes differ");
  EXPECT_TRUE(handles.wait(handle, -1).is(Code::kInvalidArgument));
  EXPECT_TRUE(handles.poll(handle).status().is(Code::kInvalidArgument));
}

TEST(Handles, strangers_are_refused) {
  Handles handles;
  for (const std::int64_t number : {0, -1, 5}) {
    EXPECT_TRUE(handles.wait(HandleId(number), -1).is(Code::kInvalidArgument));
    EXPECT_FALSE(handles.poll(HandleId(number)).is_ok());
  }
}

TEST(Handles, a_discarded_one_was_never_there) {
  Handles handles;
  const HandleId handle = handles.create().value();
  handles.discard(handle);
  EXPECT_EQ(handles.pending_count(), 0u);
  EXPECT_TRUE(handles.wait(handle, -1).is(Code::kInvalidArgument));
}

TEST(Handles, are_limited) {
  Handles handles;
  for (std::size_t i = 0; i < Handles::kHandlesMax; ++i) ASSERT_TRUE(handles.create().is_ok());
  EXPECT_TRUE(handles.create().status().is(Code::kAgain));
  handles.complete(HandleId(7), Status::ok());
  EXPECT_FALSE(handles.create().is_ok()) << "finished ones count until they are waited for";
  EXPECT_TRUE(handles.wait(HandleId(7), 0).is_ok());
  EXPECT_TRUE(handles.create().is_ok());
}

TEST(Handles, that_are_completed_together_have_each_their_own_result) {
  Handles handles;
  std::vector<Handles::Completion> completions;
  for (int i = 1; i <= 100; ++i) {
    const HandleId handle = handles.create().value();
    const std::string text = std::to_string(i);
    completions.push_back({handle, i % 3 == 0 ? Status(Code::kTimeout, text) : Status::ok()});
  }
  std::thread waiter([&] { EXPECT_TRUE(handles.wait(HandleId(100), -1).is_ok()); });
  handles.complete(completions);
  waiter.join();
  EXPECT_EQ(handles.pending_count(), 0u);
  for (int i = 1; i < 100; ++i) {
    const Status result = handles.wait(HandleId(i), 0);
    EXPECT_EQ(result.is_ok(), i % 3 != 0);
    EXPECT_EQ(result.message(), i % 3 == 0 ? std::to_string(i) : "");
  }
}

TEST(Handles, completing_twice_is_a_bug) {
  Handles handles;
  const HandleId handle = handles.create().value();
  handles.complete(handle, Status::ok());
  EXPECT_DEATH(handles.complete(handle, Status::ok()), "completed before");
}

TEST(Handles, four_threads_wait_while_one_completes_each_result_reaches_its_own_waiter) {
  constexpr int kThreads = 4;
  constexpr int kEach = 2000;
  Handles handles;
  std::vector<std::vector<HandleId>> mine(kThreads);
  std::vector<HandleId> all;
  for (int i = 0; i < kEach; ++i) {
    for (auto& list : mine) all.push_back(list.emplace_back(handles.create().value()));
  }
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (const auto& list : mine) {
    threads.emplace_back([&handles, &list, &wrong] {
      for (const HandleId handle : list) {
        const Status result = handles.wait(handle, -1);
        if (result.message() != std::to_string(handle.value)) ++wrong;
      }
    });
  }
  for (const HandleId handle : all) {
    handles.complete(handle, Status(Code::kTimeout, std::to_string(handle.value)));
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(handles.pending_count(), 0u);
}

TEST(Handles, a_wait_that_spins_first_ends_at_its_limit_and_with_the_result) {
  Handles handles(3600 * kSecond);
  const HandleId handle = handles.create().value();
  EXPECT_TRUE(handles.wait(handle, kMillisecond).is(Code::kAgain));
  std::thread waiter([&] { EXPECT_TRUE(handles.wait(handle, -1).is(Code::kTimeout)); });
  handles.complete(handle, Status(Code::kTimeout, "too late"));
  waiter.join();
  EXPECT_TRUE(handles.wait(handle, 0).is(Code::kInvalidArgument)) << "it is used up";
}

TEST(Handles, of_two_waiters_for_one_handle_exactly_one_gets_the_result) {
  for (int repeat = 0; repeat < 200; ++repeat) {
    Handles handles;
    const HandleId handle = handles.create().value();
    std::atomic<int> got{0};
    std::atomic<int> refused{0};
    const auto wait = [&] {
      const Status result = handles.wait(handle, -1);
      if (result.is_ok()) ++got;
      if (result.is(Code::kInvalidArgument)) ++refused;
    };
    std::thread first(wait);
    std::thread second(wait);
    handles.complete(handle, Status::ok());
    first.join();
    second.join();
    ASSERT_EQ(got, 1);
    ASSERT_EQ(refused, 1);
  }
}

// Until another thread is in wait().
void until_blocked(Handles& handles, std::size_t count) {
  while (handles.blocked_on().size() != count) std::this_thread::yield();
}

TEST(Handles, are_blocked_on_when_every_thread_that_creates_them_waits) {
  Handles handles;
  EXPECT_TRUE(handles.blocked_on().empty());
  HandleId first;
  std::thread one([&] {
    first = handles.create().value();
    EXPECT_TRUE(handles.wait(first, -1).is_ok());
  });
  until_blocked(handles, 1);
  EXPECT_EQ(handles.blocked_on(), std::vector<HandleId>{first});
  const HandleId second = handles.create().value();
  EXPECT_TRUE(handles.blocked_on().empty()) << "this thread may create more";
  EXPECT_TRUE(handles.wait(second, kMillisecond).is(Code::kAgain));
  EXPECT_EQ(handles.blocked_on(), (std::vector<HandleId>{first, second}))
      << "it was in wait() a moment ago";
  EXPECT_TRUE(handles.blocked_on().empty()) << "it was not since";
  EXPECT_TRUE(handles.wait(second, 0).is(Code::kAgain));
  EXPECT_TRUE(handles.blocked_on().empty()) << "looking is no waiting";
  EXPECT_TRUE(handles.wait(second, kMillisecond).is(Code::kAgain));
  handles.complete(first, Status::ok());
  EXPECT_TRUE(handles.blocked_on().empty()) << "the first is about to go on";
  one.join();
}

TEST(Handles, of_a_thread_for_which_another_waits_are_blocked_on_with_that_one) {
  Handles handles;
  HandleId hooked;
  std::thread hooks([&] { hooked = handles.create().value(); });
  hooks.join();
  EXPECT_TRUE(handles.wait(hooked, kMillisecond).is(Code::kAgain));
  EXPECT_EQ(handles.blocked_on(), std::vector<HandleId>{hooked});
}

TEST(Handles, of_a_thread_that_nobody_waits_for_keep_the_job_from_a_stall) {
  Handles handles;
  std::thread hooks([&] { EXPECT_TRUE(handles.create().is_ok()); });
  hooks.join();
  const HandleId own = handles.create().value();
  EXPECT_TRUE(handles.wait(own, kMillisecond).is(Code::kAgain));
  EXPECT_TRUE(handles.blocked_on().empty());
}

}  // namespace
}  // namespace byteps
