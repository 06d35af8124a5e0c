#include "member/roster_check.h"

#include <algorithm>
#include <string>

#include "base/limits.h"
#include "base/placement.h"

namespace byteps {
namespace {

Status fault(const std::string& what) {
  return {Code::kDisconnected, what};
}

// `first`: place of the first server among the members.
Status check_slots(const wire::Roster& roster, std::size_t first) {
  const std::size_t server_count = roster.members.size() - first;
  if (roster.slots.empty() != (server_count == 0))
    return fault("a roster of servers without shards");
  if (roster.slots.size() > kShardsMax) return fault("a roster with too many shards");
  for (const wire::Slot& slot : roster.slots) {
    if (slot.server >= server_count ||
        slot.shard >= roster.members[first + slot.server].endpoints.size()) {
      return fault("a roster with a shard of nobody");
    }
    if (slot.weight == 0 || slot.weight > Placement::kWeightMax) {
      return fault("a roster with a shard of impossible weight");
    }
    if (slot.since > roster.revision) return fault("a roster with a shard of the future");
  }
  return Status::ok();
}

// Each worker's place is one of those that stand there.
Status check_places(const wire::Roster& roster) {
  const auto is_impossible = [&](const wire::RosterMember& member) {
    return member.place > (member.role == Role::kWorker ? roster.places.size() : 0);
  };
  if (std::any_of(roster.members.begin(), roster.members.end(), is_impossible)) {
    return fault("a roster with a member in no place of it");
  }
  return Status::ok();
}

}  // namespace

Status check_roster(const wire::Roster& roster) {
  if (roster.epoch == Epoch(0)) return fault("a roster of epoch 0");
  std::uint32_t worker_count = 0;
  std::uint32_t server_count = 0;
  for (const wire::RosterMember& member : roster.members) {
    const bool worker = member.role == Role::kWorker;
    if (!worker && member.role != Role::kServer) return fault("a roster with a strange role");
    if (worker && server_count > 0) return fault("a roster with workers after servers");
    if (member.rank != (worker ? worker_count : server_count)) return fault("a roster with gaps");
    if (std::max(member.vacant_since, member.serves_none_since) > (worker ? roster.revision : 0))
      return fault("a roster with a rank that is vacant or left in the future, or no worker's");
    if (!worker && member.endpoints.empty()) return fault("a roster with a server without address");
    ++(worker ? worker_count : server_count);
  }
  if (const Status fine = check_slots(roster, worker_count); !fine.is_ok()) return fine;
  if (const Status fine = check_places(roster); !fine.is_ok()) return fine;
  for (const std::uint64_t bytes : {roster.partition_bytes, roster.frame_bytes}) {
    if (bytes == 0 || bytes % 64 != 0)
      return fault("a roster with an impossible size of parts or frames");
  }
  return Status::ok();
}

std::vector<WorkerRank> vacant_ranks(const wire::Roster& roster) {
  std::vector<WorkerRank> ranks;
  for (const wire::RosterMember& member : roster.members) {
    if (member.role == Role::kWorker && member.vacant_since > 0) ranks.emplace_back(member.rank);
  }
  return ranks;
}

std::uint32_t count_of(const wire::Roster& roster, Role role) {
  return static_cast<std::uint32_t>(
      std::count_if(roster.members.begin(), roster.members.end(),
                    [&](const auto& member) { return member.role == role; }));
}

}  // namespace byteps
