// Summing: who sums what the workers of a job have, as its roster says: servers alone, relays of the workers' machines
// before them, or relays alone (wire::Summing). The scheduler decides; all members draw the same conclusions.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/groups.h"
#include "base/ids.h"
#include "base/placement.h"
#include "member/shares.h"
#include "net/wire.h"

namespace byteps {

// Of a roster whose members are there. `local_reduce`, `needs_servers`: the settings of rank 0.
wire::Summing summing_of(const wire::Roster& roster, bool local_reduce, bool needs_servers);

// Some workers are on one machine.
bool has_neighbours(const wire::Roster& roster);
// Whether a machine has more workers than relays can speak for before servers, where the job goes on without one that
// is lost: a push has a bit for each that is not in it (wire::Header::lost). Then each worker exchanges by itself.
bool is_beyond_relays(const wire::Roster& roster);

// Because of whom they do not sum machine by machine although rank 0's settings want it; nullopt: nobody.
std::optional<WorkerRank> who_has_no_relay(const wire::Roster& roster, bool local_reduce);

// Parts of a large tensor are shorter where relays take them to the servers, so that each leader of a machine has some.
// `partition_bytes`: what they would be without; `frame_bytes`: of which there remain a few to a part.
std::uint64_t partition_bytes_of(const wire::Roster& roster, std::uint64_t partition_bytes,
                                 std::uint64_t frame_bytes);

// The workers that sum among themselves first; each apart where servers do it all.
Groups groups_of(const wire::Roster& roster);

// By shard; empty: there is none. Where no server is used, as if each worker had one.
std::vector<std::uint32_t> shard_weights_of(const wire::Roster& roster);
// How tensors are cut, and which shard owns what. There must be one.
Placement placement_of(const wire::Roster& roster);

// Where a worker's relay is: beside it. Where the worker is lost, and the job goes on without it, another relay stands
// in for that one, in the process of the next worker of the machine that is not lost and has not left, since the
// revision in which it came there: who leads which part depends on the epoch, not on who lives.
struct RelayPlace {
  WorkerRank host;
  std::uint32_t since = 0;
};
// nullopt: all workers of its machine are lost, or each exchanges with the servers by itself and is.
std::optional<RelayPlace> relay_place_of(const wire::Roster& roster, const Groups& groups,
                                         WorkerRank worker);

// Of lost workers for whose relays others stand in, since when.
using StandIns = std::map<WorkerRank, std::uint32_t>;
StandIns stand_ins_of(const wire::Roster& roster, const Groups& groups);

// Where this worker reaches the relays of its machine, in the order of their ranks.
std::vector<ShardPlace> relays_of(const wire::Roster& roster, const Groups& groups,
                                  WorkerRank self);

}  // namespace byteps
