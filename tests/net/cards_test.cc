// Which card a connection goes by.
#include "net/cards.h"

#include <map>
#include <string>

#include <gtest/gtest.h>

namespace byteps {
namespace {

SocketAddress at(const std::string& host, std::uint16_t port = 9000) {
  return addresses_in_text({host, port}).at(0);
}

InterfaceAddress on(const std::string& interface, const std::string& host,
                    std::uint32_t subnet_bits = 24, bool is_up = true) {
  return {interface, at(host, 0), subnet_bits, is_up};
}

const std::vector<InterfaceAddress> kRails = {on("lo", "127.0.0.1", 8), on("eth0", "10.0.0.1"),
                                              on("eth1", "10.0.1.1"), on("eth1", "2001:db8::1", 64),
                                              on("eth2", "192.168.0.1")};
const std::vector<InterfaceAddress> kOneSubnet = {on("lo", "127.0.0.1", 8), on("eth0", "10.0.0.1"),
                                                  on("eth1", "10.0.0.2"),
                                                  on("eth2", "192.168.0.1")};

CardList list_of(std::vector<std::string> all, std::vector<std::string> own = {}) {
  if (own.empty()) own = all;
  return {std::move(all), std::move(own)};
}

// "eth0 10.0.0.1", or "none".
std::string chosen(const CardList& cards, const std::vector<InterfaceAddress>& machine,
                   const std::string& to, std::map<std::string, std::size_t> connections = {}) {
  const auto card = choose_card(cards, machine, at(to),
                                [&](const std::string& name) { return connections[name]; });
  return card ? card->interface + " " + card->from.endpoint().host : "none";
}

TEST(Cards, a_connection_goes_by_the_card_in_whose_subnet_the_other_side_is) {
  const CardList both = list_of({"eth0", "eth1"});
  EXPECT_EQ(chosen(both, kRails, "10.0.0.9"), "eth0 10.0.0.1");
  EXPECT_EQ(chosen(both, kRails, "10.0.1.9"), "eth1 10.0.1.1");
  EXPECT_EQ(chosen(both, kRails, "2001:db8::9"), "eth1 2001:db8::1");
  EXPECT_EQ(chosen(list_of({"eth0", "eth1"}, {"eth0"}), kRails, "10.0.1.9"), "eth1 10.0.1.1")
      << "also when that is not its own";
}

TEST(Cards, of_one_subnet_take_turns_by_their_connections) {
  const CardList both = list_of({"eth0", "eth1"});
  EXPECT_EQ(chosen(both, kOneSubnet, "10.0.0.9"), "eth0 10.0.0.1");
  EXPECT_EQ(chosen(both, kOneSubnet, "10.0.0.9", {{"eth0", 1}}), "eth1 10.0.0.2");
  EXPECT_EQ(chosen(both, kOneSubnet, "10.0.0.9", {{"eth0", 1}, {"eth1", 1}}), "eth0 10.0.0.1");
  EXPECT_EQ(chosen(both, kOneSubnet, "10.0.0.9", {{"eth0", 2}, {"eth1", 3}}), "eth0 10.0.0.1");
  EXPECT_EQ(chosen(list_of({"eth0", "eth1"}, {"eth1"}), kOneSubnet, "10.0.0.9", {{"eth1", 5}}),
            "eth1 10.0.0.2")
      << "a rank's own";
}

TEST(Cards, that_are_down_are_left_out) {
  std::vector<InterfaceAddress> machine = kOneSubnet;
  machine[2].is_up = false;
  EXPECT_EQ(chosen(list_of({"eth0", "eth1"}, {"eth1"}), machine, "10.0.0.9"), "eth0 10.0.0.1");
  EXPECT_EQ(chosen(list_of({"eth1", "eth7"}), machine, "10.0.0.9"), "none");
}

TEST(Cards, take_turns_with_addresses_alone_where_the_other_side_is_behind_a_router) {
  const CardList both = list_of({"eth0", "eth1"});
  EXPECT_EQ(chosen(both, kRails, "203.0.113.9"), "eth0 10.0.0.1");
  EXPECT_EQ(chosen(both, kRails, "203.0.113.9", {{"eth0", 1}}), "eth1 10.0.1.1");
  EXPECT_EQ(chosen(both, kRails, "2001:db8:1::9"), "eth1 2001:db8::1") << "the one with IPv6";
  EXPECT_EQ(card_to_hold(both, kRails, at("10.0.0.1"), at("203.0.113.9")), "");
}

TEST(Cards, are_not_chosen_for_what_stays_within_the_machine_nor_where_none_are_named) {
  const CardList both = list_of({"eth0", "eth1"});
  for (const char* own : {"127.0.0.1", "127.0.0.9", "10.0.1.1", "192.168.0.1", "::1"}) {
    EXPECT_EQ(chosen(both, kRails, own), "none") << own;
    EXPECT_EQ(card_to_hold(both, kOneSubnet, at("10.0.0.1"), at("10.0.0.2")), "");
  }
  EXPECT_EQ(chosen({}, kRails, "10.0.0.9"), "none");
  EXPECT_EQ(card_to_hold({}, kOneSubnet, at("10.0.0.1"), at("10.0.0.9")), "");
}

TEST(Cards, are_held_to_their_devices_where_the_address_does_not_choose_them) {
  const CardList both = list_of({"eth0", "eth1"});
  EXPECT_EQ(card_to_hold(both, kOneSubnet, at("10.0.0.1"), at("10.0.0.9")), "eth0");
  EXPECT_EQ(card_to_hold(both, kOneSubnet, at("10.0.0.2"), at("10.0.0.9")), "eth1");
  EXPECT_EQ(card_to_hold(both, kRails, at("10.0.1.1"), at("10.0.1.9")), "");
  EXPECT_EQ(card_to_hold(list_of({"eth1", "eth2"}), kOneSubnet, at("10.0.0.2"), at("10.0.0.9")),
            "eth1")
      << "another interface is in its subnet, if none of the list";
  EXPECT_EQ(card_to_hold(list_of({"eth1", "eth2"}), kOneSubnet, at("10.0.0.1"), at("10.0.0.9")), "")
      << "it is none of the list";
}

TEST(Cards, of_one_subnet_are_found) {
  const auto found = cards_of_one_subnet(list_of({"eth1", "eth0", "eth2"}), kOneSubnet);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->first + found->second, "eth0eth1");
  EXPECT_FALSE(cards_of_one_subnet(list_of({"eth0", "eth2"}), kOneSubnet));
  EXPECT_FALSE(cards_of_one_subnet(list_of({"eth0", "eth1"}), kRails));
  EXPECT_FALSE(cards_of_one_subnet({}, kOneSubnet));
}

TEST(Cards, subnets_end_within_a_byte) {
  const std::vector<InterfaceAddress> machine = {on("eth0", "10.0.0.1", 26),
                                                 on("eth1", "10.0.0.65", 26)};
  const CardList both = list_of({"eth0", "eth1"});
  EXPECT_EQ(chosen(both, machine, "10.0.0.63"), "eth0 10.0.0.1");
  EXPECT_EQ(chosen(both, machine, "10.0.0.66"), "eth1 10.0.0.65");
}

TEST(Cards, addresses_of_this_machine_have_their_subnets) {
  bool has_loopback = false;
  for (const InterfaceAddress& each : interface_addresses()) {
    EXPECT_FALSE(each.interface.empty());
    if (each.address.endpoint().host != "127.0.0.1") continue;
    has_loopback = true;
    EXPECT_EQ(each.subnet_bits, 8U);
    EXPECT_TRUE(each.is_up);
  }
  EXPECT_TRUE(has_loopback);
}

}  // namespace
}  // namespace byteps
