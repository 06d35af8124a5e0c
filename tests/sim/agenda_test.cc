// The network's time and what is to happen on it.
#include "sim/agenda.h"

#include <vector>

#include <gtest/gtest.h>

namespace byteps::sim {
namespace {

TEST(Agenda, equal_times_happen_in_the_order_they_were_scheduled) {
  Agenda agenda;
  agenda.schedule(20, Happening::kReach, 1, 0);
  agenda.schedule(10, Happening::kReach, 2, 0);
  agenda.schedule(10, Happening::kReach, 3, 1);
  EXPECT_EQ(agenda.next_ns(), 10);
  std::vector<ConnectionId> order;
  while (const auto event = agenda.next(30)) {
    EXPECT_EQ(agenda.now(), event->at);
    order.push_back(event->connection);
  }
  EXPECT_EQ(order, (std::vector<ConnectionId>{2, 3, 1}));
  EXPECT_EQ(agenda.now(), 30);
  EXPECT_EQ(agenda.next_ns(), kNever);
}

TEST(Agenda, what_is_later_waits_and_what_was_due_before_does_not_turn_time_back) {
  Agenda agenda;
  agenda.schedule(20, Happening::kReach, 1, 0);
  EXPECT_FALSE(agenda.next(19).has_value());
  EXPECT_EQ(agenda.now(), 19);
  agenda.schedule(5, Happening::kReach, 2, 0);
  EXPECT_EQ(agenda.next(19)->connection, 2U);
  EXPECT_EQ(agenda.now(), 19);
  EXPECT_EQ(agenda.next(20)->connection, 1U);
}

}  // namespace
}  // namespace byteps::sim
