// Groups: the workers of one machine, which sum among themselves before one copy of the sum goes over the network.
//
// A machine's workers that take part in a tensor's exchange are its crew there. All of a crew lead: each part of the
// tensor has one leader in each crew, who takes the crew's sum to the part's shard and brings back the sum of all. Who
// that is follows from the crew, the key and the part alone, so nobody has to be told.
//
// Leaders take turns part by part. Shards do too (base/placement.h), so with common factors a leader would always meet
// the same shards, and where shards differ in weight parts of the same size: after each round of both, leaders move on
// by one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/members.h"

namespace byteps {

// Ascending ranks, at least one.
using Crew = std::vector<WorkerRank>;

// The leader of part `part` of a tensor whose parts go round `shard_count` shards. Of any number of parts from the
// first on, two leaders of a crew have numbers that differ by one at most.
WorkerRank leader_of(const Crew& crew, Key key, std::uint64_t part, std::uint32_t shard_count);

// What a crew's sum of float16 is multiplied by before it goes on, and the sum of all divided by again, is 2^-this:
// then no machine's sum is beyond float16 where the mean of its inputs is not. Of a tensor with these crews: the
// smallest that will do for the largest of them.
int headroom_of(const std::vector<Crew>& crews);

class Groups {
 public:
  Groups() = default;  // of no workers
  // By rank, the number of the machine where that worker is; 0: it is in nobody's group but its own.
  explicit Groups(std::span<const std::uint64_t> machines);
  // Each worker by itself.
  static Groups apart(std::uint32_t worker_count);

  std::uint32_t worker_count() const { return static_cast<std::uint32_t>(group_of_.size()); }
  // Groups are numbered by their lowest ranks.
  std::uint32_t count() const { return static_cast<std::uint32_t>(ranks_.size()); }
  std::uint32_t group_of(WorkerRank rank) const { return group_of_[rank.value]; }
  // Of how many the largest group is; 0 where there is none.
  std::uint32_t most_ranks() const;

  // Who of that group is among the members; may be nobody.
  Crew crew_of(std::uint32_t group, const Members& members) const;
  // One crew for each group that has any, in the groups' order.
  std::vector<Crew> crews_of(const Members& members) const;

 private:
  std::vector<std::uint32_t> group_of_;  // by rank
  std::vector<Crew> ranks_;              // by group
};

}  // namespace byteps
