// Shares: how much of a large tensor each machine's servers should own, so that all network cards finish at the same
// time (OSDI'20, section 4.1).
//
// A machine with w of the job's W workers and a share x of the bytes M sends, and receives, over its cards
//     w (M - x)   what its workers push elsewhere
//   + (W - w) x   what its servers answer to the workers of other machines
// The shares make the largest of these times, divided by the rates of the machines' cards together, as small as it can
// be. With n machines of one worker and one server each and k more machines with servers, all with equal cards, that is
// the paper's split:
//     a server on a worker's machine   (n - k) / (n^2 + kn - 2k)
//     a server on a machine of its own   2 (n - 1) / (n^2 + kn - 2k)
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "net/wire.h"

namespace byteps {

struct MachineLoad {
  std::uint32_t worker_count = 0;  // where those of a machine sum first: 1
  std::uint32_t server_count = 0;
  std::uint32_t rate_mbps =
      0;  // of its network cards together; 0: as fast as the fastest that is known
};

// One number per machine, in units of 1 / kShareUnit; 0 where there is no server. They add up to kShareUnit, but for
// rounding. All 0 when no machine has a server. Whole-number arithmetic: the same result on every machine.
inline constexpr std::int64_t kShareUnit = std::int64_t{1} << 20;
std::vector<std::int64_t> shares_of(const std::vector<MachineLoad>& machines);

// One shard of the job, at its place in the global order: element i of shards_of() is ShardIndex(i).
struct ShardPlace {
  // Not empty: in its place, the relay of this worker, on the same machine (member/summing.h) ...
  std::optional<WorkerRank> relay;
  std::optional<WorkerRank> relay_host{};  // ... in the process of that one
  ServerRank server;
  std::uint32_t shard_of_server = 0;
  Endpoint endpoint;
  std::string host;          // of the server, for messages to people
  std::uint32_t weight = 1;  // see base/placement.h
  std::uint32_t since = 0;   // wire::Slot
};

// The slots of an epoch that begins with these members: shard 0 of every server, then shard 1 of every server, ...
// Servers may have different numbers of shards. A server whose share is nothing has no slot. The scheduler decides them
// once; everybody else goes by what the roster says.
std::vector<wire::Slot> slots_of(const wire::Roster& roster);
// Who serves the slots of a roster that a Member has checked.
std::vector<ShardPlace> shards_of(const wire::Roster& roster);
std::vector<std::uint32_t> weights_of(const std::vector<ShardPlace>& places);

}  // namespace byteps
