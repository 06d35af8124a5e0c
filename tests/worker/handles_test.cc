// Handles, alone and under several threads. The threads meet at the handles themselves: nothing sleeps.
#include "worker/handles.h"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "loop/process_threads.h"

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
  for (std::size_t i = 0; i < kOperationsMax; ++i) ASSERT_TRUE(handles.create().is_ok());
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

// Until so many threads are in wait() for what is pending; nobody else may change anything meanwhile.
void until_all_wait(Handles& handles, std::uint64_t inside) {
  while (!handles.all_wait(handles.progress(), inside)) std::this_thread::yield();
}

TEST(Handles,
     are_blocked_when_the_caller_of_all_threads_says_so_until_something_is_created_or_ends) {
  Handles handles;
  EXPECT_FALSE(handles.is_blocked());
  const HandleId handle = handles.create().value();
  EXPECT_TRUE(handles.all_wait(handles.progress(), 0));
  EXPECT_TRUE(handles.is_blocked());
  const HandleId other = handles.create().value();
  EXPECT_FALSE(handles.is_blocked()) << "one is created";
  EXPECT_TRUE(handles.all_wait(handles.progress(), 0));
  handles.complete(other, Status::ok());
  EXPECT_FALSE(handles.is_blocked()) << "one has ended";
  EXPECT_TRUE(handles.all_wait(handles.progress(), 0));
  EXPECT_FALSE(handles.all_wait(handles.progress() - 1, 0));
  EXPECT_FALSE(handles.is_blocked()) << "the last word counts";
  EXPECT_TRUE(handles.wait(handle, kMillisecond).is(Code::kAgain));
}

TEST(Handles, are_not_blocked_when_others_are_inside_than_was_said) {
  Handles handles;
  const HandleId handle = handles.create().value();
  EXPECT_FALSE(handles.all_wait(handles.progress(), 1));
  std::thread waiter([&] { EXPECT_TRUE(handles.wait(handle, 3600 * kSecond).is_ok()); });
  until_all_wait(handles, 1);
  EXPECT_FALSE(handles.all_wait(handles.progress(), 0));
  EXPECT_FALSE(handles.all_wait(handles.progress(), 2));
  until_all_wait(handles, 1);
  handles.complete(handle, Status::ok());
  EXPECT_FALSE(handles.all_wait(handles.progress(), 1)) << "that thread is about to go on";
  waiter.join();
}

// Sanitizers have a thread of their own; the thread sanitizer's may come later.
bool is_alone() {
#ifdef __SANITIZE_THREAD__
  return false;
#else
  return no_thread_beyond({});
#endif
}

// No Runner is here, so that the thread that looks stands for the worker's.
TEST(Handles, are_blocked_when_all_threads_of_the_process_wait_without_limit) {
  if (!is_alone()) GTEST_SKIP() << "this process has other threads";
  Handles handles;
  const HandleId first = handles.create().value();
  const HandleId second = handles.create().value();
  std::thread loop([&] {
    while (!handles.is_blocked()) std::this_thread::yield();  // until both threads are in wait()
    handles.complete(second, Status::ok());
    handles.complete(first, Status::ok());
  });
  std::thread other([&] { EXPECT_TRUE(handles.wait(second, -1).is_ok()); });
  EXPECT_TRUE(handles.wait(first, kNever).is_ok());
  loop.join();
  other.join();
}

TEST(Handles,
     are_not_blocked_while_a_thread_of_the_process_waits_with_a_limit_or_does_something_else) {
  Handles handles;
  const HandleId handle = handles.create().value();
  std::thread patient([&] { EXPECT_TRUE(handles.wait(handle, -1).is_ok()); });
  until_all_wait(handles, 1);
  EXPECT_FALSE(handles.all_wait(0, 0)) << "nothing is said";
  bool blocked = false;
  std::thread loop([&] {  // this thread here is in join(), for all that is known
    for (int i = 0; i < 100; ++i) blocked |= handles.is_blocked();
    handles.complete(handle, Status::ok());
  });
  loop.join();
  patient.join();
  EXPECT_FALSE(blocked);
}

// A program gives its name to all its threads.
TEST(Handles, are_not_blocked_while_a_thread_that_has_a_name_like_ours_does_something_else) {
  if (!is_alone()) GTEST_SKIP() << "this process has other threads";
  Handles handles;
  const HandleId handle = handles.create().value();
  std::atomic<bool> ends = false;
  std::thread other([&] {
    pthread_setname_np(pthread_self(), "byteps-train");
    while (!ends) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  bool blocked = false;
  std::thread loop([&] {
    until_all_wait(handles, 1);
    EXPECT_FALSE(handles.all_wait(0, 0)) << "nothing is said";
    for (int i = 0; i < 100; ++i) blocked |= handles.is_blocked();
    ends = true;
    other.join();
    while (!handles.is_blocked()) std::this_thread::yield();
    handles.complete(handle, Status::ok());
  });
  EXPECT_TRUE(handles.wait(handle, -1).is_ok());
  loop.join();
  EXPECT_FALSE(blocked);
}

TEST(Handles, that_nobody_has_waited_for_and_no_queue_reports_are_not_awaited) {
  Handles handles;
  CompletionQueue queue;
  const HandleId alone = handles.create().value();
  const HandleId waited = handles.create().value();
  const HandleId looked_at = handles.create().value();
  const HandleId reported = handles.create({.queue = &queue, .tag = 1}).value();
  EXPECT_TRUE(handles.wait(waited, 1).is(Code::kAgain));
  EXPECT_TRUE(handles.wait(looked_at, 0).is(Code::kAgain));
  std::vector<HandleId> pending = {alone, waited, looked_at, reported};
  handles.keep_awaited(pending);
  EXPECT_EQ(pending, (std::vector<HandleId>{waited, reported}));
  handles.complete(reported, Status::ok());
}

// Each of many threads that come and go leaves nothing behind.
TEST(Handles, are_blocked_again_after_more_threads_than_anybody_has) {
  if (!is_alone()) GTEST_SKIP() << "this process has other threads";
  Handles handles;
  for (int i = 0; i < 5000; ++i) {
    std::thread([&] { handles.complete(handles.create().value(), Status::ok()); }).join();
  }
  const HandleId handle = handles.create().value();
  bool blocked = false;
  std::thread loop([&] {
    for (int i = 0; i < 1000000 && !blocked; ++i) blocked = handles.is_blocked();
    handles.complete(handle, Status::ok());
  });
  EXPECT_TRUE(handles.wait(handle, -1).is_ok());
  loop.join();
  EXPECT_TRUE(blocked);
}

}  // namespace
}  // namespace byteps
