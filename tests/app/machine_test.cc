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

TEST(Machine, a_worker_alone_uses_all_interfaces_and_several_take_turns) {
  const std::vector<std::string> names = {"no-such0", "no-such1"};  // of which nothing is known
  EXPECT_EQ(interfaces_of_worker(names, {.rank = 0, .size = 1}), names);
  EXPECT_EQ(interfaces_of_worker(names, {.rank = 3, .size = 4}), std::vector{names[1]});
}

TEST(Machine, one_card_is_no_trouble_of_a_subnet) {
  EXPECT_EQ(trouble_of_one_subnet({}), "");
  EXPECT_EQ(trouble_of_one_subnet({.all = {"lo"}, .own = {"lo"}}), "");
}

}  // namespace
}  // namespace byteps
