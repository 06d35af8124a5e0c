// Endpoint and Hello: where somebody is reached, and who says what of himself.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/ids.h"

namespace byteps {

// A place to connect to: an IPv4 or IPv6 address in text, or a host name, and a port.
struct Endpoint {
  std::string host;
  std::uint16_t port = 0;
  std::string text() const;  // "10.0.0.1:9000", "[::1]:9000"
  bool operator==(const Endpoint&) const = default;
};

// Who a connection comes from; each side says it first. A Hello of another version or job is refused. Whether
// role, rank, epoch and incarnation are those that were looked for is for the owner to say.
struct Hello {
  static constexpr std::uint16_t kProtocolVersion = 12;

  std::uint16_t version = kProtocolVersion;
  Role role = Role::kWorker;
  std::uint32_t rank = kNoRank;
  Epoch epoch;                         // 0 before the roster is known
  std::array<std::byte, 16> job_id{};  // equal for all processes of a job; zero when none was given
  // In which life of the job: a scheduler's own, for others that of the scheduler that gave them their epoch. Key, rank
  // and epoch are the same again in a job that is started anew; this is not.
  Incarnation incarnation{};
  // Between a worker and a shard: the revision of the epoch's roster since which this process serves the shard's slot.
  // Who was there before is at the same place, perhaps, and says another one.
  std::uint32_t since = 0;
  // From a worker to a relay: of which worker it is, its rank + 1. Where that worker is lost another relay stands in
  // for it, in the process of another one of the machine, since revision `since`. (Who answers is that process's own.)
  std::uint32_t relay_of = 0;
  // From a relay to a shard: the revision since which it stands in for the relay of `rank`; 0: it is that worker's own.
  std::uint32_t stands_since = 0;
  // A scheduler's failure timeout, milliseconds: it counts for the whole job. 0: does not say.
  std::uint32_t failure_ms = 0;
  std::string text() const;  // "server 2", "worker" when it has no rank
  bool operator==(const Hello&) const = default;
};

}  // namespace byteps
