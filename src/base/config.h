// Config: every setting of a process, with default, unit and range. Parsed and checked once in
// app/env.cc (or given by byteps_options), passed down by const reference. docs/env.md is generated
// from app/env.cc's table.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/card.h"
#include "base/ids.h"
#include "base/job_key.h"
#include "base/log.h"
#include "base/place.h"
#include "base/time.h"

namespace byteps {

// How tensors are cut and how much may be on the way. Rank 0's partition and frame size become the
// job's.
struct FlowConfig {
  std::uint64_t partition_bytes =
      4'096'000;  // unit of placement and priority; multiple of 64, at least 64
  // Unit on the wire, of summation and answers; multiple of 64. 0: as the number of shards wants it (placement.h).
  std::uint64_t frame_bytes = 0;
  // Unanswered bytes of a worker, shared equally by its connections; 0: it finds them by itself.
  std::uint64_t credit_bytes = 0;
  std::uint64_t credit_frames_min =
      4;  // with credit_bytes: but never fewer frames than this on one connection
  bool autotune =
      false;  // without credit_bytes: a worker looks for the best credit while it trains
  // Of the memory that two processes on one host share, for each direction; a power of two; 0: they use TCP. Who
  // accepts a connection says it: a server, or a relay, of which each worker of a machine is connected to all.
  std::uint64_t shared_ring_bytes = 1 << 20;
  static constexpr std::uint64_t kRelayRingBytes = 256 << 10;  // default of a worker's
  std::uint64_t min_compress_bytes =
      65'536;                       // of what is coded where it fits: smaller tensors travel plain
  bool priority_scheduling = true;  // false: parts pass the gate in order of submission
  Stopwatch stopwatch = nullptr;    // of what a worker's coding takes
};

struct TimeoutConfig {
  TimeNs failure_ns =
      3 *
      kSecond;  // a peer silent for so long is gone; everything that waits derives from it. The scheduler's
                // counts for the whole job: members take it over when they reach it
  static constexpr std::uint32_t kFailureMsMin = 100;
  static constexpr std::uint32_t kFailureMsMax = 3'600'000;
  std::uint32_t failure_ms() const { return static_cast<std::uint32_t>(failure_ns / kMillisecond); }
  TimeNs heartbeat_ns() const { return failure_ns / 6; }
  // Who has said nothing for so long is gone: it may have stood still for failure_ns since its last heartbeat.
  TimeNs silence_ns() const { return failure_ns + heartbeat_ns(); }
  TimeNs reconnect_ns() const {
    return failure_ns / 60;
  }  // pause between two attempts to reach a peer
  TimeNs wanted_ns =
      5 * kMillisecond;  // an incomplete part older than this asks for the missing contributions
  TimeNs start_ns =
      600 *
      kSecond;  // joining gives up after this, naming who is missing (members a failure_ns later than the scheduler)
  TimeNs recovery_ns =
      60 * kSecond;     // so long a server that is lost may have no successor before the job ends
  TimeNs stall_ns = 0;  // a worker at which nothing moves for so long ends the job; 0: none does
  TimeNs first_notice_ns = 5 * kSecond;   // start-up says who is missing after this ...
  TimeNs notice_every_ns = 10 * kSecond;  // ... and again after this
};

// Which worker of its machine this is, and where its device is there.
struct LocalPlace {
  std::uint32_t rank = 0;
  std::uint32_t size = 1;
  bool is_said = false;      // by the launcher; else the roster tells (worker/neighbours.h)
  topology::Place device{};  // app/own_place.h; it may have none, or none that is known
};

// Workers: who sums what those of one machine have. Rank 0's word is the job's.
struct WhoSums {
  bool locally = false;        // they themselves first, at relays
  bool needs_servers = false;  // servers are used although all workers are on one machine
};

// Where the job's scheduler is, and what this process is in the job.
struct JobConfig {
  std::string scheduler_host;  // empty: a job of one, without any network
  std::uint16_t scheduler_port = 0;
  JobKey key;
  std::array<std::byte, 16> job_id{};  // derived from the key; zero without one
  Incarnation incarnation{};           // the scheduler's: random, its own; zero in others
  std::uint64_t life = 0;  // members: random, of this life of the process; 0: does not say
  WhoSums sums;
  bool loopback_only = false;      // nothing outside this machine is listened to or reached
  std::uint32_t worker_count = 1;  // worker processes in the job
  std::uint32_t server_count = 0;
  std::uint32_t rank = 0;  // workers: global rank
  LocalPlace local;
  std::uint32_t machine_index =
      0;  // workers: which machine of the launcher's; local ranks are counted on it
  std::uint32_t wanted_server_rank = 0xffffffff;
  std::string
      advertise_host;  // own address to tell others; empty: that of the connection to the scheduler
  std::uint64_t machine = 0;              // app/machine.h; 0: not known
  NetworkCard card;                       // that this process uses
  std::vector<NetworkCard> more_cards{};  // that it uses besides
  std::uint16_t listen_port = 0;          // servers: first shard's port, 0 for any free ones
  std::uint64_t descriptors = 0;          // that this process may have open; 0: not known
};

// Whether and how connections between hosts move tensors by RDMA. Peers on one host share memory in any case.
enum class RdmaPolicy : std::uint8_t {
  kOff,
  kAuto,      // where both ends can; otherwise a connection stays on TCP
  kRequired,  // a connection that cannot ends with an error
};
struct RdmaConfig {
  RdmaPolicy policy = RdmaPolicy::kOff;
  // Which device, which of its ports and which entry of that port's GID table. Where not given: those that belong to
  // the local address of a connection. One name, or several with commas between ("mlx5_0,mlx5_1"): only these.
  std::string device;
  int port = 0;                    // from 1; 0: not given
  int gid_index = -1;              // -1: not given
  std::uint8_t traffic_class = 0;  // of the packets on Ethernet: DSCP * 4 + ECN
  std::uint8_t service_level = 0;  // 0 to 15
  // Registered memory of a connection: so much to receive into and as much to send from; a power of two.
  std::uint64_t ring_bytes = 2 << 20;
  // Work requests of a connection that may be under way, in each direction.
  static constexpr std::uint32_t kReceiveDepthMin = 32;
  static constexpr std::uint32_t kSendDepthMin = 16;
  static constexpr std::uint32_t kDepthMax = 16384;
  std::uint32_t receive_depth = 512;
  std::uint32_t send_depth = 256;
};

// Tensors on GPUs (device/devices.h).
struct DeviceConfig {
  std::string cuda_library;  // the driver's file; empty: where the system has it
  // Pinned host memory that tensors on devices pass through: what is sent and not answered, and as much for what is
  // copied out and in meanwhile. With the credit's 2 ms and a card of 100 Gbit/s 2 x 12.5 GB/s x 2 ms = 50 MB.
  std::uint64_t pinned_bytes = std::uint64_t{64} << 20;
  // What the user wants of the plan for a machine (topology/planner.h).
  std::uint32_t group_size = 0;  // ranks that sum among themselves on GPUs; 0: as planned
  std::vector<std::uint32_t> reduce_roots{};  // ranks of the machine that lead; empty: as planned
};

// The timeline (timeline.h): which rounds of each tensor are recorded, and where the files go.
struct TraceConfig {
  bool on = false;
  std::uint32_t first_round = 10;  // both included
  std::uint32_t last_round = 20;
  std::string folder = "./trace";
};

struct Config {
  JobConfig job;
  FlowConfig flow;
  TimeoutConfig timeout;
  TraceConfig trace;
  RdmaConfig rdma;
  DeviceConfig device;
  CardList cards;  // by which connections go
  LogLevel log_level = LogLevel::kWarning;
  // Members: what the scheduler says about who is missing is for the log, and not only for the flight recorder.
  bool tells_roll_call = true;
  std::uint64_t memory_bytes_max = UINT64_MAX;        // servers: of sums, all shards together
  std::uint64_t relay_memory_bytes_max = UINT64_MAX;  // workers: of sums at the relay
  bool recovers = true;  // the scheduler's: a server that is lost gets a successor
  bool continues =
      false;  // the scheduler's, if it recovers: a job goes on without a worker that is lost
  TimeNs spin_ns = 0;             // a thread looks for more work for so long before it sleeps
  std::uint32_t shard_count = 0;  // servers: event loops; 0 for one per two cores
  bool deterministic = false;     // sum in order of rank, so that a run repeats bit for bit
};

}  // namespace byteps
