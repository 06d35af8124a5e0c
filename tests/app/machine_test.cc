#include "app/machine.h"

#include <gtest/gtest.h>

namespace byteps {
namespace {

TEST(Machine, has_one_number_for_all_its_processes) {
  EXPECT_NE(machine_number(), 0u);
  EXPECT_EQ(machine_number(), machine_number());
}

TEST(Machine, knows_no_rate_of_addresses_that_are_no_cards) {
  EXPECT_EQ(card_of("127.0.0.1").rate_mbps, 0u) << "loopback is no card";
  EXPECT_EQ(card_of("192.0.2.1").rate_mbps, 0u) << "not an address of this machine";
  EXPECT_EQ(card_of("").rate_mbps, 0u);
}

TEST(Machine, has_a_number_for_each_of_its_interfaces) {
  EXPECT_NE(card_of("127.0.0.1").number, 0u);
  EXPECT_EQ(card_of("127.0.0.1").number, card_of("127.0.0.1").number);
  EXPECT_NE(card_of("127.0.0.1").number, machine_number()) << "two facts";
  EXPECT_EQ(card_of("192.0.2.1").number, 0u);
  EXPECT_EQ(card_of("").number, 0u);
}

}  // namespace
}  // namespace byteps
