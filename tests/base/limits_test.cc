#include "base/limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace byteps {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Limits, each_worker_has_a_place_for_what_it_may_be_owed_and_all_together_have_a_bound) {
  EXPECT_EQ(waiting_messages_max(1), std::size_t{1} << 18);
  EXPECT_EQ(waiting_messages_max(0), waiting_messages_max(1));
  EXPECT_EQ(waiting_messages_max(64), std::size_t{1} << 16);
  EXPECT_EQ(waiting_messages_max(kWorkersMax), std::size_t{1} << 14);
}

TEST(Limits, who_has_too_few_descriptors_is_told_what_they_are_for_and_what_to_do) {
  EXPECT_TRUE(check_descriptors(1024, 1024, "x").is_ok());
  EXPECT_TRUE(check_descriptors(1024, 0, "x").is_ok());  // not known
  const Status few =
      check_descriptors(descriptors_of_server(2, 600), 1024, "2 shards for 600 workers");
  EXPECT_TRUE(few.is(Code::kSystem));
  EXPECT_THAT(few.message(), AllOf(HasSubstr("2 shards for 600 workers need 1224 file descriptors"),
                                   HasSubstr("may have 1024"), HasSubstr("ulimit -n")));
}

}  // namespace
}  // namespace byteps
