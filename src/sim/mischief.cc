#include "sim/mischief.h"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "net/wire.h"

namespace byteps::sim {
namespace {

constexpr std::uint64_t kSlowDeviceBytesPerSecond = 5'000'000;
constexpr std::uint64_t kUnlimitedBytesPerSecond = 1'250'000'000;  // what "no limit" counts as

}  // namespace

std::vector<std::uint32_t> Living::numbers() const {
  std::vector<std::uint32_t> all;
  for (const Thread& thread : threads) {
    if (thread.transport != nullptr) all.push_back(thread.transport->number());
  }
  return all;
}

Mischief::Mischief(SimCluster& cluster, WorldPlan& plan, Ledger& ledger, Trace& trace, Prng prng,
                   Census census)
    : cluster_(cluster),
      plan_(plan),
      ledger_(ledger),
      trace_(trace),
      prng_(prng),
      census_(std::move(census)),
      deadly_due_(plan.faults.kinds.has_deadly()) {}

void Mischief::begin() {
  if (plan_.faults.kinds.empty()) return;
  schedule();
  if (plan_.faults.kinds.has(Fault::kCut)) {
    cluster_.network().probes().on_arrival = [this](std::uint32_t from, std::uint32_t to,
                                                    std::span<const std::byte> header) {
      arrived(from, to, header);
    };
  }
}

void Mischief::look(bool all_work, bool some_work, bool in_last) {
  all_work_ = all_work;
  some_work_ = some_work;
  in_last_ = in_last;
  if (!deadly_due_) return;
  const std::uint64_t turn = plan_.faults.deadly_turn;
  if (turn > 0 ? cluster_.turns() < turn : !all_work) return;
  deadly_due_ = false;
  if (turn > 0) return do_deadly();
  cluster_.at(cluster_.now() + plan_.faults.deadly_after_ns, [this] { do_deadly(); });
}

void Mischief::note(Fault fault) {
  ++count_;
  happened_.add(fault);
}

void Mischief::schedule() {
  const TimeNs when = cluster_.now() + up_to(2 * plan_.faults.gap_ns);
  if (ended_) return;
  if (when > plan_.faults.until_ns) {
    return cluster_.at(plan_.faults.until_ns, [this] { cluster_.network().end_chances(); });
  }
  cluster_.at(when, [this] {
    if (ended_) return;
    do_something();
    schedule();
  });
}

void Mischief::do_something() {
  const Faults& kinds = plan_.faults.kinds;
  std::vector<Fault> choices;
  if (kinds.has(Fault::kCut)) choices.assign(6, Fault::kCut);
  for (const Fault fault :
       {Fault::kPartition, Fault::kPause, Fault::kSlow, Fault::kLostServer, Fault::kDrain,
        Fault::kSlowDevice, Fault::kLostScheduler, Fault::kLostWorker}) {
    if (kinds.has(fault)) choices.push_back(fault);
  }
  if (choices.empty()) return;
  switch (choices[prng_.below(choices.size())]) {
    case Fault::kPartition:
      return partition();
    case Fault::kPause:
      return prng_.chance(0.5) ? pause() : pause_one_actor();
    case Fault::kSlow:
      return slow_down();
    case Fault::kLostServer:
      return lose_one(Fault::kLostServer, Role::kServer);
    case Fault::kLostScheduler:
      return lose_one(Fault::kLostScheduler, Role::kScheduler);
    case Fault::kLostWorker:
      return lose_worker();
    case Fault::kDrain:
      return drain_server();
    case Fault::kSlowDevice:
      return slow_device();
    default: {
      const std::vector<Pair> pairs = cluster_.network().connected_pairs();
      if (!pairs.empty()) disturb(pairs[prng_.below(pairs.size())]);
    }
  }
}

// A fault while there is traffic, which is where it hurts.
void Mischief::arrived(std::uint32_t from, std::uint32_t to, std::span<const std::byte> bytes) {
  if (ended_ || !prng_.chance(plan_.faults.per_message)) return;
  if (cluster_.now() > plan_.faults.until_ns) return;
  const Pair pair{from, to};
  // Only workers give up shards, not shards workers; so an answer starts all patience anew.
  const Result<wire::Header> header = wire::decode_header(bytes);
  if (header.is_ok() && header.value().kind == wire::Kind::kAnswer) {
    disturbed_until_.erase(std::minmax(from, to));
  }
  cluster_.at(cluster_.now(), [this, pair] {
    if (!ended_) disturb(pair);
  });
}

// A cut while the first messages of a connection are on their way: they may arrive after those of its successor.
void Mischief::connected(std::uint32_t from, std::uint32_t to) {
  if (ended_ || !plan_.faults.kinds.has(Fault::kCut) || !prng_.chance(0.5)) return;
  if (cluster_.now() > plan_.faults.until_ns) return;
  const TimeNs soon = 3 * (plan_.cluster.network.delay_ns + plan_.cluster.think_max_ns);
  cluster_.at(cluster_.now() + up_to(soon), [this, from, to] {
    const TimeNs lasts = length(plan_.faults.length_max_ns);
    if (ended_ || cluster_.network().is_within_host({from, to})) return;
    if (!take_quiet(Pair{from, to}, lasts)) return;
    note(Fault::kCut);
    SimNetwork::Cut cut;
    cut.pair = {from, to};
    cut.b_hears_ns = up_to(lasts);
    cut.late_ns = lasts;
    cluster_.network().cut(cut);
  });
}

// ---- what the job must bear

void Mischief::disturb(Pair pair) {
  if (prng_.chance(0.5)) std::swap(pair.a, pair.b);
  const TimeNs lasts = length(plan_.faults.length_max_ns);
  if (!take_quiet(pair, lasts)) return;
  note(Fault::kCut);
  SimNetwork& network = cluster_.network();
  // Memory loses nothing, so a connection through it ends with a process.
  if (network.is_within_host(pair) || prng_.chance(0.2))
    return network.hold(pair, cluster_.now() + lasts);
  const TimeNs soon = 100 * kMicrosecond;
  SimNetwork::Cut cut;
  cut.pair = pair;
  cut.a_hears_ns = prng_.chance(0.5) ? lasts : up_to(soon);
  cut.b_hears_ns = up_to(soon);
  cut.late_ns = prng_.chance(0.5) ? lasts : 0;
  network.cut(cut);
  if (prng_.chance(0.4)) network.block(pair, cluster_.now() + lasts, prng_.chance(0.5));
}

// All of a process stands still, as after SIGSTOP.
void Mischief::pause() {
  const std::vector<Living> living = census_();
  if (living.empty()) return;
  const Living& process = living[prng_.below(living.size())];
  const TimeNs lasts = length(plan_.faults.pause_max_ns);
  if (!take_quiet(process.numbers(), lasts)) return;
  note(Fault::kPause);
  paused_until_ns_ = std::max(paused_until_ns_, cluster_.now() + lasts);
  pause_until(process, cluster_.now() + lasts);
}

// One thread of a process gets no processor for a while.
void Mischief::pause_one_actor() {
  const std::vector<Living> living = census_();
  if (living.empty()) return;
  const Living& process = living[prng_.below(living.size())];
  const Thread& thread = process.threads[prng_.below(process.threads.size())];
  const TimeNs lasts = length(plan_.faults.length_max_ns) / 2;
  // Nobody hears anything of a thread without a transport.
  if (thread.transport != nullptr && !take_quiet(std::vector{thread.transport->number()}, lasts)) {
    return;
  }
  note(Fault::kPause);
  paused_until_ns_ = std::max(paused_until_ns_, cluster_.now() + lasts);
  thread.seat.pause(cluster_.now() + lasts);
}

void Mischief::pause_until(const Living& process, TimeNs until) {
  for (const Thread& thread : process.threads) {
    thread.seat.pause(until);
    if (thread.transport != nullptr) {
      cluster_.network().freeze(thread.transport->number(), until);
    }
  }
  if (process.stand_still) process.stand_still(until);
}

// A random set of hosts against another one, or against all others.
SimNetwork::Wall Mischief::random_wall() {
  std::vector<HostIndex> hosts = {0};
  for (HostIndex i = 0; i < plan_.shard_counts.size(); ++i) hosts.push_back(1 + i);
  const std::set<HostIndex> of_workers(plan_.worker_hosts.begin(), plan_.worker_hosts.end());
  hosts.insert(hosts.end(), of_workers.begin(), of_workers.end());
  for (std::size_t i = hosts.size(); i > 1; --i) std::swap(hosts[i - 1], hosts[prng_.below(i)]);
  const std::size_t some = 1 + prng_.below(hosts.size() - 1);
  const std::size_t others =
      prng_.chance(0.5) ? hosts.size() - some : 1 + prng_.below(hosts.size() - some);
  const auto middle = hosts.begin() + static_cast<std::ptrdiff_t>(some);
  SimNetwork::Wall wall;
  wall.from.assign(hosts.begin(), middle);
  wall.to.assign(middle, middle + static_cast<std::ptrdiff_t>(others));
  wall.both = prng_.chance(0.5);
  return wall;
}

void Mischief::partition() {
  SimNetwork::Wall wall = random_wall();
  const TimeNs lasts = length(plan_.faults.partition_max_ns);
  wall.until = cluster_.now() + lasts;
  std::vector<std::uint32_t> numbers;
  for (const Living& process : census_()) {
    const auto is_its = [&](HostIndex host) { return host == process.host; };
    if (!std::any_of(wall.from.begin(), wall.from.end(), is_its) &&
        !std::any_of(wall.to.begin(), wall.to.end(), is_its)) {
      continue;
    }
    const std::vector<std::uint32_t> its = process.numbers();
    numbers.insert(numbers.end(), its.begin(), its.end());
  }
  if (numbers.empty() || !take_quiet(numbers, lasts)) return;
  note(Fault::kPartition);
  cluster_.network().put_up(wall);
}

// A host's line, or one of its threads, for a while or for ever.
void Mischief::slow_down() {
  const std::vector<Living> living = census_();
  if (living.empty()) return;
  const Living& process = living[prng_.below(living.size())];
  const TimeNs until = prng_.chance(0.5) ? kNever : cluster_.now() + up_to(failure_ns());
  note(Fault::kSlow);
  if (prng_.chance(0.3) && plan_.cluster.network.events_per_poll_max > 1) {
    const Thread& thread = process.threads[prng_.below(process.threads.size())];
    return thread.seat.slow_down(up_to(failure_ns() / 100), until);
  }
  const std::uint64_t usual = plan_.cluster.network.bytes_per_second;
  const std::uint64_t factor = prng_.chance(0.5) ? 10 + prng_.below(90) : 100 + prng_.below(900);
  const std::uint64_t slow = (usual == 0 ? kUnlimitedBytesPerSecond : usual) / factor;
  const HostIndex host = process.host;
  cluster_.network().slow_down(host, std::max(slow, plan_.faults.slow_line_bytes_per_second));
  if (until == kNever) return;
  cluster_.at(until, [this, host, usual] { cluster_.network().slow_down(host, usual); });
}

std::vector<Living> Mischief::living_with_devices() const {
  std::vector<Living> living = census_();
  std::erase_if(living, [](const Living& each) { return each.gpu == nullptr; });
  return living;
}

// A GPU is busy with something else: it does nothing, or its copies are slow. A job waits for it as for one who
// computes, however long that takes.
void Mischief::slow_device() {
  const std::vector<Living> living = living_with_devices();
  if (living.empty()) return;
  const Living& process = living[prng_.below(living.size())];
  const TimeNs until = cluster_.now() + length(2 * failure_ns());
  note(Fault::kSlowDevice);
  paused_until_ns_ = std::max(paused_until_ns_, until);
  if (prng_.chance(0.5)) return process.gpu->stand_still(until);
  process.gpu->slow_down(kSlowDeviceBytesPerSecond);
  cluster_.at(until, [this, who = process.who] {
    for (const Living& each : living_with_devices()) {
      if (each.who == who) each.gpu->speed_up();
    }
  });
}

// One of these dies, mostly between two messages of a turn. Nobody may notice but by waiting. A server while all work;
// the scheduler at any time.
void Mischief::lose_one(Fault fault, Role role) {
  std::vector<Living> living = census_();
  std::erase_if(living, [&](const Living& each) { return !each.start_anew || each.role != role; });
  const bool is_any_time = role == Role::kScheduler;
  if (living.empty() || (!all_work_ && !is_any_time)) return;
  const auto end = [this, fault](const Living& victim) {
    note(fault);
    if (trace_.keeps_text()) trace_.say(cluster_.now(), victim.who + " dies");
    victim.stay_away&& prng_.chance(plan_.stay_away)
        ? victim.stay_away()
        : victim.start_anew(up_to(plan_.restart_max_ns));
  };
  const Living& victim = living[prng_.below(living.size())];
  prng_.chance(0.2) ? end(victim) : kill_in_turn(victim, end);
}

// Workers that the job can go on without: not the last one.
std::vector<Living> Mischief::losable() const {
  std::vector<Living> living = census_();
  std::erase_if(living, [](const Living& each) { return !each.lose || !each.is_needed; });
  if (living.size() < 2 || !all_work_ || !in_last_ || ended_) living.clear();
  return living;
}

// A worker dies, or stands still until nobody counts on it any more. (When more than half of all are away at once, and
// nobody has seen them end, the scheduler takes itself for cut off.)
void Mischief::lose_worker() {
  const std::vector<Living> living = losable();
  if (living.empty()) return;
  const Living& victim = living[prng_.below(living.size())];
  // A scheduler that is begun anew needs half of all that have not been seen to end.
  const bool are_all_told = plan_.faults.kinds.has(Fault::kLostScheduler);
  const bool stands_still = prng_.chance(0.25) && !are_all_told;
  const bool is_told = !stands_still && (are_all_told || prng_.chance(0.5));
  if (!is_told && cluster_.now() < next_untold_ns_) return;
  if (!is_told) next_untold_ns_ = cluster_.now() + 2 * failure_ns();
  note(Fault::kLostWorker);
  ledger_.lose_worker(victim.rank);  // now: what it sends last may be lost, and it will be
  if (stands_still) {
    const TimeNs lasts = between(failure_ns() * 13 / 10, 6 * failure_ns());
    if (trace_.keeps_text()) trace_.say(cluster_.now(), victim.who + " stands still");
    return pause_until(victim, cluster_.now() + lasts);
  }
  kill_in_turn(victim, [this, lose = victim.lose, is_told](const Living& each) {
    if (trace_.keeps_text()) trace_.say(cluster_.now(), each.who + " dies");
    lose(is_told);
  });
}

void Mischief::drain_server() {
  std::vector<Living> living = census_();
  std::erase_if(living, [](const Living& each) { return !each.leave; });
  if (living.empty() || !all_work_) return;
  const Living& victim = living[prng_.below(living.size())];
  note(Fault::kDrain);
  if (trace_.keeps_text()) trace_.say(cluster_.now(), victim.who + " is told to stop");
  victim.leave();
}

// Between two faults of the same two there is time for a sign of life, or they would rightly give each other up.
bool Mischief::take_quiet(Pair pair, TimeNs lasts) {
  for (const auto& key :
       {std::minmax(pair.a, pair.b), std::minmax(pair.a, pair.a), std::minmax(pair.b, pair.b)}) {
    const auto found = disturbed_until_.find(key);
    if (found != disturbed_until_.end() && cluster_.now() < found->second) return false;
  }
  disturbed_until_[std::minmax(pair.a, pair.b)] = cluster_.now() + lasts + failure_ns() / 3;
  return true;
}

// The same for all that these transports have to do with others, whether they are connected at the moment or not.
bool Mischief::take_quiet(const std::vector<std::uint32_t>& numbers, TimeNs lasts) {
  const auto is_its = [&](std::uint32_t number) {
    return std::find(numbers.begin(), numbers.end(), number) != numbers.end();
  };
  for (const auto& [pair, until] : disturbed_until_) {
    if (cluster_.now() < until && (is_its(pair.first) || is_its(pair.second))) return false;
  }
  for (const std::uint32_t number : numbers) {
    disturbed_until_[{number, number}] = cluster_.now() + lasts + failure_ns() / 3;
  }
  return true;
}

// ---- what it need not

void Mischief::do_deadly() {
  std::vector<Fault> choices;
  for (const Fault fault : {Fault::kKill, Fault::kLongPause, Fault::kLongPartition,
                            Fault::kStuckThread, Fault::kBrokenDevice}) {
    if (plan_.faults.kinds.has(fault)) choices.push_back(fault);
  }
  const Fault fault = choices[prng_.below(choices.size())];
  if (fault == Fault::kLongPartition) return cut_off();
  if (fault == Fault::kStuckThread) return stick();
  if (fault == Fault::kBrokenDevice) return break_device();
  const std::vector<Living> living = census_();
  if (living.empty()) return;
  const Living& victim = living[prng_.below(living.size())];
  if (fault != Fault::kKill) return stop(victim);
  prng_.chance(0.5) ? kill(victim)
                    : kill_in_turn(victim, [this](const Living& each) { kill(each); });
}

void Mischief::kill(const Living& victim) {
  note(Fault::kKill);
  Loss loss;
  loss.what = victim.who + " died";
  loss.who = victim.names;
  loss.is_sure = victim.is_needed;
  lose(std::move(loss), 0);
  victim.die();
}

// Between two messages that one of its threads sends in one turn: some have got what others have not. It dies all the
// same when that thread does not send so many soon. (From its last message on it says nothing, so it cannot be spared.)
void Mischief::kill_in_turn(const Living& victim, std::function<void(const Living&)> kill) {
  std::vector<SimTransport*> transports;
  for (const Thread& thread : victim.threads) {
    if (thread.transport != nullptr) transports.push_back(thread.transport);
  }
  const auto die = [this, who = victim.who, kill = std::move(kill),
                    is_due = std::make_shared<bool>(true)] {
    if (!std::exchange(*is_due, false)) return;
    for (const Living& each : census_()) {
      if (each.who == who) return kill(each);
    }
  };
  const std::size_t count = 1 + prng_.below(prng_.chance(0.5) ? 4 : 40);
  const auto is_spared = [asked = victim.is_spared] { return asked && asked(); };
  transports[prng_.below(transports.size())]->let_leave(count, [this, die, transports, is_spared] {
    const bool dies = !is_spared();
    for (SimTransport* const each : transports) each->let_leave(dies ? 0 : SIZE_MAX, nullptr);
    if (dies) cluster_.at(cluster_.now(), die);
  });
  cluster_.at(cluster_.now() + failure_ns() / 6, [die, is_spared] {
    if (!is_spared()) die();
  });
}

// It stands still for so long that it is lost, or perhaps. Then it goes on and finds out, or dies.
void Mischief::stop(const Living& victim) {
  const TimeNs least_ns = failure_ns() * 13 / 10;
  const bool is_long = prng_.chance(0.75);
  const TimeNs lasts =
      is_long ? between(least_ns, 6 * failure_ns()) : between(plan_.faults.pause_max_ns, least_ns);
  const bool is_sure = is_long && cluster_.now() + lasts >= watched_ns() + least_ns;
  Loss loss;
  loss.what = victim.who + " stood still for " + std::to_string(lasts / kMillisecond) + " ms";
  loss.who = victim.names;
  loss.is_sure = is_sure && victim.is_needed && all_work_;  // otherwise the job may begin after it
  loss.sleeper = victim.who;
  // A scheduler that wakes finds that members have given it up, and blames them.
  if (victim.role == Role::kScheduler) loss.who.insert(loss.who.end(), {"worker", "server"});
  note(Fault::kLongPause);
  lose(std::move(loss), lasts);
  pause_until(victim, cluster_.now() + lasts);
  if (prng_.chance(0.3)) {
    cluster_.at(cluster_.now() + lasts, [this, who = victim.who] {
      for (const Living& each : census_()) {
        if (each.who == who) return each.die();
      }
    });
  }
}

// The thread of one shard or relay does not come back; all other threads of its process do.
void Mischief::stick() {
  std::vector<Living> living = census_();
  std::erase_if(living, [](const Living& each) { return each.summers.empty(); });
  if (living.empty()) return;
  const Living& victim = living[prng_.below(living.size())];
  const Living::Summer& summer = victim.summers[prng_.below(victim.summers.size())];
  note(Fault::kStuckThread);
  Loss loss;
  loss.what = summer.name + " of " + victim.who + " stood still";
  loss.who = victim.names;
  loss.who.push_back(summer.name + " stands still");
  loss.is_sure = victim.is_needed;
  lose(std::move(loss), 0);
  const Thread& thread = victim.threads[summer.thread];
  thread.seat.pause(kNever);
  cluster_.network().freeze(thread.transport->number(), kNever);
}

// One of the next calls of a GPU's driver fails, and all after it. If there is none, nobody notices.
void Mischief::break_device() {
  const std::vector<Living> living = living_with_devices();
  if (living.empty()) return;
  const Living& victim = living[prng_.below(living.size())];
  const std::uint64_t call = 1 + prng_.below(prng_.chance(0.5) ? 5 : 50);
  victim.gpu->fail_at(call, [this, gpu = victim.gpu->name()] {
    note(Fault::kBrokenDevice);
    Loss loss;
    loss.what = gpu + " failed";
    loss.who = {gpu};
    loss.is_sure = true;
    lose(std::move(loss), 0);
  });
}

bool Mischief::depend(Role a, Role b) {
  return a != b;  // the scheduler on all, workers on servers
}

void Mischief::cut_off() {
  SimNetwork::Wall wall = random_wall();
  const bool is_long = prng_.chance(0.75);
  const TimeNs least_ns = 2 * failure_ns();
  const TimeNs lasts = is_long ? between(least_ns, 8 * failure_ns())
                               : between(plan_.faults.partition_max_ns, least_ns);
  wall.until = is_long && prng_.chance(0.3) ? kNever : cluster_.now() + lasts;
  const bool is_sure = is_long && (wall.until == kNever || wall.until >= watched_ns() + least_ns);
  const auto role_of = [](HostIndex host) {
    return host == 0 ? Role::kScheduler : host < kFirstWorkerHost ? Role::kServer : Role::kWorker;
  };
  const std::vector<Living> living = census_();
  const auto is_needed = [&](HostIndex host) {
    return std::any_of(living.begin(), living.end(),
                       [&](const Living& each) { return each.host == host && each.is_needed; });
  };
  Loss loss;
  loss.what = "hosts were cut off for " +
              (wall.until == kNever ? "ever" : std::to_string(lasts / kMillisecond) + " ms");
  loss.who.emplace_back("scheduler");
  bool matters = false;
  for (const HostIndex a : wall.from) {
    for (const HostIndex b : wall.to) {
      if (!depend(role_of(a), role_of(b))) continue;
      matters = true;
      loss.is_sure |= is_sure && all_work_ && some_work_ && is_needed(a) && is_needed(b);
      for (const HostIndex host : {a, b}) {
        if (role_of(host) == Role::kServer)
          loss.who.push_back("server-" + std::to_string(host - 1));
        for (std::uint32_t rank = 0; rank < plan_.worker_hosts.size(); ++rank) {
          if (plan_.worker_hosts[rank] != host) continue;
          loss.who.push_back("worker " + std::to_string(rank));
        }
      }
    }
  }
  note(Fault::kLongPartition);
  if (matters) lose(std::move(loss), 0);
  cluster_.network().put_up(wall);
}

void Mischief::miss(std::uint32_t rank) {
  Loss loss;
  loss.what = "worker " + std::to_string(rank) + " was given up, and will be missed";
  loss.who = {"worker " + std::to_string(rank)};
  lose(std::move(loss), 0);
}

void Mischief::lose(Loss loss, TimeNs lasts) {
  ended_ = true;
  cluster_.network().end_chances();
  loss.at = cluster_.now();
  loss.watched_ns = watched_ns();
  if (trace_.keeps_text()) trace_.say(cluster_.now(), loss.what);
  // Workers that happen to need a lost server no more may leave well, and wait for it in their next generation.
  if (loss.is_sure && all_work_ && in_last_) {
    loss.processes_end_ns = loss.watched_ns + lasts + 4 * failure_ns();
  }
  plan_.limit_ns += lasts + 8 * failure_ns() + plan_.config.timeout.start_ns + 20 * kSecond;
  ledger_.lose(std::move(loss));
}

}  // namespace byteps::sim
