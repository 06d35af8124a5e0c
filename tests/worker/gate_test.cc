// The gate against a dull model: a vector that is sorted anew for each question.
#include "worker/gate.h"

#include <algorithm>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "base/prng.h"

namespace byteps {
namespace {

struct Waiting {
  Gate::Order order;
  bool wanted = false;
  bool is_alone = false;
  std::uint64_t item = 0;
  Gate::Ticket ticket = Gate::kNoTicket;
};

// The order as gate.h says it, word by word.
bool goes_before(const Waiting& a, const Waiting& b, bool by_priority) {
  if (a.wanted != b.wanted) return a.wanted;
  if (a.is_alone != b.is_alone) return b.is_alone;
  if (by_priority) {
    if (a.order.priority != b.order.priority) return a.order.priority > b.order.priority;
    if (a.order.round != b.order.round) return a.order.round < b.order.round;
    if (a.order.key != b.order.key) return a.order.key < b.order.key;
    return a.order.part < b.order.part;
  }
  if (a.order.submission != b.order.submission) return a.order.submission < b.order.submission;
  return a.order.part < b.order.part;
}

void compare_with_sorting(bool by_priority, std::uint64_t seed) {
  Prng prng(seed);
  Gate gate(by_priority, 1000);
  std::vector<Waiting> model;
  std::uint64_t submission = 0;
  for (int step = 0; step < 5000; ++step) {
    const std::uint64_t dice = prng.below(10);
    if (dice < 5 || model.empty()) {
      Waiting part;
      constexpr std::int32_t kPriorities[] = {0, 1, -1, std::numeric_limits<std::int32_t>::min(),
                                              std::numeric_limits<std::int32_t>::max()};
      part.order = {.priority = kPriorities[prng.below(5)],
                    .round = Round(static_cast<std::uint32_t>(prng.below(3))),
                    .key = Key(prng.below(5)),
                    .part = PartIndex(static_cast<std::uint32_t>(step)),
                    .submission = ++submission};
      part.wanted = prng.below(8) == 0;
      part.item = prng.next();
      part.ticket = gate.add(part.order, part.wanted, part.item);
      model.push_back(part);
    } else if (dice < 7) {
      Waiting& part = model[prng.below(model.size())];
      part.is_alone = prng.below(2) == 0;
      gate.set_alone(part.ticket, part.is_alone);
      if (prng.below(4) != 0) {
        part.wanted = true;
        gate.want(part.ticket);
      }
    } else {
      // Usually the first leaves, sometimes any.
      const bool any = dice == 9;
      const auto leaves =
          any ? model.begin() + static_cast<std::ptrdiff_t>(prng.below(model.size()))
              : std::find_if(model.begin(), model.end(),
                             [&](const Waiting& part) { return part.ticket == gate.front(); });
      gate.remove(leaves->ticket);
      model.erase(leaves);
    }
    ASSERT_EQ(gate.size(), model.size());
    if (model.empty()) continue;
    const auto first = std::min_element(
        model.begin(), model.end(),
        [&](const Waiting& a, const Waiting& b) { return goes_before(a, b, by_priority); });
    ASSERT_EQ(gate.front_item(), first->item) << "seed " << seed << " step " << step;
  }
}

TEST(Gate, order_is_wanted_then_begun_by_all_then_priority_then_round_then_key_then_part) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) compare_with_sorting(true, seed);
}

TEST(Gate, order_is_that_of_submission_without_priority_scheduling) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) compare_with_sorting(false, seed);
}

TEST(Gate, frames_pass_while_they_fit_under_the_credit) {
  Gate gate(true, 100);
  gate.add({}, false, 0);
  EXPECT_TRUE(gate.may_pass(60));
  gate.on_sent(60, 0);
  EXPECT_TRUE(gate.may_pass(40));
  EXPECT_FALSE(gate.may_pass(41));
  gate.on_answered(60, 0);
  EXPECT_TRUE(gate.may_pass(100));
}

TEST(Gate, one_frame_always_passes_however_small_the_credit) {
  Gate gate(true, 1);
  gate.add({}, false, 0);
  EXPECT_TRUE(gate.may_pass(1'000'000));
  gate.on_sent(1'000'000, 0);
  EXPECT_FALSE(gate.may_pass(1));
}

TEST(Gate, wanted_parts_need_no_credit_and_what_they_sent_counts) {
  Gate gate(true, 100);
  const Gate::Ticket ticket = gate.add({}, false, 0);
  gate.on_sent(100, 0);
  EXPECT_FALSE(gate.may_pass(50));
  gate.want(ticket);
  EXPECT_TRUE(gate.may_pass(50));
  gate.on_sent(50, 0);
  EXPECT_EQ(gate.unanswered_bytes(), 150u);
}

TEST(Gate, a_lost_connection_gives_all_credit_back) {
  Gate gate(true, 100);
  gate.on_sent(100, 0);
  gate.forget_sent();
  EXPECT_EQ(gate.unanswered_bytes(), 0u);
}

TEST(Gate, what_is_overtaken_does_not_keep_the_first_waiting) {
  Gate gate(true, 100);
  gate.set_credit(100, 200);
  const auto add = [&](std::int32_t priority) {
    return gate.add({.priority = priority, .round = {}, .key = Key(1), .part = {}}, false, 0);
  };
  const Gate::Ticket slow = add(-5);
  gate.on_sent(60, -5);
  EXPECT_FALSE(gate.may_pass(60)) << "of the same priority";
  const Gate::Ticket urgent = add(-1);
  EXPECT_TRUE(gate.may_pass(60));
  gate.on_sent(60, -1);
  EXPECT_FALSE(gate.may_pass(60)) << "its own are under way";
  gate.on_answered(60, -1);
  EXPECT_TRUE(gate.may_pass(60));
  gate.remove(urgent);
  EXPECT_FALSE(gate.may_pass(60));
  gate.on_answered(60, -5);
  EXPECT_TRUE(gate.may_pass(60));
  gate.remove(slow);
}

TEST(Gate, what_is_overtaken_has_a_limit) {
  Gate gate(true, 100);
  gate.set_credit(100, 200);
  for (std::int32_t priority = 0; priority < 2; ++priority) {
    gate.add({.priority = priority, .round = {}, .key = Key(1), .part = {}}, false, 0);
    EXPECT_TRUE(gate.may_pass(100)) << priority;
    gate.on_sent(100, priority);
  }
  gate.add({.priority = 9, .round = {}, .key = Key(1), .part = {}}, false, 0);
  EXPECT_FALSE(gate.may_pass(100));
}

TEST(Gate, what_is_sent_in_order_counts_whatever_its_priority) {
  Gate gate(true, 100);
  gate.set_credit(100, 200);
  for (const std::int32_t priority : {5, 4, 3}) {
    gate.on_sent(30, priority);
  }
  const Gate::Ticket next =
      gate.add({.priority = 2, .round = {}, .key = Key(1), .part = {}}, false, 0);
  EXPECT_FALSE(gate.may_pass(30));
  gate.on_answered(30, 4);
  EXPECT_TRUE(gate.may_pass(30));
  gate.on_sent(30, 2);
  gate.remove(next);
  gate.add({.priority = 9, .round = {}, .key = Key(1), .part = {}}, false, 0);
  EXPECT_TRUE(gate.may_pass(30)) << "it overtakes all";
  gate.on_sent(30, 9);
  for (const std::int32_t priority : {5, 2, 9, 3}) gate.on_answered(30, priority);
  EXPECT_EQ(gate.unanswered_bytes(), 0u);
}

TEST(Gate, nothing_overtakes_without_priority_scheduling) {
  Gate gate(false, 100);
  gate.set_credit(100, 200);
  gate.on_sent(60, -5);
  gate.add({.priority = 9, .round = {}, .key = Key(1), .part = {}}, false, 0);
  EXPECT_FALSE(gate.may_pass(60));
}

}  // namespace
}  // namespace byteps
