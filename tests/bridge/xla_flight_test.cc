// Flight: what is refused, and when a failure is told.
#include "bridge/xla_flight.h"

#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "gtest/gtest.h"

namespace byteps::bridge {
namespace {

namespace ffi = xla::ffi;

constexpr std::chrono::milliseconds kQuiet(20);

// The message with which the future has failed, as soon as it has.
std::future<std::string> message_of(ffi::Future& future) {
  auto told = std::make_shared<std::promise<std::string>>();
  std::future<std::string> message = told->get_future();
  future.OnReady([told](const std::optional<ffi::Error>& error) {
    told->set_value(error.has_value() ? error->message() : "none");
  });
  return message;
}

struct Failing {
  ffi::Promise promise;
  ffi::Future future{promise};
  std::future<std::string> message = message_of(future);
};

TEST(Flight, a_name_under_way_is_refused_when_programs_run_one_at_a_time) {
  Flight flight(kQuiet);
  flight.set_one_at_a_time(true);
  EXPECT_TRUE(flight.begin("a"));
  EXPECT_TRUE(flight.begin("b"));
  EXPECT_FALSE(flight.begin("a"));
  flight.end("a");
  EXPECT_TRUE(flight.begin("a"));
}

TEST(Flight, a_name_may_be_under_way_twice_when_programs_overlap) {
  Flight flight(kQuiet);
  EXPECT_TRUE(flight.begin("a"));
  EXPECT_TRUE(flight.begin("a"));
  flight.end("a");
  flight.end("a");
}

TEST(Flight, failures_are_told_when_nothing_is_under_way_any_more) {
  Flight flight(kQuiet);
  Failing first;
  Failing second;
  ASSERT_TRUE(flight.begin("other"));
  flight.fail_later(std::move(first.promise), ffi::Error::Internal("first"));
  flight.fail_later(std::move(second.promise), ffi::Error::Internal("second"));
  EXPECT_EQ(first.message.wait_for(5 * kQuiet), std::future_status::timeout);
  flight.end("other");
  EXPECT_EQ(first.message.get(), "first");
  EXPECT_EQ(second.message.get(), "second");
}

TEST(Flight, a_failure_after_another_was_told_is_told_too) {
  Flight flight(kQuiet);
  for (const char* const message : {"first", "second"}) {
    Failing failing;
    flight.fail_later(std::move(failing.promise), ffi::Error::Internal(message));
    EXPECT_EQ(failing.message.get(), message);
  }
}

}  // namespace
}  // namespace byteps::bridge
