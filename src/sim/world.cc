#include "sim/world.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <utility>

#include "net/wire.h"
#include "sim/cluster.h"
#include "sim/trainer.h"

namespace byteps::sim {
namespace {

std::string message_text(std::span<const std::byte> bytes) {
  const Result<wire::Header> decoded = wire::decode_header(bytes);
  if (!decoded.is_ok()) return "nonsense";
  const wire::Header& header = decoded.value();
  if (header.kind == wire::Kind::kHeartbeat) return {};  // they would crowd out everything else
  static const std::map<wire::Kind, const char*> kNames = {
      {wire::Kind::kPush, "push"},
      {wire::Kind::kAnswer, "answer"},
      {wire::Kind::kDeclare, "declare"},
      {wire::Kind::kWanted, "wanted"},
      {wire::Kind::kForget, "forget"},
      {wire::Kind::kMismatch, "mismatch"},
      {wire::Kind::kJoin, "join"},
      {wire::Kind::kRoster, "roster"},
      {wire::Kind::kLeave, "leave"},
      {wire::Kind::kBarrier, "barrier"},
      {wire::Kind::kBarrierDone, "barrier done"},
      {wire::Kind::kFail, "fail"},
      {wire::Kind::kWaiting, "waiting"}};
  std::ostringstream text;
  const auto found = kNames.find(header.kind);
  text << (found == kNames.end() ? "another kind" : found->second) << ", " << header.epoch;
  if (header.kind <= wire::Kind::kMismatch) {
    text << ", key " << std::hex << (header.key.value >> 48) << std::dec << ", " << header.part
         << ", " << header.round << ", offset " << header.offset_bytes << ", landing "
         << header.landing;
  }
  return text.str();
}

class World {
 public:
  explicit World(const WorldOptions& options)
      : lose_process_(options.lose_process),
        trace_(options.trace_events),
        prng_(options.seed),
        plan_(make_plan(options.plan, prng_.split())),
        ledger_(plan_),
        fault_prng_(prng_.split()) {
    plan_.cluster.network.describe = message_text;
    plan_.cluster.network.tamper = options.tamper;
    cluster_ = std::make_unique<SimCluster>(plan_.cluster, prng_.split(), trace_);
  }

  WorldResult run() {
    start_processes();
    if (plan_.faults.until_ns > 0) {
      schedule_fault();
      cluster_->network().set_arrival_probe(
          [this](std::uint32_t from, std::uint32_t to) { arrived(from, to); });
    }
    while (ledger_.ok() && !is_over()) {
      if (!cluster_->step(plan_.limit_ns)) {
        ledger_.fail(Invariant::kProgress, "nothing more happens: " + who_waits());
      }
      look();
    }
    if (ledger_.ok()) check_end();
    return result();
  }

 private:
  // ---- the cluster

  void start_processes() {
    cluster_->at(plan_.scheduler_start_ns, [this] {
      scheduler_ = std::make_unique<SchedulerProcess>(*cluster_, plan_.config, 0);
    });
    servers_.resize(plan_.shard_counts.size());
    server_ends_.resize(servers_.size());
    for (std::uint32_t i = 0; i < servers_.size(); ++i) {
      cluster_->at(plan_.server_start_ns[i], [this, i] {
        servers_[i] = std::make_unique<ServerProcess>(*cluster_, plan_.config, i, 1 + i,
                                                      plan_.shard_counts[i]);
      });
    }
    for (std::uint32_t rank = 0; rank < ledger_.worker_count(); ++rank) {
      trainers_.push_back(std::make_unique<Trainer>(*cluster_, ledger_, trace_, rank));
      trainers_.back()->start();
    }
  }

  bool is_over() const {
    return scheduler_end_ &&
           std::all_of(trainers_.begin(), trainers_.end(),
                       [](const auto& trainer) { return trainer->is_done(); }) &&
           std::all_of(server_ends_.begin(), server_ends_.end(),
                       [](const auto& end) { return end.has_value(); });
  }

  // Processes that are finished exit: their connections end, and nobody listens any more.
  void end_processes() {
    if (scheduler_ && scheduler_->scheduler.finished()) {
      scheduler_end_ = scheduler_->scheduler.outcome();
      scheduler_.reset();
    }
    for (std::size_t i = 0; i < servers_.size(); ++i) {
      if (!servers_[i] || !servers_[i]->is_finished()) continue;
      server_ends_[i] = servers_[i]->member->outcome();
      servers_[i].reset();
    }
  }

  void look() {
    const std::vector<std::string> breaches = cluster_->breaches();
    if (!breaches.empty()) ledger_.fail(Invariant::kContract, breaches.front());
    release_trainers();
    end_processes();
    const auto works = [](const auto& trainer) { return trainer->is_working(); };
    if (lose_process_ && std::all_of(trainers_.begin(), trainers_.end(), works)) {
      lose_process_ = false;
      const auto within = static_cast<std::uint64_t>(plan_.config.timeout.failure_ns / 10);
      cluster_->at(cluster_->now() + static_cast<TimeNs>(fault_prng_.below(within)),
                   [this] { lose_one(); });
    }
  }

  // Whoever dies is missed within the failure timeout; those that would join again give up at the start timeout.
  void lose_one() {
    std::vector<std::pair<std::string, std::function<void()>>> living;
    if (scheduler_) {
      living.emplace_back("the scheduler", [this] {
        scheduler_.reset();
        scheduler_end_ = Status::ok();
      });
    }
    for (std::size_t i = 0; i < servers_.size(); ++i) {
      if (!servers_[i]) continue;
      living.emplace_back("server " + std::to_string(i), [this, i] {
        servers_[i].reset();
        server_ends_[i] = Status::ok();
      });
    }
    for (std::size_t i = 0; i < trainers_.size(); ++i) {
      if (!trainers_[i]->has_process()) continue;
      living.emplace_back("worker " + std::to_string(i), [this, i] { trainers_[i]->die(); });
    }
    if (living.empty()) return;
    const auto& [who, die] = living[fault_prng_.below(living.size())];
    ledger_.lose(who);
    if (trace_.keeps_text()) trace_.say(cluster_->now(), who + " dies");
    die();
    plan_.limit_ns = cluster_->now() + plan_.config.timeout.start_ns + 20 * kSecond;
  }

  // Trainers that are ready leave at once, or, in worlds that look at the servers' memory, together after the look.
  void release_trainers() {
    const auto ready = [](const auto& trainer) { return trainer->is_ready_to_leave(); };
    if (!plan_.check_memory || ledger_.has_lost()) {
      for (auto& trainer : trainers_) {
        if (ready(trainer)) trainer->release();
      }
      return;
    }
    if (is_settling_ || !std::all_of(trainers_.begin(), trainers_.end(), ready)) return;
    is_settling_ = true;
    const TimeNs faults_end_ns = plan_.faults.until_ns + plan_.faults.length_max_ns;
    cluster_->at(std::max(cluster_->now(), faults_end_ns) + plan_.config.timeout.failure_ns,
                 [this] {
                   is_settling_ = false;
                   if (ledger_.has_lost()) return;
                   check_server_memory();
                   for (auto& trainer : trainers_) {
                     if (trainer->is_ready_to_leave()) trainer->release();
                   }
                 });
  }

  // ---- faults

  void schedule_fault() {
    const auto gap = static_cast<std::uint64_t>(2 * plan_.faults.gap_ns);
    const TimeNs when = cluster_->now() + static_cast<TimeNs>(fault_prng_.below(gap + 1));
    if (when > plan_.faults.until_ns) {
      return cluster_->at(plan_.faults.until_ns, [this] { cluster_->network().end_chances(); });
    }
    cluster_->at(when, [this] {
      do_fault();
      schedule_fault();
    });
  }

  TimeNs fault_length() {
    // Many short ones, some as long as the protocol bears.
    const auto most = static_cast<std::uint64_t>(plan_.faults.length_max_ns);
    return static_cast<TimeNs>(fault_prng_.below((fault_prng_.chance(0.5) ? most : most / 50) + 1));
  }

  void do_fault() {
    if (fault_prng_.chance(0.1)) return do_pause();
    const std::vector<SimNetwork::Pair> pairs = cluster_->network().connected_pairs();
    if (pairs.empty()) return;
    do_fault_between(pairs[fault_prng_.below(pairs.size())]);
  }

  // A fault while there is traffic, which is where it hurts. `to` has just got a sign of life from `from`.
  void arrived(std::uint32_t from, std::uint32_t to) {
    if (!fault_prng_.chance(plan_.faults.per_message)) return;
    if (cluster_->now() > plan_.faults.until_ns) return;
    const SimNetwork::Pair pair{from, to};
    // Only workers give up shards, not shards workers; so one from a shard to a worker starts all patience anew.
    if (cluster_->network().name(from).find("shard") != std::string::npos) {
      disturbed_until_.erase(std::minmax(from, to));
    }
    cluster_->at(cluster_->now(), [this, pair] { do_fault_between(pair); });
  }

  void do_fault_between(SimNetwork::Pair pair) {
    if (fault_prng_.chance(0.5)) std::swap(pair.a, pair.b);
    const TimeNs length = fault_length();
    if (!take_quiet({pair}, length)) return;
    ++faults_;
    SimNetwork& network = cluster_->network();
    if (fault_prng_.chance(0.2)) return network.hold(pair, cluster_->now() + length);
    SimNetwork::Cut cut;
    cut.pair = pair;
    cut.a_hears_ns = fault_prng_.chance(0.5) ? length : short_time();
    cut.b_hears_ns = short_time();
    cut.late_ns = fault_prng_.chance(0.5) ? length : 0;
    network.cut(cut);
    if (fault_prng_.chance(0.4)) {
      network.block(pair, cluster_->now() + length, fault_prng_.chance(0.5));
    }
  }

  TimeNs short_time() { return static_cast<TimeNs>(fault_prng_.below(100 * kMicrosecond)); }

  // A process stands still. All its connections count as disturbed.
  void do_pause() {
    const std::vector<SimCluster::Seat*> seats = cluster_->busy_seats();
    if (seats.empty()) return;
    SimCluster::Seat& seat = *seats[fault_prng_.below(seats.size())];
    const TimeNs length = fault_length() / 2;
    for (const auto& [numbers, until] : disturbed_until_) {
      const bool is_its = cluster_->network().name(numbers.first) == seat.name() ||
                          cluster_->network().name(numbers.second) == seat.name();
      if (is_its && cluster_->now() < until) return;
    }
    std::vector<SimNetwork::Pair> pairs = cluster_->network().connected_pairs();
    std::erase_if(pairs, [&](const SimNetwork::Pair& pair) {
      return cluster_->network().name(pair.a) != seat.name() &&
             cluster_->network().name(pair.b) != seat.name();
    });
    if (!take_quiet(pairs, length)) return;
    ++faults_;
    cluster_->pause(seat, cluster_->now() + length);
  }

  // Between two faults of the same two there is time for a sign of life, or they would rightly give each other up.
  bool take_quiet(const std::vector<SimNetwork::Pair>& pairs, TimeNs length) {
    const auto key = [](const SimNetwork::Pair& pair) { return std::minmax(pair.a, pair.b); };
    for (const SimNetwork::Pair& pair : pairs) {
      const auto found = disturbed_until_.find(key(pair));
      if (found != disturbed_until_.end() && cluster_->now() < found->second) return false;
    }
    for (const SimNetwork::Pair& pair : pairs) {
      disturbed_until_[key(pair)] = cluster_->now() + length + plan_.config.timeout.failure_ns / 3;
    }
    return true;
  }

  // ---- what must hold

  // At rest the servers together hold one sum of each frame of the tensors that will be used again.
  void check_server_memory() {
    const GenerationPlan& generation = plan_.generations[trainers_[0]->generation()];
    const FlowConfig& flow = generation.workers[0].flow;
    std::size_t owned_bytes = 64 * generation.tensors.size();  // an empty frame may cost a little
    for (const TensorPlan& tensor : generation.tensors) {
      // A shard that saw only declarations that agree keeps what it has of such a tensor until the epoch ends.
      if (tensor.odd_rank) return;
      if (tensor.once) continue;
      const std::uint64_t bytes = tensor.facts.bytes();
      for (std::uint64_t part = 0; part < bytes; part += flow.partition_bytes) {
        const std::uint64_t part_bytes = std::min(flow.partition_bytes, bytes - part);
        for (std::uint64_t frame = 0; frame < part_bytes; frame += flow.frame_bytes) {
          const std::uint64_t frame_bytes = std::min(flow.frame_bytes, part_bytes - frame);
          owned_bytes += std::bit_ceil(std::max<std::uint64_t>(64, frame_bytes));
        }
      }
    }
    std::size_t held_bytes = 0;
    std::size_t incomplete_frames = 0;
    for (const auto& server : servers_) {
      for (const auto& unit : server->shards) {
        held_bytes += unit->shard.lent_bytes();
        incomplete_frames += unit->shard.shelf().incomplete_frame_count();
      }
    }
    if (held_bytes > owned_bytes || incomplete_frames > 0) {
      ledger_.fail(Invariant::kServerMemory, "the servers hold " + std::to_string(held_bytes) +
                                                 " bytes and own " + std::to_string(owned_bytes) +
                                                 "; " + std::to_string(incomplete_frames) +
                                                 " frames are incomplete");
    }
  }

  void check_end() {
    if (!ledger_.has_lost()) check_good_end();
    check_nothing_left();
  }

  void check_good_end() {
    if (!scheduler_end_->is_ok()) {
      ledger_.fail(Invariant::kGoodEnd, "the scheduler ended with " + scheduler_end_->text());
    }
    for (std::size_t i = 0; i < server_ends_.size(); ++i) {
      if (server_ends_[i]->is_ok()) continue;
      ledger_.fail(Invariant::kGoodEnd,
                   "server " + std::to_string(i) + " ended with " + server_ends_[i]->text());
    }
  }

  void check_nothing_left() {
    // What is still on the way must not reach anybody's memory.
    for (int i = 0; i < 1000 && cluster_->step(); ++i) {
    }
    if (cluster_->network().lent_payloads() > 0) {
      ledger_.fail(Invariant::kLentComesBack, std::to_string(cluster_->network().lent_payloads()) +
                                                  " payloads did not come back");
    }
    for (auto& trainer : trainers_) trainer->check_memory();
  }

  std::string who_waits() {
    std::string text = "at " + std::to_string(cluster_->now() / kMillisecond) + " ms";
    for (const auto& trainer : trainers_) text += "\n  " + trainer->text();
    for (const SimCluster::Seat* seat : cluster_->busy_seats()) {
      text += "\n  " + seat->name() + " is not finished";
    }
    for (const auto& server : servers_) {
      if (!server) continue;
      for (const auto& unit : server->shards) {
        const std::size_t frames = unit->shard.shelf().incomplete_frame_count();
        if (frames > 0) {
          text += "\n  " + unit->transport.name() + " has " + std::to_string(frames) +
                  " incomplete frames";
        }
      }
    }
    return text;
  }

  WorldResult result() {
    WorldResult result;
    result.broken = ledger_.invariant();
    result.text = ledger_.text();
    result.size = describe(plan_);
    result.trace.assign(trace_.lines().begin(), trace_.lines().end());
    result.trace_hash = trace_.hash();
    result.messages = cluster_->network().delivered_messages();
    result.payload_bytes = cluster_->network().delivered_bytes();
    result.turns = cluster_->turns();
    result.faults = faults_;
    for (const auto& trainer : trainers_) result.reconnects += trainer->reconnects();
    result.lost = ledger_.lost();
    result.virtual_ns = cluster_->now();
    return result;
  }

  bool lose_process_;
  Trace trace_;
  Prng prng_;
  WorldPlan plan_;
  Ledger ledger_;
  Prng fault_prng_;
  std::unique_ptr<SimCluster> cluster_;
  std::unique_ptr<SchedulerProcess> scheduler_;
  std::vector<std::unique_ptr<ServerProcess>> servers_;
  std::optional<Status> scheduler_end_;  // once it has exited; likewise the servers'
  std::vector<std::optional<Status>> server_ends_;
  std::vector<std::unique_ptr<Trainer>> trainers_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, TimeNs> disturbed_until_;
  std::uint64_t faults_ = 0;
  bool is_settling_ = false;
};

}  // namespace

std::string report(const WorldOptions& options, const WorldResult& result) {
  std::string text = "seed " + std::to_string(options.seed) + " (" + result.size + ")";
  if (result.ok()) return text + ": all is well";
  text += "\n  broken: " + std::string(name(result.broken)) + "\n  " + result.text;
  if (!result.trace.empty()) text += "\n  last events:";
  for (const std::string& line : result.trace) text += "\n  " + line;
  return text;
}

WorldResult run_world(const WorldOptions& options) {
  return World(options).run();
}

}  // namespace byteps::sim
