#include "loop/mailbox.h"

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace byteps {
namespace {

// Counts wake-ups, and sleeps until one comes.
class CountingWaiter final : public Waiter {
 public:
  void wait(TimeNs) override {
    std::unique_lock lock(mutex_);
    woken_.wait(lock, [&] { return pending_; });
    pending_ = false;
  }
  void wake() override {
    const std::lock_guard lock(mutex_);
    ++wakes_;
    pending_ = true;
    woken_.notify_one();
  }
  int wakes() {
    const std::lock_guard lock(mutex_);
    return wakes_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable woken_;
  bool pending_ = false;
  int wakes_ = 0;
};

TEST(Mailbox, gives_items_in_the_order_posted_and_only_once) {
  Mailbox<int> mailbox(10, nullptr);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(mailbox.post(int{i}).is_ok());
  std::vector<int> items = {99};
  mailbox.drain(items);
  EXPECT_EQ(items, (std::vector<int>{0, 1, 2, 3, 4}));
  mailbox.drain(items);
  EXPECT_TRUE(items.empty());
}

TEST(Mailbox, when_full_says_again_and_takes_nothing) {
  Mailbox<std::unique_ptr<int>> mailbox(1, nullptr);
  EXPECT_TRUE(mailbox.post(std::make_unique<int>(1)).is_ok());
  auto second = std::make_unique<int>(2);
  EXPECT_TRUE(mailbox.post(std::move(second)).is(Code::kAgain));
  ASSERT_NE(second, nullptr) << "still the caller's";
  std::vector<std::unique_ptr<int>> items;
  mailbox.drain(items);
  EXPECT_EQ(items.size(), 1U);
  EXPECT_TRUE(mailbox.post(std::move(second)).is_ok());
}

TEST(Mailbox, after_close_refuses_and_has_given_back_what_was_there) {
  Mailbox<int> mailbox(10, nullptr);
  EXPECT_TRUE(mailbox.post(1).is_ok());
  std::vector<int> rest;
  mailbox.close(rest);
  EXPECT_EQ(rest, std::vector<int>{1});
  EXPECT_TRUE(mailbox.post(2).is(Code::kCancelled));
}

TEST(Mailbox, wakes_the_consumer_only_when_the_box_was_empty) {
  CountingWaiter waiter;
  Mailbox<int> mailbox(10, &waiter);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(mailbox.post(int{i}).is_ok());
  EXPECT_EQ(waiter.wakes(), 1);
  std::vector<int> items;
  mailbox.drain(items);
  EXPECT_TRUE(mailbox.post(7).is_ok());
  EXPECT_EQ(waiter.wakes(), 2);
}

// Goal: no item is lost, doubled or overtaken by a later one of its producer, and the consumer never
// sleeps through a post. Method: four producers at full speed against a small box; the consumer sleeps
// whenever the box is empty.
TEST(Mailbox, producers_4_against_a_sleeping_consumer_lose_nothing) {
  constexpr int kProducers = 4;
  constexpr int kItems = 20'000;
  struct Item {
    int producer;
    int number;
  };
  CountingWaiter waiter;
  Mailbox<Item> mailbox(64, &waiter);
  std::vector<std::thread> producers;
  for (int p = 0; p < kProducers; ++p) {
    producers.emplace_back([&mailbox, p] {
      for (int i = 0; i < kItems; ++i) {
        while (!mailbox.post({p, i}).is_ok()) std::this_thread::yield();
      }
    });
  }
  std::vector<int> next(kProducers, 0);
  std::vector<Item> items;
  for (int received = 0; received < kProducers * kItems;) {
    mailbox.drain(items);
    for (const Item& item : items) {
      EXPECT_EQ(item.number, next[static_cast<std::size_t>(item.producer)]++);
    }
    received += static_cast<int>(items.size());
    if (items.empty())
      waiter.wait(kNever);  // every item was posted to an empty box or a drained one
  }
  for (std::thread& producer : producers) producer.join();
  EXPECT_EQ(next, std::vector<int>(kProducers, kItems));
}

}  // namespace
}  // namespace byteps
