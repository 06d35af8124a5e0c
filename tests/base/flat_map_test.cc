#include "base/flat_map.h"

#include <map>
#include <string>

#include <gtest/gtest.h>

#include "base/prng.h"

namespace byteps {
namespace {

// Few homes with neighbouring numbers: long runs of slots, which wrap round the end.
struct CrowdedHome {
  std::size_t operator()(std::uint64_t number) const { return number % 40 + 50; }
};

TEST(FlatMap, finds_what_a_map_finds_through_inserts_and_erases) {
  Prng prng(3);
  FlatMap<std::uint64_t, std::string, CrowdedHome> flat;
  std::map<std::uint64_t, std::string> model;
  for (int step = 0; step < 50'000; ++step) {
    const bool grows = step % 10'000 < 5'000;
    const std::uint64_t key = prng.below(1600);
    const auto known = model.find(key);
    const std::string* const found = flat.find(key);
    if (known == model.end()) {
      ASSERT_EQ(found, nullptr);
      ASSERT_FALSE(flat.erase(key));
      if (prng.chance(grows ? 0.9 : 0.3)) {
        model[key] = std::to_string(step);
        ASSERT_EQ(flat.insert(key, std::to_string(step)), model[key]);
      }
    } else {
      ASSERT_NE(found, nullptr);
      ASSERT_EQ(*found, known->second);
      if (prng.chance(grows ? 0.3 : 0.9)) {
        ASSERT_TRUE(flat.erase(key));
        model.erase(known);
      }
    }
    ASSERT_EQ(flat.size(), model.size());
  }
  for (const auto& [key, value] : model) {
    ASSERT_NE(flat.find(key), nullptr);
    EXPECT_EQ(*flat.find(key), value);
  }
  flat.clear();
  EXPECT_EQ(flat.find(model.begin()->first), nullptr);
}

TEST(FlatMap, refuses_a_key_twice) {
  FlatMap<std::uint64_t, int, CountedHome> flat;
  flat.insert(7, 1);
  EXPECT_DEATH(flat.insert(7, 2), "in the map already");
}

// Those that count on and go again pass the ones that stay in their own row, not behind all of them. With the numbers
// themselves as homes this takes minutes.
TEST(FlatMap, of_counted_numbers_stays_fast_beside_old_ones_that_stay) {
  FlatMap<std::uint64_t, int, CountedHome> flat;
  std::uint64_t last = 0;
  while (last < 700'000) flat.insert(++last, 0);
  for (int i = 0; i < 2'000'000; ++i) {
    flat.insert(++last, i);
    ASSERT_TRUE(flat.erase(last));
  }
  EXPECT_EQ(flat.size(), 700'000U);
}

}  // namespace
}  // namespace byteps
