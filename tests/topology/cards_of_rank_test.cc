// Which cards a rank uses, where a machine has several.
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/topology/kept_machine.h"
#include "topology/machine.h"

namespace byteps::topology {
namespace {

using testing::ElementsAre;

// By node; -1: not known.
std::vector<Found> cards_at(const std::vector<std::int16_t>& nodes) {
  std::vector<Found> cards;
  for (const std::int16_t node : nodes) cards.push_back({.name = "", .path = {}, .node = node});
  return cards;
}

std::vector<std::size_t> of(std::size_t index, std::size_t count, std::int16_t node,
                            const std::vector<std::int16_t>& nodes) {
  return cards_of_rank({.index = index, .count = count, .device = {}, .node = node},
                       cards_at(nodes));
}

TEST(CardsOfRank, ranks_of_whom_nothing_is_known_take_turns) {
  EXPECT_THAT(of(0, 2, -1, {-1, -1}), ElementsAre(0));
  EXPECT_THAT(of(1, 2, -1, {-1, -1}), ElementsAre(1));
  EXPECT_THAT(of(5, 8, -1, {-1, -1}), ElementsAre(1));
  EXPECT_THAT(of(2, 3, 0, {0, 0}), ElementsAre(0)) << "equally near";
}

TEST(CardsOfRank, fewer_ranks_than_cards_take_several_and_one_alone_takes_all) {
  EXPECT_THAT(of(0, 1, -1, {-1, -1}), ElementsAre(0, 1));
  EXPECT_THAT(of(0, 1, 1, {0, 1}), ElementsAre(0, 1)) << "also the far one";
  EXPECT_THAT(of(0, 2, -1, {-1, -1, -1, -1}), ElementsAre(0, 2));
  EXPECT_THAT(of(1, 2, -1, {-1, -1, -1}), ElementsAre(1));
}

TEST(CardsOfRank, a_rank_that_runs_on_one_node_uses_the_cards_of_that_node) {
  EXPECT_THAT(of(0, 2, 1, {0, 1}), ElementsAre(1));
  EXPECT_THAT(of(1, 2, 0, {0, 1}), ElementsAre(0));
  EXPECT_THAT(of(3, 8, 1, {0, 1, 0, 1}), ElementsAre(3));
  EXPECT_THAT(of(2, 8, 1, {0, 1, 0, 1}), ElementsAre(1));
  EXPECT_THAT(of(0, 2, 1, {0, 0, 1, 1}), ElementsAre(2)) << "with another rank on that node";
  EXPECT_THAT(of(1, 2, 2, {0, 1}), ElementsAre(1)) << "none is near";
}

TEST(CardsOfRank, the_card_behind_the_switch_of_its_device_is_nearest) {
  const KeptMachine machine("dgx1");
  const Found gpu = machine.sysfs().device("0000:86:00.0");
  const std::vector<Found> cards = machine.sysfs().cards();
  const auto own =
      cards_of_rank({.index = 6, .count = 8, .device = gpu.path, .node = gpu.node}, cards);
  ASSERT_EQ(own.size(), 1U);
  EXPECT_EQ(cards[own[0]].name, "ib2");
}

TEST(CardsOfRank, all_cards_have_a_rank_wherever_ranks_are_spread_evenly) {
  for (std::size_t card_count = 1; card_count <= 6; ++card_count) {
    for (std::size_t count = 1; count <= 8; ++count) {
      std::vector<bool> is_used(card_count, false);
      for (std::size_t index = 0; index < count; ++index) {
        for (const std::size_t card :
             of(index, count, -1, std::vector<std::int16_t>(card_count, -1))) {
          is_used[card] = true;
        }
      }
      EXPECT_THAT(is_used, testing::Each(true)) << card_count << " cards, " << count << " ranks";
    }
  }
}

TEST(Sysfs, a_node_has_the_cpus_of_its_list) {
  const auto root =
      std::filesystem::temp_directory_path() / ("byteps-nodes-" + std::to_string(getpid()));
  for (const auto& [node, list] : {std::pair("node0", "0-3,8-11"), std::pair("node1", "4-7,12")}) {
    const auto folder = root / "devices/system/node" / node;
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "cpulist") << list << "\n";
  }
  std::filesystem::create_directories(root / "devices/system/node/power");
  const Sysfs sysfs(root.string());
  EXPECT_EQ(sysfs.node_of({1, 3, 8}), 0);
  EXPECT_EQ(sysfs.node_of({4, 12}), 1);
  EXPECT_EQ(sysfs.node_of({3, 4}), -1) << "of both";
  EXPECT_EQ(sysfs.node_of({13}), -1);
  EXPECT_EQ(sysfs.node_of({}), -1);
  EXPECT_EQ(Sysfs("/nonexistent").node_of({0}), -1);
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace byteps::topology
