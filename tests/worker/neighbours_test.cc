#include "worker/neighbours.h"

#include <cstdint>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace byteps {
namespace {

using ::testing::ElementsAre;

// By rank: what the kernel says, and what the launcher does.
struct Place {
  std::uint64_t number = 0;
  std::uint32_t index = 0;
};

wire::Roster roster_of(const std::vector<Place>& workers, std::uint32_t your_rank) {
  wire::Roster roster;
  roster.your_rank = your_rank;
  for (std::uint32_t rank = 0; rank < workers.size(); ++rank) {
    wire::RosterMember worker{.role = Role::kWorker, .rank = rank, .host = "w", .endpoints = {}};
    worker.machine = workers[rank].number;
    worker.machine_index = workers[rank].index;
    roster.members.push_back(worker);
  }
  wire::RosterMember server{.role = Role::kServer, .rank = 0, .host = "s", .endpoints = {}};
  server.machine = workers[0].number;
  roster.members.push_back(server);
  return roster;
}

TEST(Neighbours, are_those_of_the_launcher_where_it_says_local_ranks) {
  JobConfig job;
  job.local.rank = 1;
  job.local.size = 2;
  job.local.is_said = true;
  // Two containers of one kernel, and a machine by itself.
  const Neighbours found = neighbours_of(roster_of({{7, 0}, {7, 0}, {7, 1}, {9, 2}}, 1), job);
  EXPECT_THAT(found.machines, ElementsAre(0, 0, 1, 2));
  EXPECT_EQ(found.local_rank, 1U);
  EXPECT_EQ(found.local_size, 2U);
}

TEST(Neighbours, are_those_of_the_kernel_where_nothing_is_said) {
  // DMLC_WORKER_ID counts workers here; machines have different numbers of them, in no order.
  const std::vector<Place> workers = {{9, 0}, {7, 1}, {9, 2}, {9, 3}, {5, 4}, {7, 5}};
  const std::vector<std::uint32_t> local_ranks = {0, 0, 1, 2, 0, 1};
  const std::vector<std::uint32_t> local_sizes = {3, 2, 3, 3, 1, 2};
  for (std::uint32_t rank = 0; rank < workers.size(); ++rank) {
    const Neighbours found = neighbours_of(roster_of(workers, rank), JobConfig{});
    EXPECT_THAT(found.machines, ElementsAre(0, 1, 0, 0, 2, 1)) << "numbered by first ranks";
    EXPECT_EQ(found.local_rank, local_ranks[rank]) << rank;
    EXPECT_EQ(found.local_size, local_sizes[rank]) << rank;
  }
}

TEST(Neighbours, are_none_of_a_worker_that_does_not_know_its_machine) {
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    const Neighbours found = neighbours_of(roster_of({{0, 0}, {0, 0}}, rank), JobConfig{});
    EXPECT_THAT(found.machines, ElementsAre(0, 1));
    EXPECT_EQ(found.local_rank, 0U);
    EXPECT_EQ(found.local_size, 1U);
  }
}

}  // namespace
}  // namespace byteps
