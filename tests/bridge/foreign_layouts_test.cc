// What foreign_layouts.h says of libstdc++, beside libstdc++ itself. Elsewhere there is nothing to compare it with.
#include "bridge/foreign_layouts.h"

#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

// The text of an error stays, by design.
extern "C" __attribute__((visibility("default"))) const char* __lsan_default_suppressions() {
  return "leak:ForeignError";
}

namespace byteps::bridge {
namespace {

#ifdef __GLIBCXX__

static_assert(sizeof(ForeignFunction) == sizeof(std::function<void()>));
static_assert(alignof(ForeignFunction) == alignof(std::function<void()>));
static_assert(sizeof(ForeignError) == sizeof(std::runtime_error));
static_assert(alignof(ForeignError) == alignof(std::runtime_error));

struct Captured {
  int runs = 0;
};

TEST(ForeignFunction, outlives_the_original_runs_it_and_frees_what_it_captured) {
  const auto captured = std::make_shared<Captured>();
  std::optional<std::function<void()>> original([captured] { ++captured->runs; });
  const long with_original = captured.use_count();
  ForeignFunction copy(&*original);
  EXPECT_EQ(captured.use_count(), with_original + 1);
  original.reset();
  EXPECT_EQ(captured->runs, 0);
  copy.run();
  EXPECT_EQ(captured->runs, 1);
  EXPECT_EQ(captured.use_count(), 1) << "freed";
}

TEST(ForeignFunction, copies_what_is_too_large_for_the_two_words_of_storage) {
  const auto captured = std::make_shared<Captured>();
  std::optional<std::function<void()>> original([captured, one = 1, two = std::string(100, 'x')] {
    captured->runs += one + static_cast<int>(two.size());
  });
  ForeignFunction copy(&*original);
  original.reset();
  copy.run();
  EXPECT_EQ(captured->runs, 101);
  EXPECT_EQ(captured.use_count(), 1) << "freed";
}

// Its address is all that the other library gets.
const std::runtime_error& as_foreign(const void* error) {
  return *static_cast<const std::runtime_error*>(error);
}

TEST(ForeignError, says_its_text_in_copies_of_it_and_in_copies_of_these) {
  for (const std::string& text :
       {std::string("worker 3 left"), std::string(), std::string(5000, 'y')}) {
    const ForeignError error(text.c_str());
    const auto copy = std::make_unique<std::runtime_error>(as_foreign(&error));
    EXPECT_EQ(copy->what(), text);
    auto another = std::make_unique<std::runtime_error>(*copy);
    EXPECT_EQ(another->what(), text);
    another.reset();
    EXPECT_EQ(copy->what(), text) << "the text stays";
  }
}

#else

TEST(ForeignLayouts, are_those_of_another_standard_library) {
  GTEST_SKIP() << "not built with libstdc++";
}

#endif

}  // namespace
}  // namespace byteps::bridge
