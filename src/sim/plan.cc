#include "sim/plan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <span>
#include <sstream>
#include <utility>

#include "device/slabs.h"
#include "net/wire.h"

namespace byteps::sim {
namespace {

constexpr std::uint64_t kFramesPerTensorMax = 48;

// How many workers are there.
std::uint64_t count_on(const WorldPlan& plan, HostIndex host) {
  return static_cast<std::uint64_t>(
      std::count(plan.worker_hosts.begin(), plan.worker_hosts.end(), host));
}

// Slabs are whole pages, and parts seldom more than one: so pools of no part, of one, of some and of all.
SimDeviceOptions any_gpu(Prng& prng) {
  SimDeviceOptions gpu;
  const std::array<std::size_t, 5> pages = {0, 1, 2, 5, 500};
  const std::array<std::size_t, 4> chunks = {1, 200, 1000, 1 << 20};
  const std::array<std::uint64_t, 3> rates = {50'000'000, 1'000'000'000, 0};
  const std::array<TimeNs, 3> latencies = {0, 10 * kMicrosecond, 200 * kMicrosecond};
  gpu.pool_bytes = pages[prng.below(pages.size())] * device::kSlabAlignment;
  gpu.chunk_bytes = chunks[prng.below(chunks.size())];
  gpu.bytes_per_second = rates[prng.below(rates.size())];
  gpu.latency_ns = latencies[prng.below(latencies.size())];
  return gpu;
}

// Of one of four devices, two behind each switch, as machines that are alike have them: often another worker has the
// same one, on this machine or another. Half of them are on a bus of which no bridge is seen.
topology::Place any_place(Prng& prng) {
  const auto number = static_cast<std::uint8_t>(prng.below(4));
  const auto bus = static_cast<std::uint8_t>(16 * (1 + number / 2));
  topology::Place place;
  place.device_node = static_cast<std::int16_t>(number / 2);
  if (prng.chance(0.5)) {
    place.device = {{{.domain = 0, .bus = bus, .slot = 0}, 126'030},
                    {{.domain = 0, .bus = bus, .slot = 8}, 126'030},
                    {{.domain = 0, .bus = bus, .slot = 16}, 0}};
  }
  const auto slot = static_cast<std::uint8_t>(24 + number);
  place.device.push_back({{.domain = 0, .bus = bus, .slot = slot}, 126'030});
  if (prng.chance(0.3)) place.peers = {{{.domain = 9, .bus = 0, .slot = 0}, 6}};
  if (prng.chance(0.5)) {
    place.card = {{{.domain = 1, .bus = bus, .slot = 0}, 0}};
    place.card_mbps = 100'000;
  }
  return place;
}

// What some say of their devices, whether they have one here or not: nothing follows from it yet.
void choose_places(WorldPlan& plan, std::uint32_t worker_count, Prng& prng) {
  if (prng.chance(0.5)) return;
  for (std::uint32_t rank = 0; rank < worker_count; ++rank) {
    const topology::Place place = any_place(prng);
    plan.worker_places.push_back(prng.chance(0.2) ? topology::Place() : place);
  }
}

// Lines are first in, first out, or take turns: always the latter where they may become slow, for a heartbeat has to
// come in time there (choose_slowness).
void choose_queues(WorldPlan& plan, Prng& prng) {
  SimNetworkOptions& network = plan.cluster.network;
  network.at_sender = network.at_receiver = 1;
  if (prng.chance(0.5) || plan.faults.kinds.has(Fault::kSlow)) return;
  network.at_sender = 1 + prng.below(4);
  network.at_receiver = 64;
}

// Some tensors are waited for before others are submitted, by those who wait at all: whoever submits has all of a round
// on its way by then that others wait for, behind what these do not wait for.
void choose_early(GenerationPlan& generation, Prng& prng) {
  for (TensorPlan& tensor : generation.tensors) tensor.is_early = prng.chance(0.5);
  for (WorkerPlan& worker : generation.workers) {
    std::vector<StepPlan> steps;
    std::size_t behind = 0;  // where the wait belongs; 0: this round has nothing early
    for (const StepPlan& step : worker.steps) {
      steps.push_back(step);
      if (step.kind == StepPlan::Kind::kSubmit && generation.tensors[step.tensor].is_early) {
        behind = steps.size();
      }
      if (step.kind != StepPlan::Kind::kWait || behind == 0) continue;
      steps.insert(steps.begin() + static_cast<std::ptrdiff_t>(behind),
                   {.kind = StepPlan::Kind::kWaitEarly});
      behind = 0;
    }
    worker.steps = std::move(steps);
  }
}

// Floats that another order of the same contributions would sum to other bits.
void suit_losses(TensorFacts& facts, Prng& prng) {
  const bool is_sum = facts.operation == Operation::kSum || facts.operation == Operation::kAverage;
  if (!is_sum || facts.unit != 1 || prng.chance(0.4)) return;
  facts.element_count = facts.bytes() / element_bytes(DType::kFloat32);
  facts.dtype = DType::kFloat32;
  facts.is_inexact = true;
}

Codec codec_of(Format format, Prng& prng) {
  Codec codec;
  if (format == Format::kTopk || format == Format::kRandomk) {
    codec.k = prng.chance(0.5) ? 0.01 + 0.49 * static_cast<double>(prng.below(100)) / 100
                               : static_cast<double>(1 + prng.below(2000));
  }
  codec.scaling = format == Format::kOnebit && prng.chance(0.7);
  if (format == Format::kDithering) {
    codec.natural = prng.chance(0.5);
    codec.k = static_cast<double>(1 + prng.below(codec.natural ? 24 : 300));
    codec.l2 = prng.chance(0.3);
  }
  if ((format == Format::kDithering || format == Format::kRandomk) && prng.chance(0.5)) {
    codec.seed = prng.below(3);
  }
  // Where a code may be beyond what it is of by a multiple, residuals grow without end.
  codec.error_feedback = format != Format::kFloat32 && !codec.l2 && prng.chance(0.6);
  if (prng.chance(0.4)) codec.momentum = 0.5;
  return codec;
}

// By which all of them have other codes, or some of them another meaning.
void make_odd_in_codec(Codec& codec, Prng& prng) {
  if (codec.k != 0 && prng.chance(0.5)) {
    codec.k = codec.k < 1 ? codec.k / 2 : codec.k + (codec.k > 1 ? -1 : 1);
  } else if (codec.momentum && prng.chance(0.5)) {
    codec.momentum = 0.25;
  } else {
    codec.momentum = codec.momentum ? std::nullopt : std::optional(0.5);
  }
}

// Its elements travel coded. What all must have is what the codes say, so the sum is one of several.
void choose_format(TensorPlan& tensor, Prng& prng) {
  TensorFacts& facts = tensor.facts;
  const bool is_sum = facts.operation == Operation::kSum || facts.operation == Operation::kAverage;
  if (!is_sum || facts.unit != 1 || prng.chance(0.3)) return;
  facts.element_count = facts.bytes() / element_bytes(DType::kFloat32);
  facts.dtype = DType::kFloat32;
  facts.is_inexact = true;
  const int first = static_cast<int>(tensor.odd_rank ? Format::kOnebit : Format::kFloat16);
  facts.format = static_cast<Format>(first + static_cast<int>(prng.below(kFormatCount - first)));
  if (has_codec(facts.format)) facts.codec = codec_of(facts.format, prng);
  if (tensor.odd_rank) {
    tensor.odd_facts = facts;
    make_odd_in_codec(tensor.odd_facts.codec, prng);
  }
  if (has_codec(facts.format)) return;
  tensor.feeds_back = has_residual(facts.format) && prng.chance(0.7);
}

// Who is lost is in some sums and not in others, so that these are not what all together would have.
void suit_vacancies(TensorPlan& tensor) {
  tensor.odd_rank.reset();
  if (tensor.facts.unit != 1) tensor.facts.scale = 1;
  tensor.facts.unit = 1;
  const bool divides = tensor.facts.operation == Operation::kAverage;
  if (divides && tensor.facts.dtype != DType::kFloat32) tensor.facts.operation = Operation::kSum;
  if (divides && tensor.facts.dtype == DType::kFloat32) tensor.facts.is_inexact = true;
}

// Servers and the scheduler are lost, but not where a loss may end the job.
void choose_losses(WorldPlan& plan, Prng& prng) {
  Faults& kinds = plan.faults.kinds;
  if (kinds.has_deadly()) {
    for (const Fault fault : {Fault::kLostServer, Fault::kDrain, Fault::kAdopt,
                              Fault::kLostScheduler, Fault::kLostWorker}) {
      kinds.remove(fault);
    }
  }
  // Where they may be lost, answers are counted: each comes once on its connection, as transports promise (T1).
  if (!kinds.has(Fault::kLostServer) && !kinds.has(Fault::kDrain) &&
      !kinds.has(Fault::kLostScheduler) && !kinds.has(Fault::kLostWorker)) {
    plan.config.recovers = !kinds.has_deadly() && !kinds.has(Fault::kRepeat) && prng.chance(0.5);
    return;
  }
  kinds.remove(Fault::kRepeat);
  plan.cluster.network.chances.repeat = 0;
  if (kinds.has(Fault::kAdopt)) plan.stay_away = 1;
  const TimeNs failure_ns = plan.config.timeout.failure_ns;
  plan.config.recovers = true;
  plan.config.timeout.recovery_ns = 40 * failure_ns;
  plan.restart_max_ns = failure_ns / (prng.chance(0.5) ? 1 : 50);
  // Often enough that the next is lost before all know of the successor.
  if (prng.chance(0.5)) plan.faults.gap_ns = std::min(plan.faults.gap_ns, failure_ns / 20);
  for (GenerationPlan& generation : plan.generations) {
    for (TensorPlan& tensor : generation.tensors) {
      if (!tensor.odd_rank) suit_losses(tensor.facts, prng);
      if (kinds.has(Fault::kLostWorker)) suit_vacancies(tensor);
    }
  }
  plan.config.continues = kinds.has(Fault::kLostWorker);
}

class Planner {
 public:
  // What was added later is drawn from a generator of its own, so that earlier seeds stay what they are.
  Planner(const PlanOptions& options, Prng prng)
      : options_(options),
        prng_(prng),
        later_prng_(stable_mix(prng.next())),
        hosts_prng_(stable_mix(prng.next())),
        gpus_prng_(stable_mix(prng.next())),
        losses_prng_(stable_mix(prng.next())),
        formats_prng_(stable_mix(prng.next())),
        places_prng_(stable_mix(prng.next())) {}

  WorldPlan plan() {
    worker_count_ = options_.worker_count.value_or(1 + below(5));
    server_count_ = options_.server_count.value_or(1 + below(3));
    choose_config();
    choose_hosts();
    choose_network();
    choose_faults();
    plan_.scheduler_start_ns = start_time();
    for (std::uint32_t i = 0; i < server_count_; ++i) {
      plan_.shard_counts.push_back(1 + below(3));
      plan_.server_start_ns.push_back(start_time());
    }
    const std::uint32_t generation_count = chance(0.25) ? 2 : 1;
    // Whoever comes back is waited for as long as ever, whatever makes it late.
    if (generation_count > 1) {
      plan_.faults.kinds.remove(Fault::kLookUp);
      plan_.cluster.network.chances.late_look_up = 0;
    }
    for (std::uint32_t i = 0; i < generation_count; ++i) choose_generation(i);
    plan_.check_memory = chance(0.5);
    for (std::byte& byte : plan_.config.job.incarnation) {
      byte = static_cast<std::byte>(later_prng_.below(256));
    }
    if (!options_.faults && later_prng_.chance(0.1)) plan_.faults.kinds.add(Fault::kFormerJob);
    choose_slowness();
    choose_queues(plan_, later_prng_);
    choose_gpus();
    choose_places(plan_, worker_count_, places_prng_);
    for (GenerationPlan& generation : plan_.generations) {
      if (!generation.uneven && later_prng_.chance(0.2)) choose_early(generation, later_prng_);
    }
    if (!options_.faults && losses_prng_.chance(0.3) && !plan_.faults.kinds.empty()) {
      plan_.faults.kinds.add(Fault::kLostServer);
      if (losses_prng_.chance(0.4)) plan_.faults.kinds.add(Fault::kDrain);
      if (losses_prng_.chance(0.4)) plan_.faults.kinds.add(Fault::kAdopt);
    }
    if (!options_.faults && losses_prng_.chance(0.15) && !plan_.faults.kinds.empty()) {
      plan_.faults.kinds.add(Fault::kLostScheduler);
    }
    if (!options_.faults && losses_prng_.chance(0.15) && !plan_.faults.kinds.empty()) {
      plan_.faults.kinds.add(Fault::kLostWorker);
    }
    choose_losses(plan_, losses_prng_);
    for (GenerationPlan& generation : plan_.generations) {
      for (TensorPlan& tensor : generation.tensors) {
        if (options_.has_formats) choose_format(tensor, formats_prng_);
      }
    }
    set_limit();
    return std::move(plan_);
  }

 private:
  std::uint32_t below(std::uint64_t bound) {
    return static_cast<std::uint32_t>(prng_.below(bound));
  }
  bool chance(double probability) { return prng_.chance(probability); }
  TimeNs up_to(TimeNs most) {
    return static_cast<TimeNs>(prng_.below(static_cast<std::uint64_t>(most) + 1));
  }
  template <typename T, std::size_t n>
  T one_of(const std::array<T, n>& choices) {
    return choices[prng_.below(n)];
  }

  TimeNs start_time() {
    return chance(0.3) ? 0 : up_to(chance(0.1) ? 12 * kSecond : 300 * kMillisecond);
  }

  void choose_config() {
    Config& config = plan_.config;
    config.job.scheduler_host = SchedulerProcess::endpoint().host;
    config.job.scheduler_port = SchedulerProcess::endpoint().port;
    config.job.job_id.fill(std::byte{0x42});
    config.job.worker_count = worker_count_;
    config.job.server_count = server_count_;
    config.timeout.failure_ns = one_of<TimeNs, 3>({300 * kMillisecond, kSecond, 3 * kSecond});
    config.timeout.start_ns = 40 * kSecond;  // starts are up to 12 s apart
    config.timeout.wanted_ns =
        one_of<TimeNs, 4>({200 * kMicrosecond, kMillisecond, 5 * kMillisecond, 20 * kMillisecond});
    config.deterministic = chance(0.3);
    config.log_level = LogLevel::kInfo;
  }

  // Mostly neighbours share a host, as a launcher numbers them.
  void choose_hosts() {
    std::vector<HostIndex>& hosts = plan_.worker_hosts;
    std::vector<std::uint64_t>& machines = plan_.worker_machines;
    Prng& prng = hosts_prng_;
    const bool lot = prng.chance(0.3);
    const bool are_shared = worker_count_ > 1 && (options_.hosts == Hosts::kShared ||
                                                  (options_.hosts == Hosts::kBySeed && lot));
    for (HostIndex host = kFirstWorkerHost; hosts.size() < worker_count_; ++host) {
      std::uint64_t count = 1;
      if (are_shared) count = hosts.empty() ? 2 + prng.below(3) : 1 + prng.below(4);
      count = std::min<std::uint64_t>(count, worker_count_ - hosts.size());
      const bool is_told = are_shared && (count > 1 || prng.chance(0.5));
      hosts.insert(hosts.end(), count, host);
      machines.insert(machines.end(), count, is_told ? stable_mix(host) : 0);
    }
    are_hosts_shared_ = are_shared;
    if (!are_shared) return;
    plan_.local_reduce = prng.chance(0.9);
    plan_.needs_servers = prng.chance(0.5);
    if (prng.chance(0.5)) {
      std::reverse(hosts.begin(), hosts.end());
      std::reverse(machines.begin(), machines.end());
    }
    if (!prng.chance(0.3)) return;
    for (std::size_t i = worker_count_; i > 1; --i) {
      const std::size_t other = prng.below(i);
      std::swap(hosts[i - 1], hosts[other]);
      std::swap(machines[i - 1], machines[other]);
    }
  }

  void choose_network() {
    SimNetworkOptions& network = plan_.cluster.network;
    network.bytes_per_second =
        one_of<std::uint64_t, 4>({0, 10'000'000, 100'000'000, 1'250'000'000});
    network.delay_ns =
        one_of<TimeNs, 4>({kMicrosecond, 20 * kMicrosecond, 200 * kMicrosecond, kMillisecond});
    network.jitter_ns = up_to(2 * network.delay_ns);
    network.window_bytes = one_of<std::size_t, 4>({1, 2000, 20'000, 1 << 20});
    network.connect_timeout_ns = plan_.config.timeout.failure_ns;
    network.unreachable_ns = plan_.config.timeout.failure_ns / 2;
    network.events_per_poll_max = chance(0.2) ? 1 : 1 << 20;
    network.mix_peers = chance(0.5);
    plan_.cluster.think_max_ns =
        one_of<TimeNs, 3>({kMicrosecond, 10 * kMicrosecond, 300 * kMicrosecond});
    plan_.cluster.turn_max_ns = one_of<TimeNs, 2>({kMicrosecond, 20 * kMicrosecond});
    network.chances.may_repeat = [](std::span<const std::byte> bytes) {
      const Result<wire::Header> header = wire::decode_header(bytes);
      return header.is_ok() && (header.value().kind == wire::Kind::kPush ||
                                header.value().kind == wire::Kind::kAnswer);
    };
  }

  Faults choose_kinds() {
    Faults kinds;
    if (chance(0.15)) return kinds;
    const struct {
      Fault fault;
      double often;
    } usual[] = {{Fault::kCut, 0.7},   {Fault::kRepeat, 0.4}, {Fault::kPartition, 0.3},
                 {Fault::kPause, 0.4}, {Fault::kSlow, 0.2},   {Fault::kCorrupt, 0.3}};
    for (const auto& [fault, often] : usual) {
      if (chance(often)) kinds.add(fault);
    }
    if (chance(0.25)) {
      kinds.add(
          one_of<Fault, 4>({Fault::kKill, Fault::kKill, Fault::kLongPause, Fault::kLongPartition}));
    }
    return kinds;
  }

  // Kinds that were thought of later have a stream of their own: what a seed decides about the others stays.
  void add_later_kinds(Faults& kinds) const {
    if (kinds.empty()) return;
    Prng copy = prng_;
    Prng own = copy.split();
    if (own.chance(0.2)) kinds.add(Fault::kLookUp);
    if (own.chance(0.04) && !kinds.has_deadly()) kinds.add(Fault::kStuckThread);
  }

  void choose_faults() {
    SimNetworkOptions& network = plan_.cluster.network;
    FaultPlan& faults = plan_.faults;
    faults.kinds = choose_kinds();
    add_later_kinds(faults.kinds);
    if (options_.faults) faults.kinds = *options_.faults;
    const TimeNs failure_ns = plan_.config.timeout.failure_ns;
    faults.deadly_after_ns = up_to(failure_ns / 2);
    const std::uint64_t turn = std::uint64_t{1} << (3 + below(9));
    if (chance(0.5)) faults.deadly_turn = turn + prng_.below(turn);
    // A payload in place may rightly change while it is lent a second time, so this is for calm worlds.
    network.check_lent_memory = faults.kinds.empty();
    if (faults.kinds.empty()) return;
    faults.until_ns = failure_ns / 10 + up_to(3 * failure_ns);
    faults.gap_ns = failure_ns / one_of<TimeNs, 3>({5, 50, 500});
    faults.per_message = one_of<double, 4>({0, 0.003, 0.02, 0.1});
    faults.length_max_ns = failure_ns / 4;
    // Behind a slow line a heartbeat takes a while already.
    const bool slow = faults.kinds.has(Fault::kSlow);
    faults.partition_max_ns = slow ? failure_ns / 4 : failure_ns / 2;
    faults.pause_max_ns = slow ? failure_ns / 2 : failure_ns * 95 / 100;
    choose_chances(network.chances);
  }

  void choose_chances(NetworkChances& chances) {
    const Faults& kinds = plan_.faults.kinds;
    if (kinds.has(Fault::kCut)) {
      chances.lost_tail_at_close = chance(0.5) ? 0.5 : 0;
    }
    if (kinds.has(Fault::kRepeat)) {
      chances.repeat = 0.2;
      chances.repeat_within_ns = up_to(chance(0.5) ? 100 * kMicrosecond : 50 * kMillisecond);
    }
    if (kinds.has(Fault::kLookUp)) {
      chances.late_look_up = 0.5;
      chances.look_up_late_max_ns = 3 * plan_.config.timeout.failure_ns;
    }
    if (kinds.has(Fault::kCorrupt)) chances.corrupt = one_of<double, 3>({0.0005, 0.003, 0.01});
  }

  // So slow that of all lanes of a host each sends a message within a fraction of the failure timeout: then a heartbeat
  // still comes in time, and slow is not gone.
  void choose_slowness() {
    FaultPlan& faults = plan_.faults;
    if (!faults.kinds.has(Fault::kSlow)) return;
    std::uint64_t shard_count = 0;
    for (const std::uint32_t count : plan_.shard_counts) shard_count += count;
    std::uint64_t message_bytes = 0;
    for (const GenerationPlan& generation : plan_.generations) {
      const FlowConfig& flow = generation.workers[0].flow;
      message_bytes = std::max(message_bytes, std::min(flow.frame_bytes, flow.partition_bytes));
    }
    std::uint64_t most_on_host = 1;
    for (const HostIndex host : plan_.worker_hosts) {
      most_on_host = std::max(most_on_host, count_on(plan_, host));
    }
    const std::uint64_t lane_count =
        std::max(most_on_host * shard_count, std::uint64_t{3} * worker_count_) + most_on_host + 1;
    const double seconds =
        static_cast<double>(plan_.config.timeout.failure_ns) / static_cast<double>(8 * kSecond);
    faults.slow_line_bytes_per_second = static_cast<std::uint64_t>(
        static_cast<double>(lane_count * (message_bytes + 512)) / seconds);
  }

  // Mostly tiny, so that a small tensor has many parts and frames.
  FlowConfig choose_flow() {
    FlowConfig flow;
    flow.partition_bytes = 64 * one_of<std::uint64_t, 8>({1, 2, 3, 4, 8, 16, 17, 64});
    flow.frame_bytes = 64 * (1 + below(chance(0.2) ? 64 : flow.partition_bytes / 64));
    flow.credit_bytes = one_of<std::uint64_t, 4>({1, 200, 1000, 0});
    flow.credit_frames_min = one_of<std::uint64_t, 3>({0, 1, 4});
    flow.priority_scheduling = chance(0.7);
    return flow;
  }

  void choose_generation(std::uint32_t number) {
    GenerationPlan& generation = plan_.generations.emplace_back();
    generation.same_process = number > 0 && chance(0.5);
    generation.reuse_memory = chance(0.5);
    generation.workers.resize(worker_count_);
    for (WorkerPlan& worker : generation.workers) {
      worker.flow = choose_flow();
      worker.start_ns = number == 0 ? start_time() : up_to(plan_.config.timeout.failure_ns);
      worker.leave_gap_ns = chance(0.5) ? 0 : up_to(plan_.config.timeout.failure_ns);
    }
    if (chance(0.5)) {
      for (WorkerPlan& worker : generation.workers) worker.flow = generation.workers[0].flow;
    }
    const FlowConfig& flow = generation.workers[0].flow;  // rank 0's sizes become the job's
    const std::uint32_t tensor_count = 1 + below(8);
    for (std::uint32_t i = 0; i < tensor_count; ++i) {
      generation.tensors.push_back(choose_tensor(i, flow));
    }
    if (worker_count_ > 1 && chance(0.2)) {
      make_odd(generation.tensors[prng_.below(generation.tensors.size())], flow);
    }
    for (TensorPlan& tensor : generation.tensors) suit_hosts(tensor);
    if (chance(0.3)) choose_unevenness(generation);
    choose_steps(generation);
  }

  // All say at the end that they have no more inputs, some after fewer rounds than others; then each tensor has one
  // more round. What not everybody may miss has one round before, which all have.
  void choose_unevenness(GenerationPlan& generation) {
    generation.uneven = true;
    std::vector<std::uint32_t> rounds_of;
    for (std::uint32_t rank = 0; rank < worker_count_; ++rank) rounds_of.push_back(1 + below(4));
    for (TensorPlan& tensor : generation.tensors) {
      std::uint32_t most = 1;
      for (std::uint32_t rank = 0; rank < worker_count_; ++rank) {
        if (tensor.facts.has_member(rank)) most = std::max(most, rounds_of[rank]);
      }
      tensor.rounds = std::min(tensor.rounds, most);
      if (tensor.odd_rank || tensor.facts.has_root() ||
          tensor.facts.operation == Operation::kAverage) {
        tensor.rounds = 1;
      }
      tensor.rounds_of = rounds_of;
      tensor.facts.rounds_of = rounds_of;
      tensor.facts.uneven_rounds = tensor.rounds;
    }
  }

  TensorPlan choose_tensor(std::uint32_t number, const FlowConfig& flow) {
    TensorPlan tensor;
    tensor.facts = choose_facts(flow);
    tensor.facts.name = "tensor." + std::to_string(number);
    tensor.once = chance(0.15);
    tensor.rounds = tensor.once ? 1 : 1 + below(4);
    tensor.priority = static_cast<std::int32_t>(below(5)) - 2;
    return tensor;
  }

  TensorFacts choose_facts(const FlowConfig& flow) {
    TensorFacts facts;
    facts.dtype = static_cast<DType>(below(kDTypeCount));
    facts.operation = static_cast<Operation>(below(kOperationCount));
    if (facts.dtype == DType::kBool && facts.operation == Operation::kAverage) {
      facts.operation = Operation::kSum;
    }
    if (worker_count_ > 1 && chance(0.3)) facts.members = choose_members();
    facts.root_only = facts.operation != Operation::kBroadcast && chance(0.15);
    if (facts.has_root()) facts.root = any_member(facts);
    if (chance(0.25)) facts.scale = choose_scale(facts);
    facts.element_count = choose_element_count(flow, element_bytes(facts.dtype));
    facts.value_seed = prng_.next();
    return facts;
  }

  // Some of the ranks, seldom one alone; empty when it would be all.
  std::vector<std::uint32_t> choose_members() {
    std::vector<std::uint32_t> members;
    const double share = chance(0.5) ? 0.4 : 0.8;
    for (std::uint32_t rank = 0; rank < worker_count_; ++rank) {
      if (chance(share)) members.push_back(rank);
    }
    if (members.size() == worker_count_) members.clear();
    return members;
  }

  std::uint32_t any_member(const TensorFacts& facts) {
    if (facts.members.empty()) return below(worker_count_);
    return facts.members[prng_.below(facts.members.size())];
  }

  // One with which the result stays exact (sim/values.h); 1 where there can be none.
  double choose_scale(const TensorFacts& facts) {
    const bool narrow = facts.dtype == DType::kFloat16 || facts.dtype == DType::kBfloat16;
    const double scale = one_of<double, 3>({2, -1, narrow ? 4 : 0.5});
    return flaw_of_scale(scale, facts.dtype, facts.operation) == nullptr ? scale : 1;
  }

  // Sizes around the borders of frames and parts.
  std::uint64_t choose_element_count(const FlowConfig& flow, std::uint64_t bytes_each) {
    const std::uint64_t frame = std::min(flow.frame_bytes, flow.partition_bytes);
    const std::uint64_t most = kFramesPerTensorMax * frame / bytes_each;
    const std::uint64_t border = (chance(0.5) ? frame : flow.partition_bytes) / bytes_each;
    std::uint64_t count = 0;
    switch (below(5)) {
      case 0:
        count = below(3);
        break;
      case 1:
      case 2:
        count = border * (1 + below(6)) + below(3) - 1;
        break;
      default:
        count = prng_.below(6 * flow.partition_bytes / bytes_each + 1);
        break;
    }
    return std::min(count, most);
  }

  // One rank has another dtype, size, operation, root, scale or other members.
  void make_odd(TensorPlan& tensor, const FlowConfig& flow) {
    if (tensor.facts.members.size() == 1) return;  // nobody to differ from
    tensor.once = false;
    tensor.odd_rank = any_member(tensor.facts);
    do {
      tensor.odd_facts = tensor.facts;
      const TensorFacts other = choose_facts(flow);
      switch (below(6)) {
        case 0:
          tensor.odd_facts.dtype = other.dtype;
          break;
        case 1:
          tensor.odd_facts.element_count = other.element_count;
          break;
        case 2:
          tensor.odd_facts.scale = other.scale;
          break;
        case 3:
          tensor.odd_facts.root_only = other.root_only;
          tensor.odd_facts.root = other.root;
          break;
        case 4:
          tensor.odd_facts.members = other.members;
          break;
        default:
          tensor.odd_facts.operation = other.operation;
          tensor.odd_facts.root = other.root;
          break;
      }
    } while (!is_legal(tensor.odd_facts, *tensor.odd_rank) || !is_odd(tensor));
  }

  // Whether this rank may submit it, and not alone.
  static bool is_legal(const TensorFacts& facts, std::uint32_t rank) {
    if (facts.dtype == DType::kBool && facts.operation == Operation::kAverage) return false;
    if (facts.root_only && facts.operation == Operation::kBroadcast) return false;
    if (facts.has_root() && !facts.has_member(facts.root)) return false;
    return flaw_of_scale(facts.scale, facts.dtype, facts.operation) == nullptr &&
           facts.has_member(rank) && facts.members.size() != 1;
  }

  static bool is_odd(const TensorPlan& tensor) {
    const TensorFacts& a = tensor.facts;
    const TensorFacts& b = tensor.odd_facts;
    return a.dtype != b.dtype || a.bytes() != b.bytes() || a.operation != b.operation ||
           a.scale != b.scale || a.root_only != b.root_only || a.members != b.members ||
           (a.has_root() && a.root != b.root);
  }

  // ---- where workers share hosts

  void suit_hosts(TensorPlan& tensor) {
    if (!are_hosts_shared_) return;
    if (tensor.odd_rank) {
      if (hosts_prng_.chance(0.5)) make_odd_in_members(tensor);
    } else if (hosts_prng_.chance(tensor.facts.dtype == DType::kFloat16 ? 0.75 : 0.15)) {
      make_large(tensor.facts);
    }
  }

  // The odd rank may wait for others of its host then, and those for nobody.
  void make_odd_in_members(TensorPlan& tensor) {
    const TensorFacts former = std::exchange(tensor.odd_facts, tensor.facts);
    tensor.odd_facts.members.clear();
    for (std::uint32_t rank = 0; rank < worker_count_; ++rank) {
      if (hosts_prng_.chance(0.6)) tensor.odd_facts.members.push_back(rank);
    }
    if (tensor.odd_facts.members.size() == worker_count_) tensor.odd_facts.members.clear();
    const bool serves = is_legal(tensor.odd_facts, *tensor.odd_rank) && is_odd(tensor);
    if (!serves) tensor.odd_facts = former;
  }

  // Of float16 up to 40960, of which two are too large together. The result is not: averages are at most half as large,
  // and sums are scaled.
  static void make_large(TensorFacts& facts) {
    const bool is_average = facts.operation == Operation::kAverage;
    if (!is_average && facts.operation != Operation::kSum) return;
    facts.dtype = DType::kFloat16;
    facts.unit = is_average ? 2048 : 4096;
    facts.scale = is_average ? std::min(facts.scale, 2.0) : std::copysign(1.0 / 16, facts.scale);
  }

  // ---- who does what when

  void choose_steps(GenerationPlan& generation) {
    std::uint32_t rounds = 0;
    for (const TensorPlan& tensor : generation.tensors) rounds = std::max(rounds, tensor.rounds);
    std::uint32_t barrier_count = chance(0.5) ? below(4) : 0;
    if (generation.uneven) barrier_count = 0;  // who waits at one does not say that it has no more
    for (std::uint32_t rank = 0; rank < worker_count_; ++rank) {
      WorkerPlan& worker = generation.workers[rank];
      const bool loop = chance(0.5);
      if (loop) {
        add_loop(generation, rank, rounds, barrier_count);
      } else {
        add_burst(generation, rank, rounds, barrier_count);
      }
      if (generation.uneven) add_finish(generation, rank);
      choose_gaps(worker);
    }
  }

  void shuffle(std::span<StepPlan> steps) {
    for (std::size_t i = steps.size(); i > 1; --i) std::swap(steps[i - 1], steps[prng_.below(i)]);
  }

  StepPlan submit(std::uint32_t tensor, std::uint32_t round) {
    StepPlan step;
    step.tensor = tensor;
    step.round = round;
    step.in_place = chance(0.6);
    return step;
  }

  // As a training loop does: all tensors of a round, then wait.
  void add_loop(GenerationPlan& generation, std::uint32_t rank, std::uint32_t rounds,
                std::uint32_t barrier_count) {
    WorkerPlan& worker = generation.workers[rank];
    for (std::uint32_t round = 0; round < rounds; ++round) {
      const std::size_t before = worker.steps.size();
      for (std::uint32_t i = 0; i < generation.tensors.size(); ++i) {
        const TensorPlan& tensor = generation.tensors[i];
        if (round >= tensor.rounds_at(rank) || !tensor.facts.has_member(rank)) continue;
        worker.steps.push_back(submit(i, round));
      }
      shuffle(std::span(worker.steps).subspan(before));
      worker.steps.push_back({.kind = StepPlan::Kind::kWait});
      if (round < barrier_count) worker.steps.push_back({.kind = StepPlan::Kind::kBarrier});
      if (chance(0.5)) worker.steps.push_back({.kind = StepPlan::Kind::kWait});
    }
    for (std::uint32_t i = rounds; i < barrier_count; ++i) {
      worker.steps.push_back({.kind = StepPlan::Kind::kBarrier});
    }
  }

  // Everything in any order without waiting, but the rounds of a tensor one after the other.
  void add_burst(GenerationPlan& generation, std::uint32_t rank, std::uint32_t rounds,
                 std::uint32_t barrier_count) {
    WorkerPlan& worker = generation.workers[rank];
    for (std::uint32_t i = 0; i < generation.tensors.size(); ++i) {
      if (!generation.tensors[i].facts.has_member(rank)) continue;
      for (std::uint32_t round = 0; round < std::min(rounds, generation.tensors[i].rounds_at(rank));
           ++round) {
        worker.steps.push_back(submit(i, 0));
      }
    }
    for (std::uint32_t i = 0; i < barrier_count; ++i) {
      worker.steps.push_back({.kind = StepPlan::Kind::kBarrier});
    }
    shuffle(worker.steps);
    std::vector<std::uint32_t> next_round(generation.tensors.size(), 0);
    for (StepPlan& step : worker.steps) {
      if (step.kind == StepPlan::Kind::kSubmit) step.round = next_round[step.tensor]++;
    }
  }

  void add_finish(GenerationPlan& generation, std::uint32_t rank) {
    std::vector<StepPlan>& steps = generation.workers[rank].steps;
    steps.push_back({.kind = StepPlan::Kind::kFinish});
    const std::size_t before = steps.size();
    for (std::uint32_t i = 0; i < generation.tensors.size(); ++i) {
      const TensorPlan& tensor = generation.tensors[i];
      if (tensor.once || !tensor.facts.has_member(rank)) continue;
      steps.push_back(submit(i, tensor.rounds));
    }
    shuffle(std::span(steps).subspan(before));
  }

  void choose_gaps(WorkerPlan& worker) {
    const TimeNs span_ns =
        chance(0.3) ? 0 : up_to(std::max(plan_.faults.until_ns, 20 * kMillisecond));
    const TimeNs gap_ns = 2 * span_ns / static_cast<TimeNs>(worker.steps.size() + 1);
    for (StepPlan& step : worker.steps) step.gap_ns = chance(0.5) ? 0 : up_to(gap_ns);
  }

  // ---- GPUs

  void choose_gpus() {
    Prng& prng = gpus_prng_;
    const bool lot = prng.chance(0.25);
    if (options_.gpus == Gpus::kNone || (options_.gpus == Gpus::kBySeed && !lot)) return;
    for (std::uint32_t rank = 0; rank < worker_count_; ++rank) {
      if (rank > 0 && prng.chance(0.3)) continue;
      const SimDeviceOptions gpu = any_gpu(prng);
      for (GenerationPlan& generation : plan_.generations) {
        generation.workers[rank].gpu = gpu;
        put_on_gpu(generation.workers[rank]);
      }
    }
    Faults& kinds = plan_.faults.kinds;
    if (options_.faults || kinds.empty()) return;
    if (prng.chance(0.4)) kinds.add(Fault::kSlowDevice);
    if (prng.chance(0.2) && !kinds.has_deadly()) kinds.add(Fault::kBrokenDevice);
  }

  // Most of its tensors, on a few streams. Some of the kernels take long.
  void put_on_gpu(WorkerPlan& worker) {
    Prng& prng = gpus_prng_;
    const double late = prng.chance(0.3) ? 0.05 : 0;
    const std::uint64_t failure_ns = static_cast<std::uint64_t>(plan_.config.timeout.failure_ns);
    for (StepPlan& step : worker.steps) {
      if (step.kind != StepPlan::Kind::kSubmit || prng.chance(0.2)) continue;
      step.on_device = true;
      step.stream = 1 + prng.below(3);
      if (prng.chance(0.3)) continue;
      const std::uint64_t most = prng.chance(late) ? 2 * failure_ns : 2 * kMillisecond;
      step.kernel_ns = static_cast<TimeNs>(prng.below(most));
    }
  }

  void set_limit() {
    TimeNs steps_ns = 0;
    std::uint64_t bytes = 0;
    for (const GenerationPlan& generation : plan_.generations) {
      for (const WorkerPlan& worker : generation.workers) {
        for (const StepPlan& step : worker.steps) {
          steps_ns += step.gap_ns + step.kernel_ns;
          if (step.kind != StepPlan::Kind::kSubmit) continue;
          bytes += generation.tensors[step.tensor].facts.bytes() + 16 * 1024;
        }
      }
    }
    plan_.limit_ns =
        60 * kSecond + steps_ns + plan_.faults.until_ns + 20 * plan_.config.timeout.failure_ns;
    // Who was given up while it stood still looks for the scheduler when the job is over.
    const bool may_wait = plan_.config.continues || plan_.faults.kinds.has(Fault::kLostScheduler);
    if (may_wait) plan_.limit_ns += 2 * plan_.config.timeout.recovery_ns;
    const std::uint64_t slow = plan_.faults.slow_line_bytes_per_second;
    if (slow > 0) plan_.limit_ns += static_cast<TimeNs>(8 * bytes / slow + 1) * kSecond;
  }

  const PlanOptions options_;
  Prng prng_;
  Prng later_prng_;
  Prng hosts_prng_;
  Prng gpus_prng_;
  Prng losses_prng_;
  Prng formats_prng_;
  Prng places_prng_;
  WorldPlan plan_;
  std::uint32_t worker_count_ = 0;
  std::uint32_t server_count_ = 0;
  bool are_hosts_shared_ = false;
};

}  // namespace

const char* name(Fault fault) {
  static constexpr const char* kNames[kFaultCount] = {
      "cut",        "repeat",         "partition",      "pause",       "slow",
      "corrupt",    "look-up",        "former-job",     "lost-server", "drain",
      "adopt",      "slow-gpu",       "lost-scheduler", "lost-worker", "kill",
      "long-pause", "long-partition", "stuck-thread",   "broken-gpu"};
  return kNames[static_cast<std::size_t>(fault)];
}

std::optional<Faults> faults_named(std::string_view text) {
  Faults faults;
  if (text == "none") return faults;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    std::size_t kind = 0;
    while (kind < kFaultCount && word != name(static_cast<Fault>(kind))) ++kind;
    if (kind == kFaultCount) return std::nullopt;
    faults.add(static_cast<Fault>(kind));
  }
  return faults;
}

void WorldPlan::introduce(std::uint32_t rank, JobConfig& job) const {
  job.rank = rank;
  job.machine = rank < worker_machines.size() ? worker_machines[rank] : 0;
  job.card.number = job.machine;
  if (rank < worker_places.size()) job.local.device = worker_places[rank];
  job.sums.locally = local_reduce;
  job.sums.needs_servers = needs_servers;
}

WorldPlan make_plan(const PlanOptions& options, Prng prng) {
  return Planner(options, prng).plan();
}

std::string describe(const WorldPlan& plan) {
  std::ostringstream text;
  text << plan.config.job.worker_count << " workers";
  const std::set<HostIndex> hosts(plan.worker_hosts.begin(), plan.worker_hosts.end());
  if (hosts.size() < plan.worker_hosts.size()) {
    text << " on hosts of";
    for (const HostIndex host : hosts) text << ' ' << count_on(plan, host);
  }
  for (std::uint32_t rank = 0; rank < plan.config.job.worker_count; ++rank) {
    const auto& gpu = plan.generations[0].workers[rank].gpu;
    if (!gpu) continue;
    text << ", rank " << rank << " with a GPU and " << gpu->pool_bytes / device::kSlabAlignment
         << " pages";
  }
  text << ", shards per server";
  for (const std::uint32_t count : plan.shard_counts) text << ' ' << count;
  for (const GenerationPlan& generation : plan.generations) {
    const FlowConfig& flow = generation.workers[0].flow;
    text << "; " << generation.tensors.size() << " tensors in parts of " << flow.partition_bytes
         << " and frames of " << flow.frame_bytes << " bytes";
  }
  text << "; failure timeout " << plan.config.timeout.failure_ns / kMillisecond << " ms";
  if (plan.faults.kinds.empty()) return text.str();
  text << ", for " << plan.faults.until_ns / kMillisecond << " ms:";
  for (std::size_t i = 0; i < kFaultCount; ++i) {
    const Fault fault = static_cast<Fault>(i);
    if (plan.faults.kinds.has(fault)) text << ' ' << name(fault);
  }
  return text.str();
}

}  // namespace byteps::sim
