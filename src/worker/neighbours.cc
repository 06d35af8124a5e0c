#include "worker/neighbours.h"

#include "base/groups.h"
#include "base/ids.h"

namespace byteps {

Neighbours neighbours_of(const wire::Roster& roster, const JobConfig& job) {
  Neighbours found{.machines = {}, .local_rank = job.local.rank, .local_size = job.local.size};
  std::vector<std::uint64_t> numbers;
  for (const wire::RosterMember& member : roster.members) {
    if (member.role != Role::kWorker) continue;
    found.machines.push_back(member.machine_index);
    numbers.push_back(member.machine);
  }
  if (job.local.is_said) return found;
  const Groups groups(numbers);
  const WorkerRank self(roster.your_rank);
  found.local_rank = found.local_size = 0;
  for (WorkerRank rank(0); rank.value < groups.worker_count(); ++rank.value) {
    found.machines[rank.value] = groups.group_of(rank);
    if (groups.group_of(rank) != groups.group_of(self)) continue;
    if (rank < self) ++found.local_rank;
    ++found.local_size;
  }
  return found;
}

}  // namespace byteps
