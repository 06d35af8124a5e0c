#include "worker/machine_plan.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/groups.h"
#include "member/places.h"
#include "topology/machine.h"
#include "topology/planner.h"

namespace byteps {
namespace {

// In order of rank, itself among them.
Crew workers_beside(const wire::Roster& roster, WorkerRank self) {
  std::vector<std::uint64_t> machines;
  for (const wire::RosterMember& member : roster.members) {
    if (member.role == Role::kWorker) machines.push_back(member.machine);
  }
  const Groups groups(machines);
  return groups.crew_of(groups.group_of(self), Members());
}

}  // namespace

std::string machine_line_of(const wire::Roster& roster, WorkerRank self,
                            const DeviceConfig& wishes) {
  if (roster.places.empty()) return "";
  const Crew workers = workers_beside(roster, self);
  if (workers.front() != self || workers.size() > kPlannedWorkersMax) return "";
  const std::vector<topology::Place> places = places_of(roster, workers);
  const auto has_device = [](const topology::Place& place) { return !place.device.empty(); };
  if (std::none_of(places.begin(), places.end(), has_device)) return "";
  const topology::Machine machine = topology::machine_of(places);
  const topology::Plan plan =
      topology::plan_of(machine, {.switch_size = wishes.group_size, .roots = wishes.reduce_roots});
  std::string line =
      "what is on this machine's GPUs is copied to the host and summed there; the plan, which is "
      "not in use yet: " +
      topology::describe(machine, plan);
  for (const std::string& remark : plan.remarks) line += "; " + remark;
  return line;
}

}  // namespace byteps
