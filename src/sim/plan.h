// Plan: everything that a seed decides about a simulated world before it begins. Faults are drawn while it runs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "base/place.h"
#include "base/prng.h"
#include "base/time.h"
#include "sim/cluster.h"
#include "sim/values.h"

namespace byteps::sim {

// A tensor that all workers of a generation use for some rounds.
struct TensorPlan {
  TensorFacts facts;
  std::uint32_t rounds = 1;
  std::int32_t priority = 0;
  bool once = false;
  bool feeds_back = false;  // coded: what the codes leave is in the next round
  bool is_early = false;    // training loops wait for it before they submit all others
  // How many of the rounds each rank submits, when not all the same: some have no more inputs earlier. Empty: all.
  std::vector<std::uint32_t> rounds_of;
  // This rank believes something else about the tensor, so everybody must hear of a mismatch.
  std::optional<std::uint32_t> odd_rank;
  TensorFacts odd_facts;

  std::uint32_t rounds_at(std::uint32_t rank) const {
    return rounds_of.empty() || rank >= rounds_of.size() ? rounds
                                                         : std::min(rounds, rounds_of[rank]);
  }
  const TensorFacts& facts_of(std::uint32_t rank) const {
    return odd_rank == rank ? odd_facts : facts;
  }
};

// What a worker does next, after `gap_ns`.
struct StepPlan {
  enum class Kind : std::uint8_t {
    kSubmit,     // round `round` of tensor `tensor`
    kBarrier,    // begins its next barrier
    kWait,       // until all that was begun has ended
    kWaitEarly,  // the same of tensors that are early
    kFinish,     // has no more inputs; until all have none
  };
  Kind kind = Kind::kSubmit;
  std::uint32_t tensor = 0;
  std::uint32_t round = 0;
  bool in_place = true;
  TimeNs gap_ns = 0;
  // The tensor is on the rank's device: the input is there when this kernel of this stream has ended.
  bool on_device = false;
  std::uint64_t stream = 0;
  TimeNs kernel_ns = 0;
};

struct WorkerPlan {
  TimeNs start_ns = 0;  // after the end of its earlier life, or the beginning of the world
  TimeNs leave_gap_ns = 0;
  FlowConfig flow;
  std::optional<SimDeviceOptions> gpu;  // the same in all generations
  std::vector<StepPlan> steps;
};

// The workers from joining to leaving. All but the last generation leave to come back.
struct GenerationPlan {
  std::vector<TensorPlan> tensors;
  std::vector<WorkerPlan> workers;  // by rank
  bool uneven = false;              // see TensorPlan::rounds_of
  bool same_process = false;        // workers come back under the name they had
  bool reuse_memory =
      false;  // each round of a tensor uses the memory of the one before, if that has ended
};

// Kinds of faults. A world has some of them.
enum class Fault : std::uint8_t {
  kCut,         // connections end with their tail lost, are held up, or cannot be made for a while
  kRepeat,      // pushes and answers that are given out twice
  kPartition,   // hosts cannot reach each other, one way or both, for less than the failure timeout
  kPause,       // a process stands still for less than the failure timeout
  kSlow,        // a host's line, or a process, is slow for a while or for ever
  kCorrupt,     // messages arrive with changed bytes
  kLookUp,      // look-ups of host names take long, some longer than the failure timeout
  kFormerJob,   // workers that an earlier job with the same key, ports and names has left behind
  kLostServer,  // a server dies, and is started anew
  kDrain,       // a server is told to stop, and hands over
  kAdopt,  // servers that are gone are not started anew while others live, which serve their slots as well
  kSlowDevice,     // a GPU does nothing for a while, or copies slowly
  kLostScheduler,  // the scheduler dies, and is started anew
  kLostWorker,     // a worker dies, or stands still for too long, and the job goes on without it
  // One of these happens once. The job may end then, and must end well enough (docs/simulator.md).
  kKill,           // a process dies
  kLongPause,      // a process stands still for longer
  kLongPartition,  // hosts cannot reach each other for longer, or for ever
  kStuckThread,    // one thread of a server, or a relay, stands still for ever; its process goes on
  kBrokenDevice,   // a GPU fails
};
inline constexpr std::size_t kFaultCount = 19;
const char* name(Fault fault);
constexpr bool is_deadly(Fault fault) {
  return fault >= Fault::kKill;
}

// A set of kinds.
class Faults {
 public:
  void add(Fault fault) { bits_ |= 1U << static_cast<unsigned>(fault); }
  void remove(Fault fault) { bits_ &= ~(1U << static_cast<unsigned>(fault)); }
  bool has(Fault fault) const { return (bits_ >> static_cast<unsigned>(fault) & 1U) != 0; }
  bool empty() const { return bits_ == 0; }
  bool has_deadly() const {
    return has(Fault::kKill) || has(Fault::kLongPause) || has(Fault::kLongPartition) ||
           has(Fault::kStuckThread) || has(Fault::kBrokenDevice);
  }

 private:
  unsigned bits_ = 0;
};
// "cut,lost-worker", by their names; "none": none. nullopt: there is no such kind.
std::optional<Faults> faults_named(std::string_view text);

struct FaultPlan {
  Faults kinds;
  TimeNs until_ns = 0;          // no fault begins later, but a deadly one; 0: none at all
  TimeNs gap_ns = 0;            // between two of them, on average, whatever is going on
  double per_message = 0;       // chance that the arrival of a message brings one to its connection
  TimeNs length_max_ns = 0;     // of cuts
  TimeNs partition_max_ns = 0;  // of partitions and pauses that the job must bear
  TimeNs pause_max_ns = 0;
  std::uint64_t slow_line_bytes_per_second = 0;  // the least that a slow host has

  // The deadly one, if any, comes so long after all workers have begun to work, or with this turn of an actor.
  TimeNs deadly_after_ns = 0;
  std::uint64_t deadly_turn = 0;  // 0: after deadly_after_ns
};

// Hosts: the scheduler's is 0, those of the servers follow it, and the workers' begin here.
inline constexpr HostIndex kFirstWorkerHost = 100;

struct WorldPlan {
  Config config;                            // of scheduler and servers; workers have their own flow
  std::vector<std::uint32_t> shard_counts;  // by server
  TimeNs scheduler_start_ns = 0;
  std::vector<TimeNs> server_start_ns;
  std::vector<HostIndex> worker_hosts;  // by rank
  // By rank, which machine and card a worker says that it uses (JobConfig); 0: says nothing.
  std::vector<std::uint64_t> worker_machines;
  std::vector<topology::Place>
      worker_places;          // by rank, what it says of itself; empty: nobody does
  bool local_reduce = false;  // their settings (JobConfig)
  bool needs_servers = false;
  std::vector<GenerationPlan> generations;
  ClusterOptions cluster;
  FaultPlan faults;
  TimeNs restart_max_ns = 0;  // so long after its death at most who is lost is started anew
  double stay_away = 0;       // the chance that a server is not, while others live
  bool check_memory = false;  // before leaving, servers are compared with what they must hold
  TimeNs limit_ns = 0;        // everything is finished long before

  // Where a worker is; of ranks that the former job alone has, too.
  HostIndex worker_host(std::uint32_t rank) const {
    return rank < worker_hosts.size() ? worker_hosts[rank] : kFirstWorkerHost + rank;
  }
  // Who this worker is, and where it says that it is.
  void introduce(std::uint32_t rank, JobConfig& job) const;
};

// Whether workers share hosts. A world in which they do has a host with 2 to 4 of them, and perhaps others with 1 to 4.
// By seed that is one world in four. Of what else a seed decides, how slow a slow host may be follows from it, which
// tensors are large halves, and what ranks disagree about.
enum class Hosts : std::uint8_t { kApart, kBySeed, kShared };

// Whether some workers have GPUs. By seed that is one world in four, and nothing else follows from it.
enum class Gpus : std::uint8_t { kNone, kBySeed, kSome };

struct PlanOptions {
  std::optional<std::uint32_t> worker_count;  // none: 1 to 5
  std::optional<std::uint32_t> server_count;  // none: 1 to 3
  std::optional<Faults> faults;               // each world has these; none: by seed
  Hosts hosts = Hosts::kBySeed;               // kShared: in all worlds of two workers or more
  Gpus gpus = Gpus::kBySeed;
  bool has_formats = false;  // most sums and averages are of float32, and travel coded
};

WorldPlan make_plan(const PlanOptions& options, Prng prng);

// One line about the size of a world, for people.
std::string describe(const WorldPlan& plan);

}  // namespace byteps::sim
