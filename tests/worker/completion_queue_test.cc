// CompletionQueue, alone, behind Handles, and between threads that meet at the queue itself.
#include "worker/completion_queue.h"

#include <array>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "worker/handles.h"

namespace byteps {
namespace {

using Ended = CompletionQueue::Ended;

TEST(CompletionQueue, gives_what_has_ended_in_order_and_in_batches) {
  CompletionQueue queue;
  Handles handles;
  for (std::uint64_t tag = 10; tag < 15; ++tag) {
    const HandleId handle = handles.create({.queue = &queue, .tag = tag}).value();
    handles.complete(handle, Status::ok());
  }
  EXPECT_EQ(handles.pending_count(), 0u);
  std::array<Ended, 3> batch;
  std::size_t count = 0;
  ASSERT_TRUE(queue.take(batch, count, 0).is_ok());
  ASSERT_EQ(count, 3u);
  EXPECT_EQ(batch[0].tag, 10u);
  EXPECT_EQ(batch[2].tag, 12u);
  EXPECT_EQ(batch[2].handle, HandleId(3));
  ASSERT_TRUE(queue.take(batch, count, 0).is_ok());
  EXPECT_EQ(count, 2u);
  EXPECT_EQ(batch[1].tag, 14u);
  EXPECT_TRUE(queue.take(batch, count, 0).is(Code::kAgain));
  EXPECT_EQ(count, 0u);
}

TEST(CompletionQueue, a_failed_operation_comes_alone_and_in_its_place) {
  CompletionQueue queue;
  Handles handles;
  for (std::uint64_t tag = 0; tag < 3; ++tag) {
    const HandleId handle = handles.create({.queue = &queue, .tag = tag}).value();
    handles.complete(handle, tag == 1 ? Status(Code::kMismatch, "sizes differ") : Status::ok());
  }
  std::array<Ended, 8> batch;
  for (std::uint64_t tag = 0; tag < 3; ++tag) {
    std::size_t count = 0;
    ASSERT_TRUE(queue.take(batch, count, 0).is_ok());
    ASSERT_EQ(count, 1u);
    EXPECT_EQ(batch[0].tag, tag);
    EXPECT_EQ(batch[0].result.message(), tag == 1 ? "sizes differ" : "");
  }
}

TEST(CompletionQueue, its_handles_cannot_be_waited_for) {
  CompletionQueue queue;
  Handles handles;
  const HandleId handle = handles.create({.queue = &queue, .tag = 1}).value();
  EXPECT_TRUE(handles.wait(handle, 0).is(Code::kInvalidArgument));
  EXPECT_FALSE(handles.poll(handle).value());
  handles.complete(handle, Status::ok());
  EXPECT_TRUE(handles.poll(handle).status().is(Code::kInvalidArgument)) << "used up";
}

TEST(CompletionQueue, a_discarded_handle_is_not_reported) {
  CompletionQueue queue;
  Handles handles;
  const HandleId handle = handles.create({.queue = &queue, .tag = 1}).value();
  EXPECT_EQ(queue.outstanding(), 1u);
  handles.discard(handle);
  EXPECT_EQ(queue.outstanding(), 0u);
  std::array<Ended, 1> batch;
  std::size_t count = 0;
  EXPECT_TRUE(queue.take(batch, count, 0).is(Code::kAgain));
}

TEST(CompletionQueue, what_is_not_taken_counts_against_the_limit) {
  CompletionQueue queue;
  EXPECT_TRUE(queue.begin(2).is_ok());
  EXPECT_TRUE(queue.begin(2).is_ok());
  EXPECT_TRUE(queue.begin(2).is(Code::kAgain));
  queue.push({.handle = HandleId(1), .tag = 0, .result = Status::ok()});
  EXPECT_TRUE(queue.begin(2).is(Code::kAgain)) << "ended, but nobody has taken it";
  std::array<Ended, 1> batch;
  std::size_t count = 0;
  ASSERT_TRUE(queue.take(batch, count, 0).is_ok());
  EXPECT_TRUE(queue.begin(2).is_ok());
}

TEST(CompletionQueue, is_over_when_it_is_closed_and_all_is_taken) {
  CompletionQueue queue;
  ASSERT_TRUE(queue.begin(1).is_ok());
  queue.push({.handle = HandleId(1), .tag = 7, .result = Status::ok()});
  queue.close();
  std::array<Ended, 2> batch;
  std::size_t count = 0;
  ASSERT_TRUE(queue.take(batch, count, -1).is_ok());
  EXPECT_EQ(batch[0].tag, 7u);
  EXPECT_TRUE(queue.take(batch, count, -1).is(Code::kCancelled));
  EXPECT_TRUE(queue.begin(1).is(Code::kCancelled));
}

TEST(CompletionQueue, wakes_who_waits) {
  constexpr std::uint64_t kOperations = 20'000;
  CompletionQueue queue;
  Handles handles;
  std::uint64_t sum = 0;
  std::thread taker([&] {
    std::array<Ended, 64> batch;
    std::size_t count = 0;
    while (queue.take(batch, count, -1).is_ok()) {
      for (std::size_t i = 0; i < count; ++i) sum += batch[i].tag;
    }
  });
  for (std::uint64_t tag = 1; tag <= kOperations; ++tag) {
    handles.complete(handles.create({.queue = &queue, .tag = tag}).value(), Status::ok());
  }
  queue.close();
  taker.join();
  EXPECT_EQ(sum, kOperations * (kOperations + 1) / 2);
  EXPECT_EQ(queue.outstanding(), 0u);
}

}  // namespace
}  // namespace byteps
