#include "device/slabs.h"

#include <algorithm>
#include <list>
#include <vector>

#include <gtest/gtest.h>

#include "base/prng.h"

namespace byteps::device {
namespace {

class SlabsTest : public testing::Test {
 protected:
  static constexpr std::size_t kPages = 32;
  std::vector<std::byte> memory_ = std::vector<std::byte>(kPages * kSlabAlignment);
  Slabs slabs_{memory_};
};

TEST_F(SlabsTest, a_slab_has_the_bytes_that_were_asked_for_and_pages_of_its_own) {
  const auto first = slabs_.lend(1);
  const auto second = slabs_.lend(kSlabAlignment + 1);
  EXPECT_EQ(first.size(), 1U);
  EXPECT_EQ(second.size(), kSlabAlignment + 1);
  EXPECT_EQ(second.data(), first.data() + kSlabAlignment);
  EXPECT_EQ(slabs_.lent_bytes(), 3 * kSlabAlignment);
}

TEST_F(SlabsTest, there_is_none_where_no_piece_is_large_enough) {
  const auto all = slabs_.lend(memory_.size());
  EXPECT_FALSE(all.empty());
  EXPECT_TRUE(slabs_.lend(1).empty());
  slabs_.give_back(all);
  EXPECT_TRUE(slabs_.lend(memory_.size() + 1).empty());
  EXPECT_TRUE(slabs_.all_is_free());
}

TEST_F(SlabsTest, neighbours_that_come_back_in_any_order_are_one_piece_again) {
  std::vector<std::span<std::byte>> lent;
  for (std::size_t i = 0; i < kPages; ++i) lent.push_back(slabs_.lend(kSlabAlignment));
  for (const std::size_t start : {1U, 0U}) {
    for (std::size_t i = start; i < kPages; i += 2) slabs_.give_back(lent[i]);
  }
  EXPECT_FALSE(slabs_.lend(memory_.size()).empty());
}

TEST(SlabsDeathTest, a_slab_that_comes_back_twice_is_a_bug) {
  std::vector<std::byte> memory(4 * kSlabAlignment);
  Slabs slabs(memory);
  const auto slab = slabs.lend(1);
  const auto other = slabs.lend(1);
  slabs.give_back(slab);
  EXPECT_DEATH(slabs.give_back(slab), "twice");
  slabs.give_back(other);
}

// Beside a list of bytes that are taken.
TEST(SlabsRandom, they_never_overlap_and_are_found_whenever_a_piece_is_large_enough) {
  constexpr std::size_t kPages = 48;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::vector<std::byte> memory(kPages * kSlabAlignment);
    Slabs slabs(memory);
    std::vector<bool> taken(kPages);
    std::vector<std::span<std::byte>> lent;
    Prng prng(seed);
    const auto mark = [&](std::span<std::byte> slab, bool value) {
      const auto first = static_cast<std::size_t>(slab.data() - memory.data()) / kSlabAlignment;
      const std::size_t count = (slab.size() + kSlabAlignment - 1) / kSlabAlignment;
      for (std::size_t page = first; page < first + count; ++page) {
        ASSERT_NE(taken[page], value) << "page " << page;
        taken[page] = value;
      }
    };
    const auto longest_run = [&] {
      std::size_t longest = 0;
      std::size_t run = 0;
      for (const bool is_taken : taken) {
        run = is_taken ? 0 : run + 1;
        longest = std::max(longest, run);
      }
      return longest;
    };
    for (int step = 0; step < 1000; ++step) {
      if (!lent.empty() && prng.below(2) == 0) {
        const std::size_t at = prng.below(lent.size());
        mark(lent[at], false);
        slabs.give_back(lent[at]);
        lent.erase(lent.begin() + static_cast<std::ptrdiff_t>(at));
        continue;
      }
      const std::size_t bytes = 1 + prng.below(8 * kSlabAlignment);
      const auto slab = slabs.lend(bytes);
      const std::size_t needed = (bytes + kSlabAlignment - 1) / kSlabAlignment;
      ASSERT_EQ(slab.empty(), longest_run() < needed);
      if (slab.empty()) continue;
      mark(slab, true);
      lent.push_back(slab);
    }
  }
}

}  // namespace
}  // namespace byteps::device
