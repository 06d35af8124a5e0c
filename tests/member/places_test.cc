// Which places a roster has, and whose they are.
#include "member/places.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/limits.h"
#include "member/roster_check.h"

namespace byteps {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using topology::Place;

Place place_of(std::uint32_t number) {
  Place place;
  place.device = {{{.domain = number >> 8, .bus = static_cast<std::uint8_t>(number)}, 126'030}};
  return place;
}

wire::Roster roster_of(std::uint32_t workers) {
  wire::Roster roster;
  roster.epoch = Epoch(1);
  roster.partition_bytes = roster.frame_bytes = 64;
  for (std::uint32_t rank = 0; rank < workers; ++rank) {
    roster.members.push_back({.role = Role::kWorker,
                              .rank = rank,
                              .host = "w",
                              .endpoints = {},
                              .machine = 1 + rank / 8});
  }
  roster.members.push_back(
      {.role = Role::kServer, .rank = 0, .host = "s", .endpoints = {{"10.0.0.1", 9000}}});
  roster.slots = {{.server = 0, .shard = 0, .weight = 1}};
  return roster;
}

std::vector<std::uint32_t> numbers_of(const wire::Roster& roster) {
  std::vector<std::uint32_t> numbers;
  for (const wire::RosterMember& member : roster.members) numbers.push_back(member.place);
  return numbers;
}

TEST(Places, each_stands_in_the_roster_once_and_none_without_a_device) {
  wire::Roster roster = roster_of(5);
  Place card_alone;
  card_alone.card_mbps = 100;
  give_places({place_of(1), place_of(2), card_alone, place_of(1), Place()}, roster);
  EXPECT_THAT(roster.places, ElementsAre(place_of(1), place_of(2)));
  EXPECT_THAT(numbers_of(roster), ElementsAre(1, 2, 0, 1, 0, 0));
  EXPECT_TRUE(check_roster(roster).is_ok());
  EXPECT_THAT(places_of(roster, {WorkerRank(1), WorkerRank(2), WorkerRank(3)}),
              ElementsAre(place_of(2), Place(), place_of(1)));
}

TEST(Places, of_machines_that_are_alike_make_a_large_roster_little_longer) {
  wire::Roster roster = roster_of(1000);
  const std::size_t without = wire::encode(roster).size();
  std::vector<Place> places;
  for (std::uint32_t rank = 0; rank < 1000; ++rank) places.push_back(place_of(rank % 8));
  give_places(places, roster);
  EXPECT_EQ(roster.places.size(), 8U);
  EXPECT_LT(wire::encode(roster).size() - without, 1000U * 10 + 8 * topology::kPlaceBytesMax);
}

TEST(Places, are_none_where_all_of_them_are_too_many) {
  Place longest;
  for (std::uint8_t hop = 0; hop < topology::kHopsMax; ++hop) {
    longest.device.push_back({{.domain = 1, .bus = hop}, 1});
    longest.card.push_back({{.domain = 2, .bus = hop}, 1});
  }
  const auto distinct = [&](std::uint32_t count) {
    std::vector<Place> places(count, longest);
    for (std::uint32_t rank = 0; rank < count; ++rank)
      places[rank].device[0].address.domain = rank + 9;
    return places;
  };
  const std::size_t each = topology::encode(longest).size() + 10;
  const auto most = static_cast<std::uint32_t>(kPlacesBytesMax / each);
  wire::Roster roster = roster_of(most + 1);
  give_places(distinct(most), roster);
  EXPECT_EQ(roster.places.size(), most);
  EXPECT_LE(wire::encode(roster).size(), kRosterBytesMax);
  roster = roster_of(most + 1);
  give_places(distinct(most + 1), roster);
  EXPECT_THAT(roster.places, IsEmpty());
  EXPECT_THAT(numbers_of(roster), testing::Each(0U));
}

TEST(Places, a_roster_with_a_member_in_none_of_them_is_refused) {
  wire::Roster roster = roster_of(2);
  give_places({place_of(1), place_of(2)}, roster);
  ASSERT_TRUE(check_roster(roster).is_ok());
  roster.members[1].place = 3;
  EXPECT_FALSE(check_roster(roster).is_ok());
  roster.members[1].place = 0;
  roster.members[2].place = 1;
  EXPECT_FALSE(check_roster(roster).is_ok()) << "a server has none";
}

}  // namespace
}  // namespace byteps
