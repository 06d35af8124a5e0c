// Placement: which shard owns which part. A pure function of (shard count, key, part), the same on every worker.
//
//   shard_of(key, part) = (mix(key) + part) mod shard_count
//
// Part 0 goes where the key says, whatever the tensor's size: workers that disagree about a tensor
// meet there, and the shard can tell them (docs/protocol.md, Mismatch). The following parts go
// round. Shards are numbered across servers first (shard 0 of every server, then shard 1 of every
// server, ...), so consecutive parts go to different servers and a tensor of at least shard_count
// parts loads all servers alike. Tensors of one part are spread by the hash.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "net/wire.h"

namespace byteps {

// One shard of the job, at its place in the global order: element i of shards_of() is ShardIndex(i).
struct ShardPlace {
  ServerRank server;
  std::uint32_t shard_of_server = 0;
  Endpoint endpoint;
  std::string host;  // of the server, for messages to people
};

// All shards of a roster in global order. Servers may have different numbers of shards.
inline std::vector<ShardPlace> shards_of(const wire::Roster& roster) {
  std::vector<ShardPlace> places;
  for (std::uint32_t shard = 0;; ++shard) {
    const std::size_t before = places.size();
    for (const wire::RosterMember& member : roster.members) {
      if (member.role != Role::kServer || shard >= member.endpoints.size()) continue;
      places.push_back({ServerRank(member.rank), shard, member.endpoints[shard], member.host});
    }
    if (places.size() == before) return places;
  }
}

// shard_count must be above 0.
inline ShardIndex shard_of(std::uint32_t shard_count, Key key, PartIndex part) {
  const std::uint64_t first = stable_mix(key.value) % shard_count;
  return ShardIndex(static_cast<std::uint32_t>((first + part.value) % shard_count));
}

}  // namespace byteps
