// What the executables share: where they listen, and what they tell others.
#include "app/process.h"

#include <string>

#include <gtest/gtest.h>

#include "net/address.h"

namespace byteps {
namespace {

TEST(ToldHost, an_address_stays_what_it_is) {
  for (const char* address : {"10.1.2.3", "127.0.0.1", "fe80::1", "::1"}) {
    EXPECT_EQ(told_host(address), address);
  }
}

TEST(ToldHost, localhost_becomes_its_first_address) {
  const std::string told = told_host("localhost");
  EXPECT_TRUE(told == "127.0.0.1" || told == "::1") << told;
}

TEST(ToldHost, a_name_that_leads_to_nothing_of_this_machine_stays_for_others_to_look_up) {
  EXPECT_EQ(told_host("nobody.invalid"), "nobody.invalid");  // never exists, RFC 2606
}

TEST(ListeningHost, is_the_address_that_others_reach_us_at_when_it_is_ours) {
  EXPECT_EQ(listening_host("127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(listening_host("localhost"), "localhost");
  const Result<std::string> own = local_address_towards({"203.0.113.77", 9});
  if (!own.is_ok()) GTEST_SKIP() << "this machine has no route out of it";
  EXPECT_EQ(listening_host(own.value()), own.value()) << "not all interfaces";
}

TEST(ListeningHost, is_every_address_when_others_know_us_by_one_that_we_do_not_have_or_by_a_name) {
  EXPECT_EQ(listening_host("203.0.113.77"), "") << "RFC 5737: nobody's";
  EXPECT_EQ(listening_host("2001:db8::1"), "") << "RFC 3849: nobody's";
  EXPECT_EQ(listening_host("a-service.example"), "");
}

}  // namespace
}  // namespace byteps
