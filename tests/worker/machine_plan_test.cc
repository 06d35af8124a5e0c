// What workers say of their machine, of machines that are kept (tests/topology/machines).
#include "worker/machine_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "member/places.h"
#include "tests/topology/kept_machine.h"

namespace byteps {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;
using topology::KeptMachine;
using topology::Place;

// Workers on these machines, by rank, with these places.
wire::Roster roster_of(const std::vector<std::uint64_t>& machines,
                       const std::vector<Place>& places) {
  wire::Roster roster;
  for (std::uint32_t rank = 0; rank < machines.size(); ++rank) {
    roster.members.push_back({.role = Role::kWorker,
                              .rank = rank,
                              .host = "w",
                              .endpoints = {},
                              .machine = machines[rank]});
  }
  roster.members.push_back({.role = Role::kServer, .rank = 0, .host = "s", .endpoints = {}});
  give_places(places, roster);
  return roster;
}

std::vector<Place> places_of(const char* machine) {
  return KeptMachine(machine).survey().places;
}

std::string line(const wire::Roster& roster, std::uint32_t self, const DeviceConfig& wishes = {}) {
  return machine_line_of(roster, WorkerRank(self), wishes);
}

TEST(MachinePlan, the_first_worker_of_a_machine_says_it_and_that_nothing_follows_it_yet) {
  const wire::Roster roster = roster_of(std::vector<std::uint64_t>(8, 7), places_of("pcie-2x4"));
  EXPECT_EQ(
      line(roster, 0),
      "what is on this machine's GPUs is copied to the host and summed there; the plan, "
      "which is not in use yet: 2 switches x 4 GPUs, card at the root: NCCL behind each "
      "switch, the CPU adds, all lead; 100 Gbit/s expected (one ring over all, all lead: 71)");
  for (std::uint32_t rank = 1; rank < 8; ++rank) EXPECT_THAT(line(roster, rank), IsEmpty());
}

TEST(MachinePlan, each_machine_has_its_own) {
  std::vector<Place> places;
  std::vector<std::uint64_t> machines;
  const std::vector<Place> nvlink = places_of("dgx1");
  const std::vector<Place> pcie = places_of("pcie-2x4");
  for (std::size_t i = 0; i < 8; ++i) {  // ranks in turn
    places.insert(places.end(), {nvlink[i], pcie[i]});
    machines.insert(machines.end(), {5, 9});
  }
  const wire::Roster roster = roster_of(machines, places);
  EXPECT_THAT(line(roster, 0), HasSubstr("4 switches x 2 GPUs, NVLink, 4 cards"));
  EXPECT_THAT(line(roster, 1), HasSubstr("2 switches x 4 GPUs, card at the root"));
  EXPECT_THAT(line(roster, 2), IsEmpty());
}

TEST(MachinePlan, wishes_count_and_one_that_cannot_be_followed_is_named) {
  const wire::Roster roster = roster_of(std::vector<std::uint64_t>(8, 7), places_of("pcie-2x4"));
  DeviceConfig wishes;
  wishes.group_size = 2;
  EXPECT_THAT(line(roster, 0, wishes), HasSubstr(": NCCL in groups of 2, the CPU adds"));
  wishes.group_size = 3;
  EXPECT_THAT(line(roster, 0, wishes),
              AllOf(HasSubstr("NCCL behind each switch"),
                    EndsWith("; BYTEPS_PCIE_SWITCH_SIZE=3 has no effect: this machine's 8 ranks "
                             "are no multiple of it")));
  wishes.group_size = 0;
  wishes.reduce_roots = {9};
  EXPECT_THAT(line(roster, 0, wishes), HasSubstr("; BYTEPS_REDUCE_ROOTS has no effect: "));
}

TEST(MachinePlan,
     a_machine_without_a_gpu_says_nothing_and_one_that_is_known_in_part_makes_no_groups) {
  EXPECT_THAT(line(roster_of({7, 7}, {Place(), Place()}), 0), IsEmpty());
  std::vector<Place> places = places_of("pcie-2x4");
  places[5] = {};
  const wire::Roster roster = roster_of(std::vector<std::uint64_t>(8, 7), places);
  EXPECT_THAT(line(roster, 0),
              HasSubstr("7 GPUs, 2 switches, card at the root: all copied to the host"));
  // Of others' devices nothing is said here.
  places.push_back({});
  std::vector<std::uint64_t> machines(8, 7);
  machines.push_back(8);
  EXPECT_THAT(line(roster_of(machines, places), 8), IsEmpty());
}

TEST(MachinePlan, a_worker_that_does_not_know_its_machine_is_alone_on_it) {
  const std::vector<Place> places = places_of("pcie-2x4");
  const wire::Roster roster = roster_of({0, 0}, {places[0], places[1]});
  for (const std::uint32_t rank : {0U, 1U}) {
    EXPECT_THAT(line(roster, rank), HasSubstr("not in use yet: 1 switch x 1 GPU")) << rank;
  }
}

TEST(MachinePlan, of_a_machine_with_too_many_workers_nobody_plans) {
  const std::vector<Place> places = places_of("pcie-2x4");
  const auto of = [&](std::size_t count) {
    std::vector<Place> all;
    for (std::size_t i = 0; i < count; ++i) all.push_back(places[i % places.size()]);
    return line(roster_of(std::vector<std::uint64_t>(count, 7), all), 0);
  };
  EXPECT_THAT(of(kPlannedWorkersMax), Not(IsEmpty()));
  EXPECT_THAT(of(kPlannedWorkersMax + 1), IsEmpty());
}

}  // namespace
}  // namespace byteps
