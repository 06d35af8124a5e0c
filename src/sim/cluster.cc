#include "sim/cluster.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/limits.h"

namespace byteps::sim {
namespace {

constexpr std::uint32_t kIdleTurnsMax = 1000;
constexpr std::uint32_t kBusyTurnsMax = 200'000;
constexpr std::size_t kMailboxCapacity = 4096;
constexpr std::uint16_t kShardPort = 7000;
// Of what a server opens later.
constexpr std::size_t kUnitsMax = 32;
constexpr std::size_t kUnitPort = 20000;
constexpr std::size_t kPortsPerUnit = 4;
constexpr std::uint64_t kLivesPerUnit = 1'000'000;

SimTransportOptions transport_options(const std::string& name, HostIndex host, Role role,
                                      const Config& config, Waiter& waiter) {
  SimTransportOptions options;
  options.name = name;
  options.host = host;
  options.self.role = role;
  options.self.job_id = config.job.job_id;
  if (role == Role::kScheduler) {
    options.self.incarnation = config.job.incarnation;
    options.self.failure_ms = config.timeout.failure_ms();
  }
  options.waiter = &waiter;
  return options;
}

SimTransportOptions listening_at(SimTransportOptions options, Endpoint endpoint) {
  options.listen = std::move(endpoint);
  return options;
}

}  // namespace

// ---- seats

SimCluster::Seat::Seat(SimCluster& cluster, std::string name)
    : cluster_(cluster), name_(std::move(name)) {
  cluster_.seats_.push_back(this);
}

SimCluster::Seat::~Seat() {
  std::erase(cluster_.seats_, this);
}

void SimCluster::Seat::sit(Actor& actor, std::function<void()> after_turn) {
  actor_ = &actor;
  after_turn_ = std::move(after_turn);
  next_turn_ns_ = cluster_.now();
}

void SimCluster::Seat::wait(TimeNs /*timeout_ns*/) {
  CHECK(false) << "a simulated actor never waits";
}

void SimCluster::Seat::wake() {
  const TimeNs at =
      cluster_.now() + cluster_.random_up_to(cluster_.options_.think_max_ns) + slowness_ns();
  next_turn_ns_ = std::min(next_turn_ns_, at);
}

void SimCluster::Seat::pause(TimeNs until) {
  const TimeNs now = cluster_.now();
  Trace& trace = cluster_.trace_;
  trace.note(now, Trace::What::kPause, 0, static_cast<std::uint64_t>(until));
  if (trace.keeps_text()) trace.say(now, name_ + " stands still for a while");
  paused_until_ns_ = std::max(paused_until_ns_, until);
}

void SimCluster::Seat::slow_down(TimeNs think_max_ns, TimeNs until) {
  Trace& trace = cluster_.trace_;
  if (trace.keeps_text()) trace.say(cluster_.now(), name_ + " gets little of its processor");
  slow_think_max_ns_ = think_max_ns;
  slow_until_ns_ = until;
}

TimeNs SimCluster::Seat::slowness_ns() {
  return cluster_.now() < slow_until_ns_ ? cluster_.random_up_to(slow_think_max_ns_) : 0;
}

TimeNs SimCluster::Seat::next_turn_ns() const {
  if (actor_ == nullptr || next_turn_ns_ == kNever) return kNever;
  return std::max(next_turn_ns_, paused_until_ns_);
}

void SimCluster::Seat::turn() {
  const TimeNs now = cluster_.now();
  next_turn_ns_ = kNever;
  const std::size_t work = actor_->turn(now);
  ++cluster_.turns_;
  if (actor_->finished()) {
    Trace& trace = cluster_.trace_;
    trace.note(now, Trace::What::kEnd, 0, cluster_.turns_);
    if (trace.keeps_text()) trace.say(now, name_ + " is finished");
    actor_ = nullptr;
  } else if (work > 0) {
    idle_turns_ = 0;
    if (++busy_turns_ == kBusyTurnsMax) {
      cluster_.breaches_.push_back(name_ + " finds work in every turn and never rests");
    }
    const TimeNs at =
        now + 1 + cluster_.random_up_to(cluster_.options_.turn_max_ns) + slowness_ns();
    next_turn_ns_ = std::min(next_turn_ns_, at);
  } else {
    busy_turns_ = 0;
    const TimeNs deadline = actor_->next_deadline();
    idle_turns_ = deadline <= now ? idle_turns_ + 1 : 0;
    if (idle_turns_ == kIdleTurnsMax) {
      cluster_.breaches_.push_back(name_ + " has nothing to do, but a deadline that is over");
    }
    next_turn_ns_ = std::min(next_turn_ns_, std::max(deadline, now + 1));
  }
  if (after_turn_) after_turn_();
}

// ---- the cluster

SimCluster::SimCluster(ClusterOptions options, Prng prng, Trace& trace)
    : options_(std::move(options)),
      prng_(prng),
      trace_(trace),
      network_(options_.network, prng_.split(), trace) {}

SimCluster::~SimCluster() = default;

std::vector<SimCluster::Seat*> SimCluster::busy_seats() {
  std::vector<Seat*> busy;
  for (Seat* seat : seats_) {
    if (seat->is_busy()) busy.push_back(seat);
  }
  return busy;
}

void SimCluster::at(TimeNs when, std::function<void()> what) {
  timers_.emplace(std::max(when, now()), std::move(what));
}

// ---- time

bool SimCluster::step(TimeNs limit) {
  TimeNs next = network_.next_event_ns();
  if (!timers_.empty()) next = std::min(next, timers_.begin()->first);
  for (const Seat* seat : seats_) next = std::min(next, seat->next_turn_ns());
  if (next == kNever || next > limit) return false;
  network_.advance(std::max(next, now()));
  while (!timers_.empty() && timers_.begin()->first <= now()) {
    const auto what = timers_.extract(timers_.begin());
    what.mapped()();
  }
  for (std::size_t i = 0; i < seats_.size(); ++i) {
    if (seats_[i]->next_turn_ns() <= now()) seats_[i]->turn();
  }
  return true;
}

bool SimCluster::run_until(const std::function<bool()>& done, TimeNs limit) {
  while (!done()) {
    if (!breaches_.empty() || !step(limit)) return done();
  }
  return true;
}

std::vector<std::string> SimCluster::breaches() const {
  std::vector<std::string> all = breaches_;
  all.insert(all.end(), network_.breaches().begin(), network_.breaches().end());
  return all;
}

Log SimCluster::log_for(const std::string& who, LogLevel level) {
  if (!trace_.keeps_text()) return {who, LogLevel::kSilent, [](std::string_view) {}};
  return {who, level, [this](std::string_view line) { trace_.say(now(), std::string(line)); }};
}

// ---- processes

SchedulerProcess::SchedulerProcess(SimCluster& cluster, const Config& config, HostIndex host)
    : seat(cluster, "scheduler"),
      transport(cluster.network(),
                listening_at(transport_options(seat.name(), host, Role::kScheduler, config, seat),
                             {config.job.scheduler_host, config.job.scheduler_port})),
      scheduler(config, transport, cluster.log_for(seat.name())) {
  seat.sit(scheduler);
}

ServerProcess::ShardUnit::ShardUnit(SimCluster& cluster, const Config& config,
                                    const std::string& name, ShardIndex index, HostIndex host,
                                    const Endpoint& endpoint, Mailbox<ShardNotice>& notices)
    : seat(cluster, name),
      transport(cluster.network(),
                listening_at(transport_options(name, host, Role::kServer, config, seat), endpoint)),
      inbox(kMailboxCapacity, &seat),
      shard(config, index, transport, inbox, notices, cluster.log_for(name)) {
  seat.sit(shard);
}

ServerProcess::Unit::Unit(ServerProcess& process, const Config& config, const std::string& name,
                          std::uint16_t first_port, std::uint32_t shard_count)
    : seat(process.cluster_, name),
      transport(process.cluster_.network(),
                transport_options(name, process.host_, Role::kServer, config, seat)),
      notices(kMailboxCapacity, &seat) {
  const std::string host_name = "server-" + std::to_string(process.number_);
  std::vector<Endpoint> endpoints;
  std::vector<Mailbox<ShardCommand>*> inboxes;
  for (std::uint32_t i = 0; i < shard_count; ++i) {
    endpoints.push_back({host_name, static_cast<std::uint16_t>(first_port + i)});
    shards.push_back(
        std::make_unique<ShardUnit>(process.cluster_, config, name + " shard " + std::to_string(i),
                                    ShardIndex(i), process.host_, endpoints.back(), notices));
    inboxes.push_back(&shards.back()->inbox);
  }
  member.emplace(config, transport, host_name + ":" + std::to_string(1 + process.place_), endpoints,
                 inboxes, notices, process.cluster_.log_for(name), &process.orders);
  seat.sit(*member, [&process] { process.look(); });
}

ServerProcess::ServerProcess(SimCluster& cluster, const Config& config, std::uint32_t number,
                             HostIndex host, std::uint32_t shard_count, std::uint32_t place)
    : orders(kMailboxCapacity, nullptr),
      cluster_(cluster),
      config_(config),
      number_(number),
      host_(host),
      place_(place) {
  open(config_, "server " + std::to_string(number), kShardPort + 16 * place, shard_count);
}

void ServerProcess::open(const Config& config, const std::string& name, std::size_t first_port,
                         std::uint32_t shard_count) {
  units.push_back(std::make_unique<Unit>(*this, config, name,
                                         static_cast<std::uint16_t>(first_port), shard_count));
  together.add(*units.back()->member, units.back()->seat);
}

void ServerProcess::look() {
  together.look();
  std::vector<UnitOrder> ordered;
  orders.drain(ordered);
  for (const UnitOrder& order : ordered) {
    if (!together.may_open()) continue;
    Config config = config_;
    config.job.life += kLivesPerUnit * units.size();
    config.job.wanted_server_rank = order.wanted.rank;
    open(config, units.front()->seat.name() + " unit " + std::to_string(units.size()),
         kUnitPort + kPortsPerUnit * (kUnitsMax * place_ + units.size()), order.wanted.shards);
  }
}

std::vector<Thread> ServerProcess::threads() {
  std::vector<Thread> all;
  for (const auto& unit : units) {
    all.push_back({unit->seat, &unit->transport});
    for (const auto& shard : unit->shards) all.push_back({shard->seat, &shard->transport});
  }
  return all;
}

bool ServerProcess::is_finished() {
  if (!together.all_ended()) return false;
  together.look();
  if (ended_ns_ == kNever) {
    ended_ns_ = cluster_.now();
    cluster_.at(ended_ns_ + config_.timeout.failure_ns, [] {});  // to be looked at then
  }
  if (cluster_.now() >= ended_ns_ + config_.timeout.failure_ns) return true;
  for (const auto& unit : units) {
    for (const auto& shard : unit->shards) {
      if (!shard->shard.finished()) return false;
    }
  }
  return true;
}

WorkerProcess::WorkerProcess(SimCluster& cluster, const Config& config, const std::string& name,
                             std::string host_text, HostIndex host,
                             std::function<void()> after_turn, const SimDeviceOptions* gpu)
    : seat(cluster, name),
      transport(cluster.network(), transport_options(name, host, Role::kWorker, config, seat)),
      device(gpu == nullptr ? nullptr
                            : std::make_unique<DeviceUnit>(cluster, name, *gpu, seat, after_turn)),
      door(config, &seat, device.get()),
      log(cluster.log_for(name)),
      relay(config.job.sums.locally
                ? std::make_unique<RelayUnit>(cluster, config, name + " relay", host, seat,
                                              door.relay_counters(), after_turn)
                : nullptr),
      worker(config, transport, door, log, std::move(host_text), cluster.road_ends(),
             relay ? relay->port() : RelayPort(), device ? device->port() : device::Port()),
      cluster_(cluster),
      failure_ns_(config.timeout.failure_ns) {
  seat.sit(worker, std::move(after_turn));
}

WorkerProcess::DeviceUnit::DeviceUnit(SimCluster& cluster, const std::string& name,
                                      const SimDeviceOptions& options, Waiter& worker,
                                      std::function<void()> after_turn)
    : seat(cluster, name + " device"),
      chunk_bytes(options.chunk_bytes),
      pool(options.pool_bytes),
      gpu("the GPU of " + name, options, [&cluster] { return cluster.now(); }),
      orders(kMailboxCapacity, &seat),
      alone(kOperationsMax, &seat),
      reports(kMailboxCapacity, &worker),
      loop(orders, alone, &reports) {
  seat.sit(loop, std::move(after_turn));
}

Result<device::Place> WorkerProcess::DeviceUnit::place(int /*ordinal*/, device::abi::Stream stream,
                                                       const void* /*input*/,
                                                       const void* /*output*/) {
  device::Place place;
  place.device = &gpu;
  place.lane = reinterpret_cast<std::uintptr_t>(stream);
  place.ready = gpu.record(place.lane);
  return place;
}

Status WorkerProcess::DeviceUnit::post(device::Alone&& call) {
  ++alone_count;
  call.ended = [this, ended = std::move(call.ended)](Status result) {
    ended(std::move(result));
    --alone_count;
  };
  Status posted = alone.post(std::move(call));
  if (!posted.is_ok()) --alone_count;
  return posted;
}

device::Port WorkerProcess::DeviceUnit::port() {
  return {.orders = &orders,
          .reports = &reports,
          .pool = pool.span(),
          .alone = &alone_count,
          .chunk_bytes = chunk_bytes};
}

void WorkerProcess::DeviceUnit::close() {
  if (std::exchange(is_closed, true)) return;
  loop.close();
  seat.wake();
}

WorkerProcess::RelayUnit::RelayUnit(SimCluster& cluster, const Config& config,
                                    const std::string& name, HostIndex host, Waiter& worker,
                                    TrafficCounters& counters, std::function<void()> after_turn)
    : seat(cluster, name),
      listening_port(cluster.new_relay_port()),
      transport(cluster.network(),
                listening_at(transport_options(name, host, Role::kWorker, config, seat),
                             {"127.0.0.1", listening_port})),
      commands(kMailboxCapacity, &seat),
      notices(kMailboxCapacity, &worker),
      loop(config, transport, port(), counters, cluster.log_for(name)) {
  seat.sit(loop, std::move(after_turn));
}

std::vector<Thread> WorkerProcess::threads() {
  std::vector<Thread> all = {{seat, &transport}};
  if (relay) all.push_back({relay->seat, &relay->transport});
  if (device) all.push_back({device->seat, nullptr});
  return all;
}

bool WorkerProcess::is_finished() {
  if (!worker.finished()) return false;
  if (worker_ended_ns_ == kNever) {
    worker_ended_ns_ = cluster_.now();
    // To be looked at then.
    if (relay && !relay->loop.finished()) {
      cluster_.at(worker_ended_ns_ + worker.relay_patience_ns(), [] {});
    }
    if (device) cluster_.at(worker_ended_ns_ + failure_ns_, [] {});
  }
  const bool is_relay_over = !relay || relay->loop.finished() ||
                             cluster_.now() >= worker_ended_ns_ + worker.relay_patience_ns();
  return is_device_finished() && is_relay_over;
}

// Its user waits for what it does alone before he leaves.
bool WorkerProcess::is_device_finished() {
  if (!device || device->loop.finished()) return true;
  const bool is_late = cluster_.now() >= worker_ended_ns_ + failure_ns_;
  if (device->alone_count == 0 || is_late) device->close();
  return is_late;
}

std::size_t WorkerProcess::lent_payloads() {
  std::size_t count = transport.lent_payloads();
  if (relay && relay->loop.finished()) count += relay->transport.lent_payloads();
  return count;
}

std::string WorkerProcess::claim_on(std::span<const std::byte> memory) {
  std::string claim;
  for (const Thread& thread : threads()) {
    if (claim.empty() && thread.transport != nullptr) claim = thread.transport->claim_on(memory);
  }
  if (claim.empty() && device) claim = device->gpu.claim_on(memory);
  return claim;
}

}  // namespace byteps::sim
