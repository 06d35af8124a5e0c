#include "member/summing.h"

#include <algorithm>

namespace byteps {
namespace {

constexpr std::uint64_t kFramesOfPartLeast = 8;
constexpr std::uint64_t kAlignment = 64;  // as in base/placement.h

// By rank.
std::vector<std::uint64_t> machines_of_workers(const wire::Roster& roster) {
  std::vector<std::uint64_t> machines;
  for (const wire::RosterMember& member : roster.members) {
    if (member.role == Role::kWorker) machines.push_back(member.machine);
  }
  return machines;
}

}  // namespace

wire::Summing summing_of(const wire::Roster& roster, bool local_reduce, bool needs_servers) {
  const bool all_relay = std::all_of(
      roster.members.begin(), roster.members.end(),
      [](const auto& member) { return member.role != Role::kWorker || member.relay_port != 0; });
  if (!local_reduce || !all_relay) return wire::Summing::kServers;
  const Groups groups(machines_of_workers(roster));
  if (groups.most_ranks() < 2) return wire::Summing::kServers;
  if (groups.count() == 1 && !needs_servers) return wire::Summing::kAlone;
  return is_beyond_relays(roster) ? wire::Summing::kServers : wire::Summing::kRelays;
}

bool has_neighbours(const wire::Roster& roster) {
  return Groups(machines_of_workers(roster)).most_ranks() > 1;
}

bool is_beyond_relays(const wire::Roster& roster) {
  return roster.continues &&
         Groups(machines_of_workers(roster)).most_ranks() > wire::kLostPlacesMax;
}

std::optional<WorkerRank> who_has_no_relay(const wire::Roster& roster, bool local_reduce) {
  if (!local_reduce || !has_neighbours(roster)) return std::nullopt;
  for (const wire::RosterMember& member : roster.members) {
    if (member.role == Role::kWorker && member.relay_port == 0) return WorkerRank(member.rank);
  }
  return std::nullopt;
}

std::uint64_t partition_bytes_of(const wire::Roster& roster, std::uint64_t partition_bytes,
                                 std::uint64_t frame_bytes) {
  if (roster.summing != wire::Summing::kRelays) return partition_bytes;
  const std::uint64_t least = std::min(partition_bytes, kFramesOfPartLeast * frame_bytes);
  const std::uint64_t bytes = partition_bytes / groups_of(roster).most_ranks();
  return std::max(least, bytes / kAlignment * kAlignment);
}

Groups groups_of(const wire::Roster& roster) {
  const std::vector<std::uint64_t> machines = machines_of_workers(roster);
  if (roster.summing == wire::Summing::kServers) {
    return Groups::apart(static_cast<std::uint32_t>(machines.size()));
  }
  return Groups(machines);
}

std::vector<std::uint32_t> shard_weights_of(const wire::Roster& roster) {
  if (roster.summing != wire::Summing::kAlone) return weights_of(shards_of(roster));
  return std::vector<std::uint32_t>(groups_of(roster).worker_count(), 1);
}

Placement placement_of(const wire::Roster& roster) {
  return {roster.partition_bytes, roster.frame_bytes, shard_weights_of(roster)};
}

std::optional<RelayPlace> relay_place_of(const wire::Roster& roster, const Groups& groups,
                                         WorkerRank worker) {
  const Crew machine = groups.crew_of(groups.group_of(worker), Members());
  const auto own = std::lower_bound(machine.begin(), machine.end(), worker) - machine.begin();
  RelayPlace place{.host = worker};
  for (std::size_t step = 0; step < machine.size(); ++step) {
    place.host = machine[(static_cast<std::size_t>(own) + step) % machine.size()];
    const wire::RosterMember& host = roster.members[place.host.value];
    std::uint32_t gone_since = host.vacant_since;
    if (place.host != worker) gone_since = std::max(gone_since, host.serves_none_since);
    if (gone_since == 0) return place;
    place.since = std::max(place.since, gone_since);
  }
  return std::nullopt;
}

StandIns stand_ins_of(const wire::Roster& roster, const Groups& groups) {
  StandIns found;
  for (WorkerRank rank(0); rank.value < groups.worker_count(); ++rank.value) {
    const auto place = relay_place_of(roster, groups, rank);
    if (place && place->since > 0) found.emplace(rank, place->since);
  }
  return found;
}

std::vector<ShardPlace> relays_of(const wire::Roster& roster, const Groups& groups,
                                  WorkerRank self) {
  std::vector<ShardPlace> places;
  for (const WorkerRank rank : groups.crew_of(groups.group_of(self), Members())) {
    const RelayPlace place =
        relay_place_of(roster, groups, rank).value_or(RelayPlace{.host = rank});
    const wire::RosterMember& member = roster.members[place.host.value];
    places.push_back({.relay = rank,
                      .relay_host = place.host,
                      .server = {},
                      .shard_of_server = 0,
                      .endpoint = {"127.0.0.1", member.relay_port},
                      .host = member.host,
                      .weight = 1,
                      .since = place.since});
  }
  return places;
}

}  // namespace byteps
