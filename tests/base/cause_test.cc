#include "base/cause.h"

#include <set>
#include <string>

#include <errno.h>

#include "base/status.h"
#include "gtest/gtest.h"

namespace byteps {
namespace {

TEST(Cause, each_kind_has_a_number_and_a_name_of_its_own) {
  std::set<std::string> names;
  std::uint64_t number = 0;
  for (; const auto kind = cause_kind_of(number); ++number) names.insert(name(*kind));
  EXPECT_EQ(names.size(), number);
  EXPECT_EQ(number, static_cast<std::uint64_t>(kCauseKindLast) + 1);
  EXPECT_FALSE(cause_kind_of(number));
  EXPECT_FALSE(cause_kind_of(~std::uint64_t{0}));
  EXPECT_STREQ(name(CauseKind::kOther), "other");
  EXPECT_STREQ(name(CauseKind::kNoDescriptors), "no_descriptors");
  EXPECT_STREQ(name(CauseKind::kVersionsDiffer), "versions_differ");
  EXPECT_STREQ(name(CauseKind::kInterrupted), "interrupted");
}

TEST(Cause, more_words_leave_a_status_its_cause) {
  const Cause gone{.kind = CauseKind::kGone,
                   .who = {.role = Role::kWorker, .rank = 1, .host = "there:7"},
                   .for_ns = 3 * kSecond,
                   .detail = "connection reset"};
  const Status why(Code::kDisconnected, "it is gone", gone);
  const Status longer = why.in_words("the job ends: " + why.message());
  EXPECT_EQ(longer.text(), "Disconnected: the job ends: it is gone");
  EXPECT_EQ(longer.cause(), gone);
  EXPECT_TRUE(longer.is_because_of(CauseKind::kGone));
}

TEST(Cause, of_a_status_that_does_not_say_it_is_another_and_of_nobody) {
  EXPECT_EQ(Status(Code::kTimeout, "has been gone for 3 s").cause(), Cause());
  EXPECT_EQ(Status::ok().cause(), Cause());
  EXPECT_FALSE(Status::ok().cause().who.role);
}

TEST(Cause, an_error_of_the_operating_system_says_what_has_run_out) {
  const auto kind_of = [](int error_number) {
    return system_error("socket", error_number).cause().kind;
  };
  EXPECT_EQ(kind_of(EMFILE), CauseKind::kNoDescriptors);
  EXPECT_EQ(kind_of(ENFILE), CauseKind::kNoDescriptors);
  EXPECT_EQ(kind_of(ENOMEM), CauseKind::kNoMemory);
  EXPECT_EQ(kind_of(ECONNREFUSED), CauseKind::kOther);
}

}  // namespace
}  // namespace byteps
