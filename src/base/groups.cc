#include "base/groups.h"

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>
#include <utility>

namespace byteps {

WorkerRank leader_of(const Crew& crew, Key key, std::uint64_t part, std::uint32_t shard_count) {
  const std::uint64_t size = crew.size();
  if (size == 1) return crew[0];
  // Other bits than those that choose the first shard.
  const std::uint64_t first = stable_mix(key.value ^ 0x9e3779b97f4a7c15ULL) % size;
  const std::uint64_t both = std::max<std::uint64_t>(1, std::lcm(size, std::uint64_t{shard_count}));
  const std::uint64_t rounds = part / both;
  return crew[(first + part + rounds) % size];
}

int headroom_of(const std::vector<Crew>& crews) {
  std::size_t most = 1;
  for (const Crew& crew : crews) most = std::max(most, crew.size());
  return static_cast<int>(std::bit_width(most - 1));
}

Groups::Groups(std::span<const std::uint64_t> machines) {
  std::map<std::uint64_t, std::uint32_t> known;
  for (WorkerRank rank(0); rank.value < machines.size(); ++rank.value) {
    const std::uint64_t machine = machines[rank.value];
    std::uint32_t group = count();
    if (machine != 0) group = known.try_emplace(machine, group).first->second;
    if (group == count()) ranks_.emplace_back();
    ranks_[group].push_back(rank);
    group_of_.push_back(group);
  }
}

Groups Groups::apart(std::uint32_t worker_count) {
  return Groups(std::vector<std::uint64_t>(worker_count, 0));
}

std::uint32_t Groups::most_ranks() const {
  std::size_t most = 0;
  for (const Crew& ranks : ranks_) most = std::max(most, ranks.size());
  return static_cast<std::uint32_t>(most);
}

Crew Groups::crew_of(std::uint32_t group, const Members& members) const {
  Crew crew;
  for (const WorkerRank rank : ranks_[group]) {
    if (members.has(rank)) crew.push_back(rank);
  }
  return crew;
}

std::vector<Crew> Groups::crews_of(const Members& members) const {
  std::vector<Crew> crews;
  for (std::uint32_t group = 0; group < count(); ++group) {
    if (Crew crew = crew_of(group, members); !crew.empty()) crews.push_back(std::move(crew));
  }
  return crews;
}

}  // namespace byteps
