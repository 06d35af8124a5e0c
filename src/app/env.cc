#include "app/env.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>
#include <utility>

#include <sys/stat.h>
#include <unistd.h>

#include "app/launch.h"
#include "base/limits.h"
#include "net/auth.h"

namespace byteps {
namespace {

constexpr std::uint64_t kKiB = 1024;
constexpr std::uint64_t kGiB = kKiB * kKiB * kKiB;
constexpr std::size_t kInterfacesMax = 16;  // of DMLC_INTERFACE

// What the variables say, before they are brought together into a Config.
struct Draft {
  Config config;
  std::vector<std::string> interfaces;
  std::string role;
  std::string job_key;
  std::string job_key_file;
  std::optional<std::uint64_t> machine_count;  // DMLC_NUM_WORKER counts machines
  std::optional<std::uint64_t> machine_index;
  std::optional<std::uint64_t> server_count;
  std::optional<std::uint64_t> global_rank;
  std::optional<std::uint64_t> global_size;
  std::optional<std::uint64_t> scheduling_credit;
  std::optional<std::uint64_t> scheduler_port;
  bool force_distributed = false;
  struct Chosen {
    std::string local_reduce = "auto";
    std::string on_worker_loss = "fail";
    std::string reduce_roots;
    std::string interfaces;
  };
  Chosen chosen;
  std::string engine;
  bool async = false;
  bool shared_memory = true;
  bool insecure = false;
  struct Rdma {
    std::string policy;  // DMLC_ENABLE_RDMA
    std::optional<std::uint64_t> receive_depth;
    std::optional<std::uint64_t> send_depth;
  };
  Rdma rdma;
  std::vector<SettingWarning> warnings;

  void says_local(std::uint32_t LocalPlace::*number, std::uint64_t value) {
    config.job.local.*number = static_cast<std::uint32_t>(value);
    config.job.local.is_said = true;
  }
  void warn(std::string about, std::string text,
            SettingWarning::Kind kind = SettingWarning::Kind::kOther) {
    warnings.push_back({kind, std::move(about), std::move(text)});
  }
};

using SetNumber = void (*)(Draft&, std::uint64_t);
using SetText = void (*)(Draft&, const std::string&);

struct Variable {
  const char* name;
  const char* read_by;  // "all", "worker", "server", "launcher", ...
  const char* default_text;
  const char* form;  // unit and range, for people
  const char* meaning;
  // How it is parsed: as a number from min to max, as a text, or (neither) accepted without effect
  // here.
  std::uint64_t min = 0;
  std::uint64_t max = 0;
  SetNumber number = nullptr;
  SetText text = nullptr;
};

// Python's: here it must only be well formed.
constexpr SetNumber kNotHere = [](Draft&, std::uint64_t) {};

constexpr const char* kLater = "accepted, without effect in this version";
constexpr const char* kInterfaceForm = "interfaces, for example eth0 or eth0,eth1";
constexpr const char* kRdmaForm =
    "0 or zmq (never), auto (where both ends can), ibverbs or 1 (required)";

// The sections of docs/env.md and their variables.
struct Section {
  const char* title;
  std::vector<Variable> variables;
};

std::vector<Variable> role_variables() {
  return {
      {"DMLC_ROLE", "all", "worker", "worker, server or scheduler",
       "What this process is. The executables know their role.", 0, 0, nullptr,
       [](Draft& d, const std::string& v) { d.role = v; }},
      {"DMLC_NUM_WORKER", "all", "1", "machines, 1 to 4096",
       "How many worker machines there are. Workers in the job = this times BYTEPS_LOCAL_SIZE.", 1,
       kWorkersMax, [](Draft& d, std::uint64_t v) { d.machine_count = v; }},
      {"DMLC_NUM_SERVER", "all", "none", "processes, 0 to 1024",
       "How many summation servers there are. Needed when the job has more than one worker; 0 "
       "where "
       "all workers are on one machine and sum by themselves (BYTEPS_LOCAL_REDUCE).",
       0, kServersMax, [](Draft& d, std::uint64_t v) { d.server_count = v; }},
      {"DMLC_WORKER_ID", "worker", "none", "index, from 0",
       "Which worker machine this is. Needed when the job has more than one worker.", 0,
       kWorkersMax, [](Draft& d, std::uint64_t v) { d.machine_index = v; }},
      {"DMLC_PS_ROOT_URI", "all", "none", "IPv4 or IPv6 address, or host name",
       "Where the scheduler is.", 0, 0, nullptr,
       [](Draft& d, const std::string& v) { d.config.job.scheduler_host = v; }},
      {"DMLC_PS_ROOT_PORT", "all", "none",
       "TCP port, 1 to 65535 (scheduler: 0 takes a free one and prints it)",
       "The scheduler's port.", 0, 65535, [](Draft& d, std::uint64_t v) { d.scheduler_port = v; }},
      {"DMLC_NODE_HOST", "worker, server", "the address used to reach the scheduler", "address",
       "This machine's address, as told to others. A host name with one address, this machine's "
       "own, is told as that address.",
       0, 0, nullptr, [](Draft& d, const std::string& v) { d.config.job.advertise_host = v; }},
      {"DMLC_INTERFACE", "worker, server", "none", kInterfaceForm,
       "The interface whose address is told to others; DMLC_NODE_HOST wins. With several, "
       "connections are spread over all of these cards (docs/topology.md).",
       0, 0, nullptr, [](Draft& d, const std::string& v) { d.chosen.interfaces = v; }},
      {"BYTEPS_NIC_MBPS", "worker, server", "what the card says", "Mbit/s, 1 to 10000000",
       "Rate of the network card that this process uses, in each direction; with several "
       "(DMLC_INTERFACE) of each. Servers behind slow cards get smaller shares of large tensors.",
       1, 10'000'000,
       [](Draft& d, std::uint64_t v) { d.config.job.card.rate_mbps = static_cast<std::uint32_t>(v); }},
      {"DMLC_PORT", "server", "0", "TCP port, 0 to 65535",
       "Port of the server's first shard, the others follow; 0 takes free ones.", 0, 65535,
       [](Draft& d, std::uint64_t v) { d.config.job.listen_port = static_cast<std::uint16_t>(v); }},
  };
}

std::vector<Variable> rank_variables() {
  return {
      {"DMLC_RANK", "server", "order of arrival", "index, from 0",
       "The server rank this process would like.", 0, kServersMax,
       [](Draft& d, std::uint64_t v) {
         d.config.job.wanted_server_rank = static_cast<std::uint32_t>(v);
       }},
      {"BYTEPS_LOCAL_RANK", "worker", "0", "index, from 0",
       "Which worker of its machine this is; set by bpslaunch. Where neither it nor "
       "BYTEPS_LOCAL_SIZE is set, local_rank() counts the workers that the kernel says to be on "
       "one "
       "machine, in order of rank; set them for all workers of a job or for none.",
       0, kWorkersMax, [](Draft& d, std::uint64_t v) { d.says_local(&LocalPlace::rank, v); }},
      {"BYTEPS_LOCAL_SIZE", "all", "1", "processes, 1 to 4096",
       "Workers on each machine; set by bpslaunch. Where neither it nor BYTEPS_LOCAL_RANK is set, "
       "local_size() counts as local_rank() does.",
       1, kWorkersMax, [](Draft& d, std::uint64_t v) { d.says_local(&LocalPlace::size, v); }},
      {"BYTEPS_GLOBAL_RANK", "worker", "DMLC_WORKER_ID * BYTEPS_LOCAL_SIZE + BYTEPS_LOCAL_RANK",
       "index, from 0", "Overrides the rank.", 0, kWorkersMax,
       [](Draft& d, std::uint64_t v) { d.global_rank = v; }},
      {"BYTEPS_GLOBAL_SIZE", "all", "DMLC_NUM_WORKER * BYTEPS_LOCAL_SIZE", "processes, 1 to 4096",
       "Workers in the job, when machines have different numbers of them; set by bpslaunch "
       "--hosts.",
       1, kWorkersMax, [](Draft& d, std::uint64_t v) { d.global_size = v; }},
      {"BYTEPS_FORCE_DISTRIBUTED", "all", "0", "0 or 1",
       "1: use servers even with a single worker, or with all workers on one machine.", 0, 1,
       [](Draft& d, std::uint64_t v) { d.force_distributed = v == 1; }},
      {"BYTEPS_LOCAL_REDUCE", "worker", "auto", "auto or 0",
       "auto: the workers of a machine sum among themselves first, and one copy for all of them "
       "goes "
       "over the network (docs/local.md). 0, at any worker: each exchanges with the servers by "
       "itself.",
       0, 0, nullptr, [](Draft& d, const std::string& v) { d.chosen.local_reduce = v; }},
      {"BYTEPS_ENGINE", "worker", "unset", "none",
       "none: a process without DMLC_* is alone on purpose, although torchrun, mpirun, srun or the "
       "like has started several. Without it that is an error, for each would train a model of its "
       "own (docs/launch.md).",
       0, 0, nullptr, [](Draft& d, const std::string& v) { d.engine = v; }},
  };
}

std::vector<Variable> flow_variables() {
  return {
      {"BYTEPS_PARTITION_BYTES", "worker", "4096000",
       "bytes, 64 to 2147483647; rounded up to a multiple of 64",
       "A tensor is cut into parts of this size: the unit of placement and priority. Rank 0's "
       "value is used by all. Where onebit, topk, randomk or dithering code a part together, it "
       "has 4 MiB at most; other tensors travel in frames, however large their parts are.",
       64, 2 * kGiB - 1,
       [](Draft& d, std::uint64_t v) { d.config.flow.partition_bytes = (v + 63) / 64 * 64; }},
      {"BYTEPS_FRAME_BYTES", "worker", "0", "bytes, 0 to 4 MiB; rounded up to a multiple of 64",
       "A part travels, is summed and answered in frames of this size. Rank 0's value is used by "
       "all. 0: 61440 for up to 12 shards of all servers together, 30720 for up to 24, 15360 for "
       "more; no more than goes over the cards in 1.25 ms (BYTEPS_NIC_MBPS), or 15360.",
       0, kPayloadBytesMax,
       [](Draft& d, std::uint64_t v) { d.config.flow.frame_bytes = (v + 63) / 64 * 64; }},
      {"BYTEPS_MIN_COMPRESS_BYTES", "worker", "65536", "bytes, from 0",
       "Tensors of fewer bytes are not coded (docs/compression.md). The same on all ranks.", 0,
       std::numeric_limits<std::int64_t>::max(),
       [](Draft& d, std::uint64_t v) { d.config.flow.min_compress_bytes = v; }},
      {"BYTEPS_CREDIT_BYTES", "worker", "0", "bytes, from 0 (0: finds it by itself)",
       "Bytes a worker may have sent without an answer, shared by its connections; each may have "
       "four frames in any case. By itself each connection has some milliseconds of its own rate.",
       0, std::numeric_limits<std::int64_t>::max(),
       [](Draft& d, std::uint64_t v) { d.config.flow.credit_bytes = v; }},
      {"BYTEPS_SCHEDULING_CREDIT", "worker", "none", "parts, from 0",
       "Upstream's form of the credit: this many parts. 0 turns priorities off (first in, first "
       "out); upstream's default is 0, ours is priorities on.",
       0, 1 << 20, [](Draft& d, std::uint64_t v) { d.scheduling_credit = v; }},
      {"BYTEPS_AUTOTUNE", "worker", "0", "0 or 1",
       "1: look for the best credit by trials while training, and log what was chosen "
       "(docs/tuning.md). Set it for all workers. A credit that is set wins.",
       0, 1, [](Draft& d, std::uint64_t v) { d.config.flow.autotune = v == 1; }},
      {"BYTEPS_ENABLE_IPC", "worker, server", "1", "0 or 1",
       "1: two workers, or a worker and a server, on one host exchange tensors through shared "
       "memory "
       "(docs/design/0005-shared-memory.md). 0: through TCP, as between hosts.",
       0, 1, [](Draft& d, std::uint64_t v) { d.shared_memory = v == 1; }},
      {"BYTEPS_IPC_RING_BYTES", "worker, server", "1048576; of a worker's relay 262144",
       "bytes, 64 KiB to 64 MiB; rounded up to a power of two",
       "Size of that shared memory, for each direction of each connection to this server's shards, "
       "or to this worker's relay.",
       64 * kKiB, 64 * kKiB * kKiB,
       [](Draft& d, std::uint64_t v) { d.config.flow.shared_ring_bytes = std::bit_ceil(v); }},
      {"BYTEPS_SPIN_US", "worker, server", "0", "microseconds, 0 to 1000000",
       "For so long after its last work a thread looks for more before it sleeps, and so does who "
       "waits for a result: shorter round trips of small tensors for cores that are always busy. "
       "In between it yields its core. Only where there are cores to spare.",
       0, 1'000'000,
       [](Draft& d, std::uint64_t v) { d.config.spin_ns = static_cast<TimeNs>(v) * kMicrosecond; }},
  };
}

std::vector<Variable> sum_variables() {
  return {
      {"BYTEPS_SERVER_ENGINE_THREAD", "server", "one per two cores",
       "threads, 0 to 256 (0: one per two cores)",
       "Shards of the server: event loops that receive, sum and answer, each for its own keys.", 0,
       kShardsOfServerMax,
       [](Draft& d, std::uint64_t v) { d.config.shard_count = static_cast<std::uint32_t>(v); }},
      {"BYTEPS_SERVER_MEMORY_MB", "server", "none", "MiB, 1 to 1073741824",
       "Memory for sums and for what is known of tensors, shared equally by the server's shards. A "
       "tensor that needs more ends with an error that names it; the server lives on.",
       1, 1 << 30, [](Draft& d, std::uint64_t v) { d.config.memory_bytes_max = v * kKiB * kKiB; }},
      {"BYTEPS_RELAY_MEMORY_MB", "worker", "none", "MiB, 1 to 1073741824",
       "Where the workers of a machine sum first (docs/local.md): memory of this one's relay for "
       "sums and for what is known of tensors, a quarter of it at most. A tensor that needs more "
       "for its sums ends with an error that names it; the job lives on.",
       1, 1 << 30,
       [](Draft& d, std::uint64_t v) { d.config.relay_memory_bytes_max = v * kKiB * kKiB; }},
      {"BYTEPS_PINNED_MB", "worker", "64", "MiB, 1 to 1048576",
       "Pinned host memory that tensors on GPUs pass through on their way (docs/gpu.md).", 1,
       1 << 20, [](Draft& d, std::uint64_t v) { d.config.device.pinned_bytes = v * kKiB * kKiB; }},
      {"BYTEPS_CUDA_LIBRARY", "worker", "libcuda.so.1, where the system has it", "file",
       "The driver of NVIDIA's GPUs. It is loaded when the first tensor on a GPU is submitted, "
       "or a model with one is wrapped. Unset: one that the process has loaded already goes first.",
       0, 0, nullptr, [](Draft& d, const std::string& v) { d.config.device.cuda_library = v; }},
      {"BYTEPS_DETERMINISTIC", "worker, server", "0", "0 or 1",
       "1: sum in order of rank rather than of arrival, so that a run repeats bit for bit.", 0, 1,
       [](Draft& d, std::uint64_t v) { d.config.deterministic = v == 1; }},
      {"BYTEPS_ENABLE_ASYNC", "worker, server", "0", "0 (1: not in this version)",
       "Asynchronous training.", 0, 1, [](Draft& d, std::uint64_t v) { d.async = v == 1; }},
  };
}

std::vector<Variable> plan_variables() {
  return {
      {"BYTEPS_PCIE_SWITCH_SIZE", "worker", "by the machine", "GPUs, 1 to 4096",
       "GPUs that sum among themselves before the host does, in order of local rank "
       "(docs/topology.md). As yet it changes the plan that workers and bps doctor tell, and nothing "
       "else.",
       1, kWorkersMax,
       [](Draft& d, std::uint64_t v) {
         d.config.device.group_size = static_cast<std::uint32_t>(v);
       }},
      {"BYTEPS_REDUCE_ROOTS", "worker", "by the machine", "local ranks, for example 2,3",
       "Only these copy what a group has summed to the host. As yet it changes the plan that "
       "workers and bps doctor tell, and nothing else.",
       0, 0, nullptr, [](Draft& d, const std::string& v) { d.chosen.reduce_roots = v; }},
  };
}

std::vector<Variable> rdma_variables() {
  constexpr std::uint64_t kMiB = kKiB * kKiB;
  return {
      {"DMLC_ENABLE_RDMA", "worker, server", "0", kRdmaForm,
       "Whether tensors between hosts move by RDMA (docs/rdma.md). Required: a connection that "
       "cannot use it ends with an error. Upstream's ucx and multivan are taken for auto; fabric "
       "(EFA) is refused.",
       0, 0, nullptr, [](Draft& d, const std::string& v) { d.rdma.policy = v; }},
      {"BYTEPS_RDMA_DEVICE", "worker, server", "that of the connection's interface",
       "names, for example mlx5_0 or mlx5_0,mlx5_1", "Only these RDMA devices are used.", 0, 0,
       nullptr, [](Draft& d, const std::string& v) { d.config.rdma.device = v; }},
      {"BYTEPS_RDMA_PORT", "worker, server", "the one of the connection's interface",
       "port, 1 to 255", "The port of the RDMA device.", 1, 255,
       [](Draft& d, std::uint64_t v) { d.config.rdma.port = static_cast<int>(v); }},
      {"BYTEPS_RDMA_GID_INDEX", "worker, server",
       "the RoCE v2 entry with the connection's own address", "index, 0 to 255",
       "The entry of the port's GID table (show_gids, or bps doctor, lists them).", 0, 255,
       [](Draft& d, std::uint64_t v) { d.config.rdma.gid_index = static_cast<int>(v); }},
      {"BYTEPS_RDMA_TRAFFIC_CLASS", "worker, server", "0", "DSCP * 4 + ECN, 0 to 255",
       "Traffic class of RoCE packets, by which switches choose the lossless queue.", 0, 255,
       [](Draft& d, std::uint64_t v) {
         d.config.rdma.traffic_class = static_cast<std::uint8_t>(v);
       }},
      {"BYTEPS_RDMA_SERVICE_LEVEL", "worker, server", "0", "0 to 15",
       "Service level: on InfiniBand it chooses the virtual lane, on RoCE the VLAN priority.", 0,
       15,
       [](Draft& d, std::uint64_t v) {
         d.config.rdma.service_level = static_cast<std::uint8_t>(v);
       }},
      {"BYTEPS_RDMA_RING_BYTES", "worker, server", "2097152",
       "bytes, 64 KiB to 64 MiB; rounded up to a power of two",
       "Registered memory of a connection: so much to receive into and as much to send from.",
       64 * kKiB, 64 * kMiB,
       [](Draft& d, std::uint64_t v) { d.config.rdma.ring_bytes = std::bit_ceil(v); }},
  };
}

std::vector<Variable> rdma_depth_variables() {
  return {
      {"BYTEPS_RDMA_RX_DEPTH", "worker, server", "512", "work requests, from 1",
       "Messages that may be under way to this side of a connection. Upstream's default is 2048; "
       "values outside of 32 to 16384 are taken for the nearest, with a warning.",
       1, 1 << 20, [](Draft& d, std::uint64_t v) { d.rdma.receive_depth = v; }},
      {"BYTEPS_RDMA_MAX_CONCURR_WR", "worker, server", "256", "work requests, from 1",
       "Messages that may be under way from this side of a connection. Upstream's default is "
       "4224; values outside of 16 to 16384 are taken for the nearest, with a warning.",
       1, 1 << 20, [](Draft& d, std::uint64_t v) { d.rdma.send_depth = v; }},
      {"BYTEPS_RDMA_START_DEPTH", "worker, server", "none", "work requests",
       "Accepted with a warning, without effect: no rendezvous comes before a message.", 0, 1 << 20,
       [](Draft& d, std::uint64_t) {
         d.warn(
             "BYTEPS_RDMA_START_DEPTH",
             "BYTEPS_RDMA_START_DEPTH has no effect: no rendezvous comes before a message; unset "
             "it");
       }},
      {"BYTEPS_PRINT_RDMA_LOG", "worker, server", "0", "0 or 1",
       "Accepted, without effect, 1 with a warning: BYTEPS_LOG_LEVEL=DEBUG says how each "
       "connection goes.",
       0, 1,
       [](Draft& d, std::uint64_t v) {
         if (v == 1) {
           d.warn("BYTEPS_PRINT_RDMA_LOG",
                  "BYTEPS_PRINT_RDMA_LOG=1 has no effect: BYTEPS_LOG_LEVEL=DEBUG says how each "
                  "connection goes");
         }
       }},
  };
}

std::vector<Variable> safety_variables() {
  return {
      {"BYTEPS_FAILURE_TIMEOUT_MS", "all", "3000", "milliseconds, 100 to 3600000",
       "A member that is silent or unreachable for so long is gone, and the job ends with an error "
       "that names it. Everything that waits derives from this. The scheduler's value counts for "
       "the whole job; where "
       "another is set, a warning says so.",
       TimeoutConfig::kFailureMsMin, TimeoutConfig::kFailureMsMax,
       [](Draft& d, std::uint64_t v) {
         d.config.timeout.failure_ns = static_cast<TimeNs>(v) * kMillisecond;
       }},
      {"BYTEPS_START_TIMEOUT_S", "all", "600", "seconds, 1 to 604800",
       "Joining gives up after this and names who is missing.", 1, 604'800,
       [](Draft& d, std::uint64_t v) {
         d.config.timeout.start_ns = static_cast<TimeNs>(v) * kSecond;
       }},
      {"BYTEPS_STALL_TIMEOUT_S", "worker", "0", "seconds, 0 to 604800 (0: without limit)",
       "A worker that waits for something, while nothing has been submitted, answered or ended "
       "there for so long, ends the job and names who waits for what. Without it a job ends only "
       "when it is proven that it cannot go on.",
       0, 604'800,
       [](Draft& d, std::uint64_t v) {
         d.config.timeout.stall_ns = static_cast<TimeNs>(v) * kSecond;
       }},
      {"BYTEPS_RECOVERY", "all, launcher", "1", "0 or 1",
       "1: a server or a scheduler that is lost, or a server that is told to stop, gets a "
       "successor, and no step is lost: a spare server, one that is started in its place, as "
       "bpslaunch does, or another server (docs/recovery.md). 0: the job ends.",
       0, 1, [](Draft& d, std::uint64_t v) { d.config.recovers = v == 1; }},
      {"BYTEPS_RECOVERY_TIMEOUT_S", "all", "60", "seconds, 1 to 604800",
       "So long a process waits for the successor of a server or a scheduler that is lost. Each "
       "goes "
       "by its own value: set it equal everywhere.",
       1, 604'800,
       [](Draft& d, std::uint64_t v) {
         d.config.timeout.recovery_ns = static_cast<TimeNs>(v) * kSecond;
       }},
      {"BYTEPS_ON_WORKER_LOSS", "all, launcher", "fail", "fail or continue",
       "What becomes of a job that loses a worker. fail: it ends. continue (not together with "
       "BYTEPS_RECOVERY=0): it goes on, the "
       "rank is vacant, and sums and averages are of those that are left (docs/recovery.md).",
       0, 0, nullptr, [](Draft& d, const std::string& v) { d.chosen.on_worker_loss = v; }},
      {"BYTEPS_ROLL_CALL", "worker, server", "1", "0 or 1",
       "0: a member does not repeat what the scheduler says about who is missing; bpslaunch sets "
       "it, because it shows what the scheduler itself says.",
       0, 1, [](Draft& d, std::uint64_t v) { d.config.tells_roll_call = v == 1; }},
      {"BYTEPS_JOB_KEY", "all", "none", "text of at least 16 bytes",
       "Secret of the job, equal for all its processes; others are refused. bpslaunch --local "
       "and --hosts make one. A file is better: environments are printed and uploaded.",
       0, 0, nullptr, [](Draft& d, const std::string& v) { d.job_key = v; }},
      {"BYTEPS_JOB_KEY_FILE", "all", "none", "path",
       "A file whose first line is the key; nobody else should be able to read it.", 0, 0, nullptr,
       [](Draft& d, const std::string& v) { d.job_key_file = v; }},
      {"BYTEPS_INSECURE", "all", "0", "0 or 1",
       "1: a job without a key may use the network; whoever reaches its ports may join and read. "
       "0: without a key only loopback is used.",
       0, 1, [](Draft& d, std::uint64_t v) { d.insecure = v == 1; }},
  };
}

std::vector<Variable> message_variables() {
  return {
      {"BYTEPS_FLIGHT_DIR", "all", "byteps-<uid>/flight in TMPDIR or /tmp", "folder",
       "Where a process that ends badly leaves its last events, for bps why. The default folder "
       "keeps the newest 64 files.",
       0, 0, nullptr, [](Draft&, const std::string&) {}},
      {"BYTEPS_FLIGHT_EVENTS", "all", "10000", "events, 0 to 1000000 (0: none, and no file)",
       "How many of its last events a process keeps.", 0, 1'000'000, [](Draft&, std::uint64_t) {}},
      {"BYTEPS_FLIGHT_ALWAYS", "all", "0", "0 or 1",
       "1: a process that ends well leaves its last events, too: what the job has survived.", 0, 1,
       [](Draft&, std::uint64_t) {}},
      {"BYTEPS_LOG_LEVEL", "all", "WARNING", "TRACE, DEBUG, INFO, WARNING, ERROR or FATAL",
       "What is written to standard error.", 0, 0, nullptr, nullptr},
  };
}

std::vector<Variable> trace_variables() {
  constexpr std::uint64_t kStepMax = std::numeric_limits<std::uint32_t>::max();
  return {
      {"BYTEPS_TRACE_ON", "worker, server", "0", "0 or 1",
       "1: record when each part of each tensor passes which stage, for bps trace "
       "(docs/timeline.md).",
       0, 1, [](Draft& d, std::uint64_t v) { d.config.trace.on = v == 1; }},
      {"BYTEPS_TRACE_START_STEP", "worker, server", "10", "step, from 0",
       "The first step that is recorded. The first exchange of a tensor is its step 0.", 0,
       kStepMax,
       [](Draft& d, std::uint64_t v) {
         d.config.trace.first_round = static_cast<std::uint32_t>(v);
       }},
      {"BYTEPS_TRACE_END_STEP", "worker, server", "20", "step, not below the first",
       "The last step that is recorded.", 0, kStepMax,
       [](Draft& d, std::uint64_t v) {
         d.config.trace.last_round = static_cast<std::uint32_t>(v);
       }},
      {"BYTEPS_TRACE_DIR", "worker, server", "./trace", "folder",
       "Where the files go: <local rank>/comm.json of workers, relay-<rank>/comm.json of their "
       "relays, server-<rank>/comm.json of servers.",
       0, 0, nullptr, [](Draft& d, const std::string& v) { d.config.trace.folder = v; }},
  };
}

std::vector<Variable> launcher_variables() {
  return {
      {"BYTEPS_LIBRARY", "Python", "none", "path",
       "The libbyteps.so to load instead of the package's own."},
      {"BYTEPS_BIN", "Python", "none", "folder",
       "Where byteps_server and byteps_scheduler are, instead of the package's own."},
      {"BYTEPS_NUMA_ON", "launcher", "1", "0 or 1",
       "Bind the workers of a machine to its NUMA nodes when it has several, and servers beside "
       "workers to cores of their own (docs/launch.md).",
       0, 1, kNotHere},
      {"BYTEPS_VISIBLE_CPU_CORES", "launcher", "none", "for example 0-3:4-7",
       "Cores per local rank, separated by colons."},
      {"BYTEPS_ATTEMPT", "set by bpslaunch", "none", "from 2",
       "In a process that was started again (docs/recovery.md): the how manieth start this is.", 1,
       1 << 30, kNotHere},
      {"BYTEPS_ENABLE_GDB", "launcher", "0", "0 or 1",
       "Run each process under gdb and print a backtrace when it crashes.", 0, 1, kNotHere},
      {"BYTEPS_COMPRESSION", "worker", "none",
       "none, fp16, bf16, int8, int4, int8:error_feedback, int4:error_feedback or auto",
       "How gradients travel where a script chooses nothing (docs/compression.md): those of "
       "optimizers, trainers, tapes and DistributedDataParallel. The same on all ranks."},
      {"BYTEPS_ALLOW_MOMENTUM_WITH_ERROR_FEEDBACK", "worker", "0", "0 or 1",
       "1: an optimizer may have momentum where onebit, topk or randomk feed back or have momentum "
       "themselves, with which training seldom converges (docs/compression.md).",
       0, 1, kNotHere},
      {"BYTEPS_TELEMETRY_ON", "worker", "1", "0 or 1",
       "Record push_pull speed for get_pushpull_speed().", 0, 1, kNotHere},
  };
}

// What users of upstream, of ps-lite and of Horovod rely on, and what does it here. `form` is whose it is.
constexpr const char* kWarned = "warned";
constexpr const char* kCores = "BYTEPS_VISIBLE_CPU_CORES names the cores of each worker";

Variable without_effect(const char* name, const char* whose, const char* instead) {
  return {name, kWarned, "", whose, instead};
}

std::vector<Variable> replaced_variables() {
  constexpr const char* kUpstream = "BytePS";
  constexpr const char* kShares =
      "tensors are spread over the servers by the rates of their machines' network cards; "
      "BYTEPS_NIC_MBPS tells a rate";
  constexpr const char* kGroups =
      "GPUs are summed in host memory as yet; the plan for NCCL is made of what the machine is "
      "made of (docs/topology.md)";
  constexpr const char* kStages =
      "BYTEPS_TRACE_ON=1 records when each part of each tensor passes which stage";
  return {
      without_effect("BYTEPS_ORDERED_HOSTS", kUpstream,
                     "ranks follow DMLC_WORKER_ID and BYTEPS_LOCAL_RANK, or the lines of bpslaunch "
                     "--hosts"),
      without_effect("BYTEPS_ENABLE_MIXED_MODE", kUpstream, kShares),
      without_effect("BYTEPS_MIXED_MODE_BOUND", kUpstream, kShares),
      without_effect("BYTEPS_KEY_HASH_FN", kUpstream, kShares),
      without_effect("BYTEPS_BUILT_IN_HASH_COEF", kUpstream, kShares),
      without_effect("BYTEPS_THREADPOOL_SIZE", kUpstream,
                     "tensors are coded by the thread that sends them (docs/compression.md)"),
      without_effect("BYTEPS_CPU_BLACKLIST", kUpstream, kCores),
      without_effect("BYTEPS_NUMA_DEFAULT_QUOTA", kUpstream, kCores),
      without_effect("BYTEPS_NUMA_ROOT_QUOTA", kUpstream, kCores),
      without_effect("BYTEPS_NCCL_NUM_RINGS", kUpstream, kGroups),
      without_effect("BYTEPS_NCCL_GROUP_SIZE", kUpstream, kGroups),
      without_effect("BYTEPS_OMP_THREAD_PER_GPU", kUpstream,
                     "each rank's relay adds what it leads, one thread for each (docs/local.md)"),
      without_effect("BYTEPS_DEBUG_SAMPLE_TENSOR", kUpstream, kStages),
      without_effect("BYTEPS_SERVER_DEBUG", kUpstream, kStages),
      without_effect("BYTEPS_SERVER_DEBUG_KEY", kUpstream, kStages),
  };
}

std::vector<Variable> replaced_variables_of_others() {
  constexpr const char* kPsLite = "ps-lite";
  constexpr const char* kHorovod = "Horovod";
  constexpr const char* kFailure =
      "BYTEPS_FAILURE_TIMEOUT_MS says after which silence a member is gone";
  constexpr const char* kRepeats = "what is lost on its way is sent again by itself";
  constexpr const char* kStall =
      "who waits for whom is logged by itself, and a job that cannot go on is ended";
  constexpr const char* kNoFusion =
      "every tensor leaves as soon as it is ready; BYTEPS_PARTITION_BYTES is the size of the parts "
      "of large ones";
  constexpr const char* kPushAlone = "each worker of a machine pushes for itself";
  return {
      without_effect("PS_VERBOSE", kPsLite, "BYTEPS_LOG_LEVEL=DEBUG"),
      without_effect("PS_HEARTBEAT_INTERVAL", kPsLite, kFailure),
      without_effect("PS_HEARTBEAT_TIMEOUT", kPsLite, kFailure),
      without_effect("PS_RESEND", kPsLite, kRepeats),
      without_effect("PS_RESEND_TIMEOUT", kPsLite, kRepeats),
      without_effect("PS_DROP_MSG", kPsLite, "no message is dropped on purpose"),
      without_effect("PS_KEY_LOG", kPsLite, "BYTEPS_TRACE_ON=1 (docs/timeline.md)"),
      without_effect("DMLC_ENABLE_UCX", kPsLite, "DMLC_ENABLE_RDMA=auto (docs/rdma.md)"),
      without_effect("HOROVOD_TIMELINE", kHorovod, "BYTEPS_TRACE_ON=1 (docs/timeline.md)"),
      without_effect("HOROVOD_TIMELINE_MARK_CYCLES", kHorovod,
                     "BYTEPS_TRACE_ON=1 (docs/timeline.md)"),
      without_effect("HOROVOD_AUTOTUNE", kHorovod, "BYTEPS_AUTOTUNE=1 (docs/tuning.md)"),
      without_effect("HOROVOD_AUTOTUNE_LOG", kHorovod, "BYTEPS_AUTOTUNE=1 says what it finds"),
      without_effect("HOROVOD_FUSION_THRESHOLD", kHorovod, kNoFusion),
      without_effect("HOROVOD_CYCLE_TIME", kHorovod, kNoFusion),
      without_effect("HOROVOD_DISABLE_GROUP_FUSION", kHorovod, kNoFusion),
      without_effect("HOROVOD_CACHE_CAPACITY", kHorovod,
                     "a name is declared once, at its first use, and known from then on"),
      without_effect("HOROVOD_HIERARCHICAL_ALLREDUCE", kHorovod, kPushAlone),
      without_effect("HOROVOD_HIERARCHICAL_ALLGATHER", kHorovod, kPushAlone),
      without_effect("HOROVOD_STALL_CHECK_DISABLE", kHorovod, kStall),
      without_effect("HOROVOD_STALL_CHECK_TIME_SECONDS", kHorovod, kStall),
      without_effect("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", kHorovod, kStall),
      without_effect("HOROVOD_ELASTIC", kHorovod,
                     "a job has a fixed size; suspend() and resume() change it"),
      without_effect("HOROVOD_DYNAMIC_PROCESS_SETS", kHorovod,
                     "process sets may be added at any time"),
      without_effect("HOROVOD_NUM_NCCL_STREAMS", kHorovod, "tensors are in host memory"),
      without_effect("HOROVOD_GLOO_IFACE", kHorovod, "DMLC_INTERFACE"),
      without_effect("HOROVOD_GLOO_TIMEOUT_SECONDS", kHorovod, "BYTEPS_START_TIMEOUT_S"),
      without_effect("HOROVOD_THREAD_AFFINITY", kHorovod, kCores),
      without_effect("HOROVOD_LOG_LEVEL", kHorovod, "BYTEPS_LOG_LEVEL"),
  };
}

// Upstream's remaining variables: known, so that no warning is given for a working job script.
std::vector<Variable> upstream_variables() {
  constexpr const char* kNames[] = {
      "BYTEPS_SOCKET_PATH",
      "BYTEPS_LOG_HIDE_TIME",
      "BYTEPS_SERVER_ENGINE_BLOCKING",
      "BYTEPS_SERVER_ENABLE_SCHEDULE",
      "BYTEPS_ZMQ_MAX_SOCKET",
      "BYTEPS_ZMQ_NTHREADS",
      "BYTEPS_MULTITHREADED_CPU",
      "BYTEPS_IPC_COPY_NUM_THREADS",
      "BYTEPS_IPC_ENABLE_ASYNC_COPY",
      "BYTEPS_ADDRESS_POOL_SIZE",
      "BYTEPS_UCX_ERRH_ENABLE",
      "BYTEPS_UCX_RECONNECT_TMO",
      "BYTEPS_UCX_SHORT_THRESH",
      "BYTEPS_UCX_FORCE_REQ_ORDER",
      "BYTEPS_UCX_QUEUE_SENDS",
      "BYTEPS_JOB_ID",
  };
  std::vector<Variable> variables;
  for (const char* name : kNames) variables.push_back({name, "upstream", "", "", kLater});
  return variables;
}

std::vector<Variable> joined(std::vector<Variable> first, const std::vector<Variable>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

std::vector<Section> sections() {
  return {{"The job and its roles", joined(role_variables(), rank_variables())},
          {"How data moves", joined(joined(flow_variables(), sum_variables()), plan_variables())},
          {"RDMA", joined(rdma_variables(), rdma_depth_variables())},
          {"Failure, safety, messages", joined(safety_variables(), message_variables())},
          {"Timeline", trace_variables()},
          {"Launcher and Python", launcher_variables()},
          {"BytePS's variables that other means replace", replaced_variables()},
          {"Other programs' variables that other means replace", replaced_variables_of_others()},
          {"Upstream's other variables", upstream_variables()}};
}

// ---- parsing

// The error of this variable.
Status wrong(const char* variable, std::string text) {
  return {Code::kInvalidArgument,
          std::move(text),
          {.kind = CauseKind::kSettingInvalid, .detail = variable}};
}

Status invalid(const Variable& variable, const std::string& value) {
  return wrong(variable.name, std::string(variable.name) + "='" + value +
                                  "' is not valid: it takes " + variable.form);
}

Status apply(const Variable& variable, const std::string& value, Draft& draft) {
  if (variable.text != nullptr) {
    variable.text(draft, value);
  } else if (variable.number != nullptr) {
    std::uint64_t number = 0;
    const char* end = value.data() + value.size();
    const auto [stop, error] = std::from_chars(value.data(), end, number);
    if (error != std::errc() || stop != end || number < variable.min || number > variable.max)
      return invalid(variable, value);
    variable.number(draft, number);
  } else if (std::string_view(variable.name) == "BYTEPS_LOG_LEVEL") {
    constexpr std::pair<const char*, LogLevel> kLevels[] = {
        {"TRACE", LogLevel::kTrace},     {"DEBUG", LogLevel::kDebug}, {"INFO", LogLevel::kInfo},
        {"WARNING", LogLevel::kWarning}, {"ERROR", LogLevel::kError}, {"FATAL", LogLevel::kSilent}};
    for (const auto& [level_name, level] : kLevels) {
      if (value == level_name) return draft.config.log_level = level, Status::ok();
    }
    return invalid(variable, value);
  }
  return Status::ok();
}

// One line for each that the user relies on. 0 switches off what is not there. Horovod's are for scripts.
void warn_about_replaced(Role role, const Environment& environment,
                         const std::vector<Section>& table, Draft& draft) {
  for (const Section& section : table) {
    for (const Variable& variable : section.variables) {
      if (std::string_view(variable.read_by) != kWarned) continue;
      const auto found = environment.find(variable.name);
      if (found == environment.end() || found->second.empty() || found->second == "0") continue;
      if (role != Role::kWorker && found->first.starts_with("HOROVOD_")) continue;
      draft.warn(found->first, found->first + " has no effect; here: " + variable.meaning);
    }
  }
}

// What Kubernetes tells the containers of a namespace about its services, under the names of those: BYTEPS_SERVER_PORT
// comes from a service "byteps-server".
bool is_service_link(std::string_view name, std::string_view value) {
  if (name.ends_with("_SERVICE_HOST") || name.ends_with("_SERVICE_PORT") ||
      name.find("_SERVICE_PORT_") != std::string_view::npos)
    return true;
  const std::size_t scheme = value.find("://");
  if (name.ends_with("_PORT") && scheme != std::string_view::npos) return true;
  const std::size_t port = name.rfind("_PORT_");
  if (port == std::string_view::npos) return false;
  const std::string_view rest = name.substr(port + 6);
  const std::size_t digits = std::min(rest.find_first_not_of("0123456789"), rest.size());
  const std::string_view protocol = rest.substr(digits);
  return digits > 0 && (protocol.starts_with("_TCP") || protocol.starts_with("_UDP") ||
                        protocol.starts_with("_SCTP"));
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row[b.size()];
}

void warn_about_unknown(const Environment& environment, const std::vector<Section>& table,
                        Draft& draft) {
  for (const auto& [name, value] : environment) {
    if (!name.starts_with("BYTEPS_")) continue;  // DMLC_* and PS_* belong to other tools as well
    if (is_service_link(name, value)) continue;
    std::string_view nearest;
    std::size_t nearest_distance = std::numeric_limits<std::size_t>::max();
    for (const Section& section : table) {
      for (const Variable& variable : section.variables) {
        const std::size_t distance = edit_distance(name, variable.name);
        if (distance < nearest_distance) nearest_distance = distance, nearest = variable.name;
      }
    }
    if (nearest_distance == 0) continue;
    std::string line = "unknown variable " + name + " is ignored";
    if (nearest_distance <= 4) line.append("; did you mean ").append(nearest).append("?");
    draft.warn(name, std::move(line), SettingWarning::Kind::kUnknown);
  }
}

// ---- bringing it together

Status missing(const char* name, const std::string& remedy) {
  return {Code::kInvalidArgument,
          std::string(name) + " is missing: " + remedy,
          {.kind = CauseKind::kSettingMissing, .detail = name}};
}

constexpr const char* kMakeKey =
    "make one, the same for all processes: (umask 077; openssl rand -hex 16 > job.key), then set "
    "BYTEPS_JOB_KEY_FILE to that file";

Status unfit_key(std::string_view variable, std::string text) {
  return {Code::kInvalidArgument,
          std::move(text),
          {.kind = CauseKind::kJobKey, .detail = std::string(variable)}};
}

void warn_about_readers(const std::string& path, Draft& draft) {
  struct stat file {};
  if (stat(path.c_str(), &file) != 0 || (file.st_mode & (S_IRWXG | S_IRWXO)) == 0) return;
  draft.warn(path, "other users may read the job key: chmod 600 " + path,
             SettingWarning::Kind::kReadableKey);
}

Status take_job_key(Draft& draft) {
  std::string key = draft.job_key;
  if (key.empty() && !draft.job_key_file.empty()) warn_about_readers(draft.job_key_file, draft);
  if (key.empty() && !draft.job_key_file.empty()) {
    std::ifstream file(draft.job_key_file);
    std::getline(file, key);
    if (!file && key.empty()) {
      return unfit_key("BYTEPS_JOB_KEY_FILE", "BYTEPS_JOB_KEY_FILE='" + draft.job_key_file +
                                                  "' cannot be read or is empty; " + kMakeKey);
    }
  }
  draft.config.job.loopback_only = key.empty() && !draft.insecure;
  if (key.empty()) return Status::ok();
  constexpr std::size_t kKeyBytesMin = 16;
  if (key.size() < kKeyBytesMin) {
    return unfit_key("BYTEPS_JOB_KEY", "the job key (BYTEPS_JOB_KEY or BYTEPS_JOB_KEY_FILE) has " +
                                           std::to_string(key.size()) +
                                           " bytes: it needs at least 16; " + kMakeKey);
  }
  draft.config.job.key = JobKey(key);
  draft.config.job.job_id = auth::job_id_of(draft.config.job.key);
  return Status::ok();
}

// A job without a key is for this machine only, unless it is said that the network is safe.
Status check_reach(Draft& draft) {
  const JobConfig& job = draft.config.job;
  if (job.loopback_only) {
    if (!is_loopback(job.scheduler_host)) return needs_key("DMLC_PS_ROOT_URI", job.scheduler_host);
    if (!job.advertise_host.empty() && !is_loopback(job.advertise_host)) {
      return needs_key("DMLC_NODE_HOST", job.advertise_host);
    }
  } else if (draft.insecure && draft.job_key.empty() && draft.job_key_file.empty()) {
    draft.warn(
        "BYTEPS_INSECURE",
        "BYTEPS_INSECURE=1 and no job key: whoever reaches the ports of this job may join it, read "
        "and change what it sums");
  }
  return Status::ok();
}

// Upstream's other networks: what their users want is RDMA where there is some.
Status take_rdma_policy(Draft& draft) {
  RdmaPolicy& policy = draft.config.rdma.policy;
  const std::string& said = draft.rdma.policy;
  if (said.empty() || said == "0" || said == "zmq") return policy = RdmaPolicy::kOff, Status::ok();
  if (said == "auto") return policy = RdmaPolicy::kAuto, Status::ok();
  if (said == "ibverbs") return policy = RdmaPolicy::kRequired, Status::ok();
  if (said == "1") {
    draft.warn("DMLC_ENABLE_RDMA", "DMLC_ENABLE_RDMA=1 is deprecated: say ibverbs, or auto");
    return policy = RdmaPolicy::kRequired, Status::ok();
  }
  if (said == "ucx" || said == "multivan") {
    draft.warn("DMLC_ENABLE_RDMA",
               "DMLC_ENABLE_RDMA=" + said +
                   " is not in this version: taken for auto, which uses RDMA where both ends of a "
                   "connection can, and TCP elsewhere");
    return policy = RdmaPolicy::kAuto, Status::ok();
  }
  if (said == "fabric") {
    return {Code::kUnsupported,
            "DMLC_ENABLE_RDMA=fabric: EFA (libfabric) is not in this version; set it to 0, and "
            "tensors go over TCP",
            {.kind = CauseKind::kSettingInvalid, .detail = "DMLC_ENABLE_RDMA"}};
  }
  return wrong("DMLC_ENABLE_RDMA",
               "DMLC_ENABLE_RDMA='" + said + "' is not valid: it takes " + kRdmaForm);
}

void take_rdma_depth(const char* name, std::optional<std::uint64_t> said, std::uint32_t min,
                     std::uint32_t& depth, Draft& draft) {
  if (!said) return;
  depth = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(*said, min, RdmaConfig::kDepthMax));
  if (depth != *said) {
    draft.warn(name, std::string(name) + "=" + std::to_string(*said) + " is taken for " +
                         std::to_string(depth) + ", the nearest that a connection may have");
  }
}

Status take_rdma(Draft& draft) {
  RdmaConfig& rdma = draft.config.rdma;
  take_rdma_depth("BYTEPS_RDMA_RX_DEPTH", draft.rdma.receive_depth, RdmaConfig::kReceiveDepthMin,
                  rdma.receive_depth, draft);
  take_rdma_depth("BYTEPS_RDMA_MAX_CONCURR_WR", draft.rdma.send_depth, RdmaConfig::kSendDepthMin,
                  rdma.send_depth, draft);
  return take_rdma_policy(draft);
}

Status take_worker_loss(Draft& draft) {
  const std::string& said = draft.chosen.on_worker_loss;
  if (said != "fail" && said != "continue") {
    return wrong("BYTEPS_ON_WORKER_LOSS",
                 "BYTEPS_ON_WORKER_LOSS='" + said + "' is not valid: it takes fail or continue");
  }
  draft.config.continues = said == "continue";
  if (draft.config.continues && !draft.config.recovers) {
    return wrong("BYTEPS_ON_WORKER_LOSS",
                 "BYTEPS_ON_WORKER_LOSS=continue and BYTEPS_RECOVERY=0 exclude each other: "
                 "without recovery a job ends with any of its processes");
  }
  return Status::ok();
}

Status finish_scheduler_address(Role role, Draft& draft) {
  JobConfig& job = draft.config.job;
  if (job.scheduler_host.empty()) {
    return missing(
        "DMLC_PS_ROOT_URI",
        "set it to the address of the machine that runs the scheduler, for example 10.0.0.1");
  }
  if (Status status = check_reach(draft); !status.is_ok()) return status;
  if (!draft.scheduler_port || (*draft.scheduler_port == 0 && role != Role::kScheduler)) {
    return missing(
        "DMLC_PS_ROOT_PORT",
        "set it to the scheduler's TCP port, for example 9000, equal for all processes of the job");
  }
  job.scheduler_port = static_cast<std::uint16_t>(*draft.scheduler_port);
  return Status::ok();
}

// A worker that nobody gives a job: whether it may be alone.
Status check_alone(const Draft& draft, const Environment& environment, std::string_view command) {
  if (draft.machine_count || draft.global_size) return Status::ok();
  if (!draft.config.job.scheduler_host.empty()) {
    return missing("DMLC_NUM_WORKER",
                   "set it to the number of worker machines of the job whose scheduler is at "
                   "DMLC_PS_ROOT_URI");
  }
  if (!draft.engine.empty()) return Status::ok();
  const std::optional<Launch> launch = launch_of(environment);
  if (!launch || launch->size == 1) return Status::ok();
  return {Code::kInvalidArgument,
          launch_refusal(*launch, command),
          {.kind = CauseKind::kSettingMissing}};
}

Result<std::uint32_t> worker_count(const Draft& draft, std::uint64_t machines) {
  const std::uint64_t local_size = draft.config.job.local.size;
  const std::uint64_t size = draft.global_size.value_or(machines * local_size);
  if (size <= kWorkersMax) return static_cast<std::uint32_t>(size);
  return wrong("DMLC_NUM_WORKER",
               "DMLC_NUM_WORKER=" + std::to_string(machines) + " machines with BYTEPS_LOCAL_SIZE=" +
                   std::to_string(local_size) + " workers each are " + std::to_string(size) +
                   " workers; a job has at most " + std::to_string(kWorkersMax));
}

Status finish_worker(Draft& draft, const Environment& environment, std::string_view command) {
  JobConfig& job = draft.config.job;
  const std::uint64_t machines = draft.machine_count.value_or(1);
  const Result<std::uint32_t> counted = worker_count(draft, machines);
  if (!counted.is_ok()) return counted.status();
  const std::uint64_t size = counted.value();
  if (job.local.rank >= job.local.size) {
    return wrong("BYTEPS_LOCAL_RANK",
                 "BYTEPS_LOCAL_RANK=" + std::to_string(job.local.rank) +
                     " must be below BYTEPS_LOCAL_SIZE=" + std::to_string(job.local.size));
  }
  if (draft.chosen.local_reduce != "auto" && draft.chosen.local_reduce != "0") {
    return wrong("BYTEPS_LOCAL_REDUCE", "BYTEPS_LOCAL_REDUCE='" + draft.chosen.local_reduce +
                                            "' is not valid: it takes auto or 0");
  }
  job.sums.locally = draft.chosen.local_reduce == "auto";
  job.sums.needs_servers = draft.force_distributed;
  if (size == 1 && !draft.force_distributed) {
    if (Status status = check_alone(draft, environment, command); !status.is_ok()) return status;
    job.scheduler_host.clear();
    job.worker_count = 1;
    return Status::ok();
  }
  if (!draft.machine_index && machines > 1) {
    return missing("DMLC_WORKER_ID", "set it to this machine's index, 0 to " +
                                         std::to_string(machines - 1) + " (DMLC_NUM_WORKER is " +
                                         std::to_string(machines) + ")");
  }
  if (draft.machine_index.value_or(0) >= machines) {
    return wrong("DMLC_WORKER_ID",
                 "DMLC_WORKER_ID=" + std::to_string(*draft.machine_index) +
                     " must be below DMLC_NUM_WORKER=" + std::to_string(machines));
  }
  const std::uint64_t rank =
      draft.global_rank.value_or(draft.machine_index.value_or(0) * job.local.size + job.local.rank);
  if (rank >= size) {
    return wrong("BYTEPS_GLOBAL_RANK",
                 "BYTEPS_GLOBAL_RANK=" + std::to_string(rank) +
                     " must be below the number of workers, " + std::to_string(size) +
                     " (BYTEPS_GLOBAL_SIZE, or DMLC_NUM_WORKER * BYTEPS_LOCAL_SIZE)");
  }
  if (!draft.server_count) {
    return missing(
        "DMLC_NUM_SERVER",
        "set it to the number of server processes of the job; 0 where all workers are on "
        "one machine");
  }
  job.rank = static_cast<std::uint32_t>(rank);
  job.machine_index = static_cast<std::uint32_t>(draft.machine_index.value_or(0));
  job.worker_count = static_cast<std::uint32_t>(size);
  return finish_scheduler_address(Role::kWorker, draft);
}

Status finish_server_or_scheduler(Role role, Draft& draft) {
  JobConfig& job = draft.config.job;
  if (!draft.machine_count)
    return missing("DMLC_NUM_WORKER", "set it to the number of worker machines, at least 1");
  if (!draft.server_count || (role == Role::kServer && *draft.server_count == 0))
    return missing("DMLC_NUM_SERVER", "set it to the number of server processes, at least 1");
  const Result<std::uint32_t> size = worker_count(draft, *draft.machine_count);
  if (!size.is_ok()) return size.status();
  job.worker_count = size.value();
  return finish_scheduler_address(role, draft);
}

// "eth0,eth1"
Status take_interfaces(Draft& draft) {
  if (draft.chosen.interfaces.empty()) return Status::ok();
  const auto refuse = [&](const std::string& why) {
    return wrong("DMLC_INTERFACE", "DMLC_INTERFACE='" + draft.chosen.interfaces +
                                       "' is not valid: " + why + "; it takes " + kInterfaceForm);
  };
  std::istringstream names(draft.chosen.interfaces + ",");
  for (std::string name; std::getline(names, name, ',');) {
    std::vector<std::string>& known = draft.interfaces;
    if (name.empty()) return refuse("it has an empty name");
    if (std::find(known.begin(), known.end(), name) != known.end()) {
      return refuse("it names " + name + " twice");
    }
    known.push_back(name);
  }
  if (draft.interfaces.size() > kInterfacesMax) {
    return refuse("these are more than " + std::to_string(kInterfacesMax));
  }
  return Status::ok();
}

// "2,3"
Status take_reduce_roots(Draft& draft) {
  std::string_view rest = draft.chosen.reduce_roots;
  std::vector<std::uint32_t>& roots = draft.config.device.reduce_roots;
  while (!rest.empty()) {
    std::uint32_t root = 0;
    const auto [stop, error] = std::from_chars(rest.data(), rest.data() + rest.size(), root);
    rest.remove_prefix(static_cast<std::size_t>(stop - rest.data()));
    const bool is_last = rest.empty();
    if (error != std::errc() || root >= kWorkersMax || (!is_last && rest.front() != ',') ||
        rest == ",") {
      return wrong("BYTEPS_REDUCE_ROOTS",
                   "BYTEPS_REDUCE_ROOTS='" + draft.chosen.reduce_roots +
                       "' is not valid: it takes local ranks, for example 2,3");
    }
    roots.push_back(root);
    if (!is_last) rest.remove_prefix(1);
  }
  return Status::ok();
}

}  // namespace

const char* name(SettingWarning::Kind kind) {
  switch (kind) {
    case SettingWarning::Kind::kOther:
      return "other";
    case SettingWarning::Kind::kUnknown:
      return "unknown";
    case SettingWarning::Kind::kReadableKey:
      return "readable_key";
  }
  return "other";
}

bool is_loopback(std::string_view host) {
  return host.starts_with("127.") || host == "::1" || host == "localhost";
}

Status needs_key(std::string_view name, std::string_view host) {
  return unfit_key(name, std::string(name) + "='" + std::string(host) +
                             "' is not a loopback address, and the job has no key: " + kMakeKey +
                             "; or set BYTEPS_INSECURE=1 if everyone who can reach these "
                             "machines is trusted");
}

Environment process_environment() {
  Environment environment;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view name = text.substr(0, equals);
    const bool is_read = name.starts_with("DMLC_") || name.starts_with("BYTEPS_") ||
                         name.starts_with("PS_") || name.starts_with("HOROVOD_") ||
                         name == kVisibleDevices || tells_of_launch(name);
    if (is_read) environment.emplace(name, text.substr(equals + 1));
  }
  return environment;
}

Result<Environment> with_settings(Environment base, std::string_view settings) {
  std::istringstream lines{std::string(settings)};
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) continue;
    const std::size_t equals = line.find('=');
    if (equals == std::string::npos || equals == 0) {
      return Status(Code::kInvalidArgument, "setting '" + line + "' is not of the form NAME=value",
                    {.kind = CauseKind::kSettingInvalid});
    }
    base[line.substr(0, equals)] = line.substr(equals + 1);
  }
  return base;
}

Result<ParsedEnvironment> parse_environment(Role role, const Environment& environment,
                                            std::string_view command) {
  const std::vector<Section> table = sections();
  Draft draft;
  if (role == Role::kWorker) draft.config.flow.shared_ring_bytes = FlowConfig::kRelayRingBytes;
  for (const Section& section : table) {
    for (const Variable& variable : section.variables) {
      const auto found = environment.find(variable.name);
      if (found == environment.end() || found->second.empty()) continue;
      if (Status status = apply(variable, found->second, draft); !status.is_ok()) return status;
    }
  }
  warn_about_unknown(environment, table, draft);
  warn_about_replaced(role, environment, table, draft);
  if (!draft.role.empty() && draft.role != name(role)) {
    return wrong("DMLC_ROLE",
                 "DMLC_ROLE='" + draft.role + "', but this process is a " + name(role));
  }
  if (!draft.engine.empty() && draft.engine != "none") {
    return wrong("BYTEPS_ENGINE",
                 "BYTEPS_ENGINE='" + draft.engine + "' is not valid: it takes none, or is unset");
  }
  if (draft.async) {
    return Status(Code::kUnsupported,
                  "BYTEPS_ENABLE_ASYNC=1: asynchronous training is not in this version; unset it",
                  {.kind = CauseKind::kSettingInvalid, .detail = "BYTEPS_ENABLE_ASYNC"});
  }
  if (draft.scheduling_credit) {
    draft.config.flow.priority_scheduling = *draft.scheduling_credit > 0;
    if (*draft.scheduling_credit > 0) {
      draft.config.flow.credit_bytes = *draft.scheduling_credit * draft.config.flow.partition_bytes;
    }
  }
  const TraceConfig& trace = draft.config.trace;
  if (trace.on && trace.last_round < trace.first_round) {
    return wrong("BYTEPS_TRACE_END_STEP",
                 "BYTEPS_TRACE_END_STEP=" + std::to_string(trace.last_round) +
                     " is below BYTEPS_TRACE_START_STEP=" + std::to_string(trace.first_round) +
                     ": nothing would be recorded");
  }
  if (!draft.shared_memory) draft.config.flow.shared_ring_bytes = 0;
  draft.config.job.server_count = static_cast<std::uint32_t>(draft.server_count.value_or(0));
  if (Status status = take_rdma(draft); !status.is_ok()) return status;
  if (Status status = take_worker_loss(draft); !status.is_ok()) return status;
  if (Status status = take_reduce_roots(draft); !status.is_ok()) return status;
  if (Status status = take_interfaces(draft); !status.is_ok()) return status;
  if (Status status = take_job_key(draft); !status.is_ok()) return status;
  const Status status = role == Role::kWorker ? finish_worker(draft, environment, command)
                                              : finish_server_or_scheduler(role, draft);
  if (!status.is_ok()) return status;
  return ParsedEnvironment{draft.config, draft.interfaces, std::move(draft.warnings)};
}

std::string environment_reference() {
  std::ostringstream out;
  out << "# Environment variables\n\nGenerated from the table in `src/app/env.cc` by `make docs`; "
         "a test keeps the two equal.\n"
         "A malformed value ends the process with an error that names the variable and the "
         "accepted form (exit code 2).\n"
         "An unknown `BYTEPS_*` variable gives a warning, unless it looks like what Kubernetes "
         "tells of a service.\n";
  for (const Section& section : sections()) {
    out << "\n## " << section.title << "\n\n";
    if (std::string_view(section.variables.front().read_by) == "upstream") {
      out << "Known so that existing job scripts run without warnings; " << kLater << ":\n\n";
      for (const Variable& variable : section.variables) out << "- `" << variable.name << "`\n";
      continue;
    }
    if (std::string_view(section.variables.front().read_by) == kWarned) {
      out << "Without effect, and a warning says so unless the value is 0:\n\n"
             "| variable | of | instead |\n|---|---|---|\n";
      for (const Variable& v : section.variables)
        out << "| `" << v.name << "` | " << v.form << " | " << v.meaning << " |\n";
      continue;
    }
    out << "| variable | read by | default | form | meaning |\n|---|---|---|---|---|\n";
    for (const Variable& v : section.variables) {
      out << "| `" << v.name << "` | " << v.read_by << " | " << v.default_text << " | " << v.form
          << " | " << v.meaning << " |\n";
    }
  }
  return out.str();
}

}  // namespace byteps
