// How large things may be that come from others, or that everybody has to be ready for: of a job, a message, a
// connection, a tensor. Each limit stands here once, with its holder, who refuses what is beyond it and names it.
// Below are the sums: what scheduler, shard and worker hold at most at these limits.
//
// Not here: sizes that a user sets (base/config.h), and those of one algorithm's own tables.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace byteps {

// ---- the job. Environment variables beyond them are refused by app/env.cc, members by the scheduler.

inline constexpr std::uint32_t kWorkersMax = 4096;
inline constexpr std::uint32_t kServersMax = 1024;  // spare ones included
inline constexpr std::uint32_t kShardsOfServerMax = 256;
inline constexpr std::uint32_t kShardsMax =
    8192;  // of all servers; each worker is connected to each

// ---- messages. Held by whoever decodes them: the connection ends.

inline constexpr std::size_t kHeaderBytesMax = 256;
inline constexpr std::size_t kPayloadBytesMax = std::size_t{4} << 20;
// Through shared memory no payload is longer, but for tensor bytes (Outgoing::bulk); it is copied, then looked at.
inline constexpr std::size_t kPrivateBytesMax = std::size_t{13} << 10;
inline constexpr std::size_t kTextBytesMax = 4096;  // of a text or name in a message
inline constexpr std::size_t kDetailBytesMax =
    1024;                                       // of a cause's detail, which may be a tensor's name
inline constexpr std::size_t kListMax = 65536;  // entries
inline constexpr std::size_t kDimensionsMax = 64;  // of a shape
inline constexpr std::size_t kHostNameBytesMax =
    255;  // of an address; the scheduler refuses longer ones
inline constexpr std::size_t kHostTextBytesMax =
    128;  // "host:pid", for people; the scheduler shortens it
// Of all places in a roster (member/places.h): one that would have more has none.
inline constexpr std::size_t kPlacesBytesMax = std::size_t{256} << 10;

// ---- connections. Held by the transport.

// Connections accepted from whoever has not named the job; and as many from those that have, and have not proved that
// they belong to it. For one more the oldest is dropped.
inline constexpr std::size_t kStrangersMax = 256;
// Sent by the owner and not yet taken by the kernel or the other side; then the owner has to wait.
inline constexpr std::size_t kWindowBytes = std::size_t{4} << 20;

// ---- tensors. Held by the worker's door, then by each shard.

inline constexpr std::size_t kTensorNameBytesMax = 1024;
inline constexpr std::uint64_t kPartsMax = std::uint64_t{1} << 24;  // of a tensor
inline constexpr std::uint64_t kFramesPerPartMax = std::uint64_t{1} << 20;
inline constexpr std::size_t kOperationsMax = std::size_t{1}
                                              << 20;  // of a worker, that have not been waited for
inline constexpr std::size_t kTensorsMax = std::size_t{1} << 20;        // of a shard
inline constexpr std::size_t kDeclaredBytesMax = std::size_t{2} << 30;  // of a shard's declarations

// ---- what waits for who does not read. Held by the sender: such a connection ends.

inline constexpr std::size_t kControlWaitingMax =
    1024;  // messages of scheduler and members to each other

// A worker that keeps the protocol has as many answers coming as it has credit for, and those that it sent because they
// were wanted. All workers together may have 2^22 messages waiting, but each has a place for 2^14, and none for more
// than 2^18.
constexpr std::size_t waiting_messages_max(std::size_t worker_count) {
  const std::size_t share = (std::size_t{1} << 22) / std::max<std::size_t>(worker_count, 1);
  return std::clamp(share, std::size_t{1} << 14, std::size_t{1} << 18);
}
// Their sums are kept until they are sent: each worker may have half of what the shard's memory allows, within these
// bounds.
inline constexpr std::size_t kWaitingBytesLeast = 4 * kPayloadBytesMax;
inline constexpr std::size_t kWaitingBytesMost = std::size_t{1} << 30;

// ---- sums: connections

// At one that listens. A member may come anew before its old connection is seen to have ended.
constexpr std::size_t accepted_connections_max(std::size_t members) {
  return 2 * members + 2 * kStrangersMax;
}
inline constexpr std::size_t kSchedulerConnectionsMax =
    accepted_connections_max(std::size_t{kWorkersMax} + kServersMax);
inline constexpr std::size_t kShardConnectionsMax = accepted_connections_max(kWorkersMax);
inline constexpr std::size_t kWorkerConnectionsMax =
    std::size_t{kShardsMax} + 1;  // nobody connects to it
inline constexpr std::size_t kConnectionsMax =
    std::max({kSchedulerConnectionsMax, kShardConnectionsMax, kWorkerConnectionsMax});
static_assert(kConnectionsMax == 10'752);

// ---- sums: file descriptors, without which a process of a job of this size cannot do. Whoever may open fewer says so
// and does not begin. Shared memory takes one more at the server for each worker of its host; where there is none left
// for it, a connection stays on TCP.

inline constexpr std::size_t kOwnDescriptors =
    16;  // standard streams, epoll, eventfds, listeners, a file of events
constexpr std::size_t descriptors_of_scheduler(std::size_t workers, std::size_t servers) {
  return kOwnDescriptors + workers + servers;
}
constexpr std::size_t descriptors_of_server(std::size_t shards, std::size_t workers) {
  return kOwnDescriptors + shards * (kOwnDescriptors / 4 + workers);
}
constexpr std::size_t descriptors_of_worker(std::size_t shards) {
  return kOwnDescriptors + shards;
}
// kSystem, with the remedy, when a process needs more than it may open. `what`: that needs so many, as
// "2 shards of 4 workers". may_open 0: not known.
Status check_descriptors(std::size_t needed, std::uint64_t may_open, const std::string& what);

// ---- sums: bytes

// The largest message: a roster at all limits has to be one payload. A member has at most 128 bytes of numbers, an
// address 16, a slot 48.
inline constexpr std::size_t kRosterBytesMax =
    (std::size_t{kWorkersMax} + kServersMax) * (kHostTextBytesMax + 128) +
    std::size_t{kShardsMax} * (kHostNameBytesMax + 16 + 48) + kPlacesBytesMax;
static_assert(kRosterBytesMax <= kPayloadBytesMax);
static_assert(kListMax >= kWorkersMax + kServersMax && kListMax >= kShardsMax);
// What a worker and a shard say to each other, but for tensors, is decoded from memory of the receiver's own.
inline constexpr std::size_t kBitmapBytesMax = kWorkersMax / 8;
static_assert(kPrivateBytesMax >= kTextBytesMax + kBitmapBytesMax + kDimensionsMax * 8 + 1000);
static_assert(kPrivateBytesMax >=
              kTextBytesMax + kDetailBytesMax + 2 * kHostTextBytesMax + 2 * kBitmapBytesMax + 1000);
static_assert(kTensorNameBytesMax <= kTextBytesMax && kTensorNameBytesMax <= kDetailBytesMax);
static_assert(kServersMax <= kWorkersMax);  // a bitmap has room for the ranks of either
// What waits for those that do not read, in records of 128 bytes. At the scheduler what they say is the same for all
// members (rosters, who left, why the job ends); at a shard it is sums, within the memory limit that the user sets
// (BYTEPS_SERVER_MEMORY_MB).
inline constexpr std::size_t kWaitingRecordBytes = 128;
static_assert(kSchedulerConnectionsMax * kControlWaitingMax * kWaitingRecordBytes <
              std::size_t{1500} << 20);
static_assert(kWorkersMax * waiting_messages_max(kWorkersMax) * kWaitingRecordBytes ==
              std::size_t{8} << 30);
static_assert(16 * waiting_messages_max(16) * kWaitingRecordBytes == std::size_t{512} << 20);
// A tensor of all parts, each of all frames, is beyond what a u64 of bytes can name: the product is never computed.
static_assert(kPartsMax <= UINT32_MAX && kFramesPerPartMax <= UINT32_MAX);

}  // namespace byteps
