#include "server/part_map.h"

#include <map>

#include <gtest/gtest.h>

#include "base/prng.h"

namespace byteps {
namespace {

TEST(PartMap, finds_what_a_map_finds_through_inserts_and_erases) {
  Prng prng(3);
  PartMap<int> parts;
  std::map<std::pair<Key, PartIndex>, int*> model;
  std::vector<int> records(4096);
  for (int step = 0; step < 50'000; ++step) {
    // Few keys with neighbouring numbers: long runs of slots.
    const Key key(prng.below(40));
    const PartIndex part(static_cast<std::uint32_t>(prng.below(40)));
    const auto known = model.find({key, part});
    if (known == model.end()) {
      ASSERT_EQ(parts.find(key, part), nullptr);
      if (prng.chance(step % 10'000 < 5'000 ? 0.9 : 0.3)) {
        int* record = &records[prng.below(records.size())];
        parts.insert(key, part, record);
        model[{key, part}] = record;
      }
    } else {
      ASSERT_EQ(parts.find(key, part), known->second);
      if (prng.chance(step % 10'000 < 5'000 ? 0.3 : 0.9)) {
        parts.erase(key, part);
        model.erase(known);
      }
    }
    ASSERT_EQ(parts.size(), model.size());
  }
  for (const auto& [id, record] : model) EXPECT_EQ(parts.find(id.first, id.second), record);
  parts.clear();
  EXPECT_EQ(parts.find(Key(1), PartIndex(1)), nullptr);
}

}  // namespace
}  // namespace byteps
