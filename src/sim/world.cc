#include "sim/world.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <utility>

#include "net/wire_text.h"
#include "sim/cluster.h"
#include "sim/former_job.h"
#include "sim/mischief.h"
#include "sim/trainer.h"

namespace byteps::sim {
namespace {

std::string describe_message(std::span<const std::byte> bytes) {
  const Result<wire::Header> decoded = wire::decode_header(bytes);
  if (!decoded.is_ok()) return "nonsense";
  const wire::Header& header = decoded.value();
  if (header.kind == wire::Kind::kHeartbeat) return {};  // they would crowd out everything else
  return header_text(header);
}

// Members that live may look as if they did not.
bool may_be_cut_off(const Faults& kinds) {
  const auto faults = {Fault::kCut,     Fault::kPartition, Fault::kPause,    Fault::kSlow,
                       Fault::kCorrupt, Fault::kLookUp,    Fault::kFormerJob};
  return std::any_of(faults.begin(), faults.end(), [&](Fault each) { return kinds.has(each); });
}

class World {
 public:
  explicit World(const WorldOptions& options)
      : options_seed_(options.seed),
        trace_(options.trace_events),
        prng_(options.seed),
        plan_(make_plan(options.plan, prng_.split())),
        ledger_(plan_),
        fault_prng_(prng_.split()) {
    plan_.cluster.network.describe = describe_message;
    plan_.cluster.network.tamper = options.tamper;
    plan_.cluster.road_ends = options.road_ends;
    plan_.cluster.network.trace_payloads = options.trace_payloads;
    cluster_ = std::make_unique<SimCluster>(plan_.cluster, prng_.split(), trace_);
  }

  WorldResult run() {
    if (plan_.faults.kinds.has(Fault::kFormerJob)) live_through_former_job();
    start_processes();
    mischief_.emplace(*cluster_, plan_, ledger_, trace_, fault_prng_, [this] { return census(); });
    if (former_) mischief_->note(Fault::kFormerJob);
    mischief_->begin();
    cluster_->network().probes().on_connect = [this](const Hello& hello, std::uint32_t from,
                                                     std::uint32_t to) {
      if (hello.incarnation == plan_.config.job.incarnation) check_fence(hello, to);
      mischief_->connected(from, to);
    };
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

  // The world begins when the job that was there before has died, but for some of its workers.
  void live_through_former_job() {
    // It would have to bear corrupted messages from its beginning, and could fail of them before it has left anybody.
    cluster_->network().corrupt(0);
    bool is_over = false;
    former_.emplace(*cluster_, plan_, Prng(stable_mix(options_seed_)), [&] { is_over = true; });
    const bool begun = cluster_->run_until([&] { return is_over; }, plan_.limit_ns);
    if (!begun) ledger_.fail(Invariant::kProgress, "the former job did not begin");
    cluster_->network().corrupt(plan_.cluster.network.chances.corrupt);
    plan_.limit_ns += cluster_->now();
    if (plan_.faults.until_ns > 0) plan_.faults.until_ns += cluster_->now();
    if (plan_.faults.deadly_turn > 0) plan_.faults.deadly_turn += cluster_->turns();
  }

  void start_processes() {
    cluster_->at(cluster_->now() + plan_.scheduler_start_ns, [this] { start_scheduler(); });
    servers_.resize(plan_.shard_counts.size());
    server_ends_.resize(servers_.size());
    server_lives_.resize(servers_.size());
    for (std::uint32_t i = 0; i < servers_.size(); ++i) {
      cluster_->at(cluster_->now() + plan_.server_start_ns[i], [this, i] { start_server(i, {}); });
    }
    for (std::uint32_t rank = 0; rank < ledger_.worker_count(); ++rank) {
      trainers_.push_back(std::make_unique<Trainer>(*cluster_, ledger_, trace_, rank));
      trainers_.back()->start();
    }
  }

  void start_scheduler() {
    Config config = plan_.config;
    // Its own, as that of every process.
    if (scheduler_lives_++ > 0) {
      for (std::byte& byte : config.job.incarnation) {
        byte = static_cast<std::byte>(fault_prng_.below(256));
      }
    }
    scheduler_ = std::make_unique<SchedulerProcess>(*cluster_, config, 0);
    for (const std::uint32_t rank : ended_workers_) tell_end_of_worker(rank);
  }

  // By whoever watches over the job: not when that is over, and then it is ended.
  void start_scheduler_anew(TimeNs after) {
    scheduler_.reset();
    cluster_->at(cluster_->now() + after, [this] {
      if (!are_all_others_gone()) return start_scheduler();
      scheduler_end_ = Status::ok();
    });
  }

  // Whoever has started it has seen that.
  void tell_end_of_worker(std::uint32_t rank) {
    if (scheduler_) (void)scheduler_->scheduler.worker_ended(rank, "was ended by signal SIGKILL");
  }

  // The job goes on without a worker.
  void lose_worker(std::uint32_t rank, bool is_told) {
    trainers_[rank]->die();
    if (!is_told) return;
    cluster_->at(cluster_->now() + fault_prng_.below(plan_.config.timeout.failure_ns / 20 + 1),
                 [this, rank] {
                   ended_workers_.push_back(rank);
                   tell_end_of_worker(rank);
                 });
  }

  // What the scheduler has given up. Without a fault that could have cut it off nobody is that lives.
  void look_for_vacancies() {
    if (!scheduler_ || !plan_.config.continues) return;
    const bool may_be_wrong = may_be_cut_off(plan_.faults.kinds);
    for (std::uint32_t rank = 0; rank < trainers_.size(); ++rank) {
      if (ledger_.is_lost(rank) || !scheduler_->scheduler.is_vacant(rank)) continue;
      if (!may_be_wrong)
        ledger_.fail(Invariant::kGoodEnd,
                     "worker " + std::to_string(rank) + " lives, and was given up");
      ledger_.lose_worker(rank);
      // Nobody starts it again, and generations after this one begin with all.
      if (trainers_[rank]->generation() + 1 < plan_.generations.size()) mischief_->miss(rank);
    }
    // Without the last one the job ends: its rank does not become vacant.
    const Cause& cause = scheduler_->scheduler.outcome().cause();
    const bool is_last = ledger_.lost_count() + 1 == trainers_.size();
    const bool is_given_up = cause.kind == CauseKind::kGone || cause.kind == CauseKind::kSilent;
    if (may_be_wrong && is_last && is_given_up && cause.who.role == Role::kWorker) {
      ledger_.lose_worker(cause.who.rank);
    }
  }

  bool are_all_others_gone() const {
    return std::all_of(server_ends_.begin(), server_ends_.end(),
                       [](const auto& end) { return end.has_value(); }) &&
           std::all_of(trainers_.begin(), trainers_.end(),
                       [](const auto& trainer) { return trainer->is_done(); });
  }

  // What a server's like begins with that is started in its place.
  struct Anew {
    bool elsewhere = false;        // at other ports, and under another name
    std::uint32_t rank = kNoRank;  // that it says to be
    std::uint32_t shards = 0;
  };
  void start_server(std::uint32_t number, const Anew& anew) {
    if (scheduler_end_ && scheduler_end_->is_ok()) {  // the job is over
      server_ends_[number] = Status::ok();
      return;
    }
    Config config = plan_.config;
    config.job.life = 1 + number + 100 * server_lives_[number].count++;
    config.job.wanted_server_rank = anew.rank;
    if (anew.elsewhere) ++server_lives_[number].places;
    server_lives_[number].is_told = server_lives_[number].is_due = false;
    comings_.last_start_ns = cluster_->now();
    const std::uint32_t shards = std::max(plan_.shard_counts[number], anew.shards);
    servers_[number] = std::make_unique<ServerProcess>(*cluster_, config, number, 1 + number,
                                                       shards, server_lives_[number].places);
  }

  void start_server_anew(std::uint32_t number, TimeNs after) {
    Anew anew;
    anew.elsewhere = fault_prng_.chance(0.5);
    if (fault_prng_.chance(0.7)) anew.rank = servers_[number]->rank();
    // Whosever place it takes.
    anew.shards = *std::max_element(plan_.shard_counts.begin(), plan_.shard_counts.end());
    servers_[number].reset();
    server_lives_[number].is_due = true;
    cluster_->at(cluster_->now() + after, [this, number, anew] { start_server(number, anew); });
  }

  // It is gone, and another one serves its slots, if there is one that can.
  void keep_server_away(std::uint32_t number) {
    // (Workers that come back want as many servers as ever.)
    for (std::uint32_t i = 0; i < servers_.size() && comings_.all_work_in_last; ++i) {
      if (i == number || !servers_[i] || server_lives_[i].is_told) continue;
      servers_[number].reset();
      server_ends_[number] = Status::ok();
      return;
    }
    start_server_anew(number, fault_prng_.below(plan_.restart_max_ns + 1));
  }

  bool is_over() const {
    return scheduler_end_ && (!former_ || former_->is_gone()) &&
           std::all_of(trainers_.begin(), trainers_.end(),
                       [](const auto& trainer) { return trainer->is_done(); }) &&
           std::all_of(server_ends_.begin(), server_ends_.end(),
                       [](const auto& end) { return end.has_value(); });
  }

  void end_scheduler() {
    const Status outcome = scheduler_->scheduler.outcome();
    if (outcome.is_because_of(CauseKind::kReplaced)) return start_scheduler_anew(0);
    scheduler_end_ = misses_others_only(outcome) ? Status::ok() : outcome;
    scheduler_.reset();
  }

  // Processes that are finished exit: their connections end, and nobody listens any more.
  void end_processes() {
    for (const auto& server : servers_) comings_.have_adopted |= server && server->units.size() > 1;
    if (scheduler_ && scheduler_->scheduler.finished()) end_scheduler();
    if (scheduler_ && scheduler_lives_ > 1 && are_all_others_gone() && !ledger_.has_lost()) {
      scheduler_end_ = Status::ok();
      scheduler_.reset();
    }
    for (std::size_t i = 0; i < servers_.size(); ++i) {
      if (!servers_[i] || !servers_[i]->is_finished()) continue;
      const auto number = static_cast<std::uint32_t>(i);
      // Another one has its place: it is started again, to take the next.
      if (servers_[i]->outcome().is_because_of(CauseKind::kReplaced)) {
        if (!may_be_cut_off(plan_.faults.kinds) && !server_lives_[i].is_told) {
          ledger_.fail(Invariant::kGoodEnd,
                       "server " + std::to_string(number) + " lives, and its place was given away");
        }
        start_server_anew(number, 0);
        continue;
      }
      if (server_lives_[i].is_told && servers_[i]->outcome().is_ok() && !comings_.is_released) {
        const bool may_stay_away = servers_[i]->together.has_handed_over();
        if (!may_stay_away) look_at_leaver(number);
        may_stay_away&& fault_prng_.chance(plan_.stay_away) ? keep_server_away(number)
                                                            : start_server_anew(number, 0);
        continue;
      }
      const Status outcome = servers_[i]->outcome();
      server_ends_[i] = misses_others_only(outcome) ? Status::ok() : outcome;
      servers_[i].reset();
    }
  }

  // It was told to stop, and ends. While all work it goes on until another one has its place. (In a later generation it
  // may have none; and a scheduler that was started anew, and does not know the job yet, lets it go. One that was told
  // as a spare may be on its way out when it hears of a place, which another one has by then.)
  void look_at_leaver(std::uint32_t number) {
    const bool is_served =
        comings_.all_work_in_last && plan_.generations.size() == 1 && scheduler_lives_ == 1;
    if (!is_served || !server_lives_[number].had_place) return;
    if (servers_[number]->rank() == kNoRank) return;
    ledger_.fail(Invariant::kGoodEnd,
                 "server " + std::to_string(number) +
                     " was told to stop, and ended before another had its place");
  }

  // The job has ended well for its workers. A launcher has ended who would still join then, or who has not heard of it:
  // nothing else is wrong than that the scheduler is there no more. Or such a one has met a scheduler that was started
  // anew, which knows of the job what it says and misses workers.
  // (A worker that was given up may look for the scheduler still: the job is over without it. And one that was started
  // anew may live still, which knows nothing of the job.)
  bool misses_others_only(const Status& end) const {
    const bool has_ended_well = scheduler_end_ && scheduler_end_->is_ok();  // all have left
    bool is_over = plan_.config.recovers && !ledger_.has_lost();
    for (std::uint32_t rank = 0; rank < trainers_.size(); ++rank) {
      const bool waits_for_scheduler = has_ended_well && !trainers_[rank]->is_needed();
      is_over =
          is_over && (trainers_[rank]->is_done() || waits_for_scheduler || ledger_.is_lost(rank));
    }
    const bool is_anew = scheduler_lives_ > 1;
    const bool has_gone = is_anew || has_ended_well;
    const std::optional<Role> whom = end.cause().who.role;
    const bool misses_workers = whom == Role::kWorker || end.is_because_of(CauseKind::kIncomplete);
    return is_over && ((has_gone && whom == Role::kScheduler) || (is_anew && misses_workers));
  }

  void look() {
    const std::vector<std::string> breaches = cluster_->breaches();
    if (!breaches.empty()) ledger_.fail(Invariant::kContract, breaches.front());
    look_for_vacancies();
    release_trainers();
    end_processes();
    if (former_) former_->look();
    bool all_work = true;
    bool some_work = false;
    for (std::uint32_t rank = 0; rank < trainers_.size(); ++rank) {
      all_work = all_work && (trainers_[rank]->is_in_job() || ledger_.is_lost(rank));
      some_work = some_work || trainers_[rank]->is_working();
    }
    const bool is_last = leader().generation() + 1 == plan_.generations.size();
    comings_.all_work_in_last = all_work && is_last;
    mischief_->look(all_work, some_work, is_last);
    if (ledger_.has_lost() || ledger_.lost_count() > 0) {
      for (auto& trainer : trainers_) trainer->look();
    }
    if (!ledger_.has_lost()) return;
    if (cluster_->now() >= next_check_ns_) check_time();
  }

  // What a loss stops must not wait for ever.
  void check_time() {
    next_check_ns_ = cluster_->now() + plan_.config.timeout.failure_ns / 16;
    for (auto& trainer : trainers_) trainer->check_time();
    if (cluster_->now() < ledger_.loss()->processes_end_ns) return;
    ledger_.fail(Invariant::kTimelyEnd, ledger_.loss()->what + ", but: " + who_waits());
  }

  // Trainers that are ready leave at once, or, in worlds that look at the servers' memory, together after the look.
  void release_trainers() {
    const auto ready = [](const auto& trainer) { return trainer->is_ready_to_leave(); };
    // (A server that has not heard that the others have left to come back is not taken by a scheduler begun anew.)
    const Faults& kinds = plan_.faults.kinds;
    const bool is_together =
        plan_.check_memory || (kinds.has(Fault::kLostServer) && kinds.has(Fault::kLostScheduler));
    if (!is_together || ledger_.has_lost()) {
      for (auto& trainer : trainers_) {
        if (ready(trainer)) trainer->release();
      }
      return;
    }
    // (One that was taken for lost may be ready when the others have left.)
    for (std::uint32_t rank = 0; rank < trainers_.size(); ++rank) {
      const Trainer& trainer = *trainers_[rank];
      if (!trainer.is_ready_to_leave() && !trainer.is_done() && !ledger_.is_lost(rank)) return;
    }
    if (is_settling_ || std::none_of(trainers_.begin(), trainers_.end(), ready)) return;
    is_settling_ = true;
    const TimeNs faults_end_ns = plan_.faults.until_ns + plan_.faults.length_max_ns;
    cluster_->at(std::max(cluster_->now(), faults_end_ns) + plan_.config.timeout.failure_ns,
                 [this] {
                   is_settling_ = false;
                   if (ledger_.has_lost() || is_server_coming()) return;
                   comings_.is_released = leader().generation() + 1 == plan_.generations.size();
                   if (plan_.check_memory && leader().process()) check_server_memory();
                   for (auto& trainer : trainers_) {
                     if (trainer->is_ready_to_leave()) trainer->release();
                   }
                 });
  }

  // Who is started when the job is over waits for another one in vain.
  bool is_server_coming() const {
    return cluster_->now() < comings_.last_start_ns + plan_.config.timeout.failure_ns ||
           std::any_of(server_lives_.begin(), server_lives_.end(),
                       [](const Lives& lives) { return lives.is_due; });
  }

  // The first that is not lost.
  Trainer& leader() {
    std::uint32_t rank = 0;
    while (rank + 1 < trainers_.size() && ledger_.is_lost(rank)) ++rank;
    return *trainers_[rank];
  }

  // ---- who lives, for the mischief

  std::vector<Living> census() {
    std::vector<Living> living;
    if (scheduler_) {
      Living& each = living.emplace_back();
      each.who = "the scheduler";
      each.names = {"scheduler"};
      each.role = Role::kScheduler;
      each.host = 0;
      each.threads = scheduler_->threads();
      each.die = [this] {
        scheduler_.reset();
        scheduler_end_ = Status::ok();
      };
      if (plan_.config.recovers) {
        each.start_anew = [this](TimeNs after) { start_scheduler_anew(after); };
      }
    }
    for (std::uint32_t i = 0; i < servers_.size(); ++i) {
      if (servers_[i]) living.push_back(living_server(i));
    }
    for (std::uint32_t rank = 0; rank < trainers_.size(); ++rank) {
      if (trainers_[rank]->has_process()) living.push_back(living_worker(rank));
    }
    return living;
  }

  Living living_server(std::uint32_t number) {
    Living each;
    each.who = "server " + std::to_string(number);
    each.names = {"server-" + std::to_string(number)};  // its host; its rank may be another
    each.role = Role::kServer;
    each.host = 1 + number;
    each.threads = servers_[number]->threads();
    const std::size_t shard_count = servers_[number]->units.front()->shards.size();
    for (std::size_t i = 1; i <= shard_count; ++i) {  // the first is the member's
      each.summers.push_back({i, "shard " + std::to_string(i - 1)});
    }
    each.die = [this, number] {
      servers_[number].reset();
      server_ends_[number] = Status::ok();
    };
    if (plan_.config.recovers) {
      each.start_anew = [this, number](TimeNs after) { start_server_anew(number, after); };
      each.stay_away = [this, number] { keep_server_away(number); };
    }
    if (plan_.config.recovers && !server_lives_[number].is_told) {
      each.leave = [this, number] {
        server_lives_[number].is_told = true;
        server_lives_[number].had_place = servers_[number]->rank() != kNoRank;
        servers_[number]->together.request_leave();
      };
    }
    return each;
  }

  Living living_worker(std::uint32_t rank) {
    Trainer& trainer = *trainers_[rank];
    Living each;
    each.who = "worker " + std::to_string(rank);
    each.names = {each.who};
    each.role = Role::kWorker;
    each.host = plan_.worker_host(rank);
    each.is_needed = trainer.is_needed();
    each.threads = trainer.process()->threads();
    if (trainer.process()->device) each.gpu = &trainer.process()->device->gpu;
    const auto& relay = trainer.process()->relay;
    if (relay && relay->loop.relay() != nullptr)
      each.summers.push_back({1, "the relay of " + each.who});
    each.die = [&trainer] { trainer.die(); };
    each.rank = rank;
    if (plan_.config.continues && !ledger_.is_lost(rank))
      each.lose = [this, rank](bool is_told) { lose_worker(rank, is_told); };
    each.is_spared = [this, rank] {
      return plan_.config.continues && !trainers_[rank]->is_needed() && ledger_.lost_count() > 1;
    };
    each.stand_still = [&trainer](TimeNs until) { trainer.stand_still(until); };
    return each;
  }

  // ---- what must hold

  // A worker is told of an epoch when all shards serve it.
  void check_fence(const Hello& hello, std::uint32_t listener) {
    for (std::size_t i = 0; i < servers_.size(); ++i) {
      if (!servers_[i] || server_lives_[i].count > 1)
        continue;  // who was there before may be meant
      for_each_shard(*servers_[i], [&](const ServerProcess::ShardUnit& unit) {
        if (unit.transport.number() != listener || unit.shard.epoch() >= hello.epoch) return;
        ledger_.fail(Invariant::kFenced,
                     "worker " + std::to_string(hello.rank) + " works in epoch " +
                         std::to_string(hello.epoch.value) + ", but " + unit.transport.name() +
                         " serves epoch " + std::to_string(unit.shard.epoch().value));
      });
    }
  }

  template <typename Function>
  static void for_each_shard(const ServerProcess& server, Function function) {
    for (const auto& unit : server.units) {
      for (const auto& shard : unit->shards) function(*shard);
    }
  }

  // At rest the servers together hold one sum of each frame of the tensors that will be used again; where lost ones get
  // successors, nothing, for all know that all have it. Nor do workers keep any then, but what they had of a
  // connection that has ended.
  void check_server_memory() {
    const GenerationPlan& generation = plan_.generations[leader().generation()];
    const Pipeline* pipeline = leader().process()->worker.pipeline();
    const Placement& placement = pipeline->tensors().placement();
    std::size_t owned_bytes = 64 * generation.tensors.size();  // an empty frame may cost a little
    for (const TensorPlan& tensor : generation.tensors) {
      // A shard that saw only declarations that agree keeps what it has of such a tensor until the epoch ends.
      if (tensor.odd_rank) return;
      if (tensor.once) continue;
      // What their codes left stays.
      const bool feeds_back = tensor.facts.codec.error_feedback;
      if (plan_.config.recovers && !feeds_back) continue;
      const std::uint64_t times = feeds_back && !plan_.config.recovers ? 2 : 1;
      const Extent bytes(tensor.facts.bytes(), tensor.facts.format);
      const Key key = key_of(tensor.facts.name);
      for (std::uint64_t part = 0; part < placement.part_count(bytes); ++part) {
        const Placement::Part place = placement.part(key, bytes, part);
        for (std::uint64_t frame = 0; frame < place.bytes; frame += place.frame_bytes) {
          const std::uint64_t frame_bytes = std::min(place.frame_bytes, place.bytes - frame);
          // Few elements may have longer codes.
          const std::uint64_t coded =
              tensor.facts.format == Format::kPlain
                  ? 0
                  : payload_bytes(tensor.facts.format, tensor.facts.codec, frame_bytes / 4);
          owned_bytes += times * std::bit_ceil(std::max<std::uint64_t>({64, frame_bytes, coded}));
        }
      }
    }
    std::size_t held_bytes = 0;
    std::size_t incomplete_frames = 0;
    for (const auto& server : servers_) {
      if (!server) continue;  // to be started anew
      for_each_shard(*server, [&](const ServerProcess::ShardUnit& unit) {
        held_bytes += unit.shard.lent_bytes();
        incomplete_frames += unit.shard.shelf().inventory().incomplete_frame_count();
      });
    }
    for (std::size_t rank = 0; rank < trainers_.size(); ++rank) {
      if (ledger_.is_lost(static_cast<std::uint32_t>(rank))) continue;
      const std::size_t kept_bytes = kept_bytes_of(*trainers_[rank]->process());
      if (kept_bytes == 0 || may_have_reconnected() || have_relays_moved()) continue;
      ledger_.fail(Invariant::kServerMemory, "worker " + std::to_string(rank) + " keeps " +
                                                 std::to_string(kept_bytes) +
                                                 " bytes of sums, which all have");
    }
    // A relay that dies while it forgets what cannot be summed has told some shards, and who stands in for it knows
    // nothing of it: the others keep that until the epoch ends.
    if (have_relays_moved() && is_any_spoiled()) return;
    if (held_bytes > owned_bytes || incomplete_frames > 0) {
      ledger_.fail(Invariant::kServerMemory, "the servers hold " + std::to_string(held_bytes) +
                                                 " bytes and own " + std::to_string(owned_bytes) +
                                                 "; " + std::to_string(incomplete_frames) +
                                                 " frames are incomplete" + kept_sums_text());
    }
  }

  static std::size_t kept_bytes_of(const WorkerProcess& process) {
    std::size_t bytes = process.worker.pipeline()->counters().kept_bytes;
    return process.relay ? bytes + process.relay->loop.kept_bytes() : bytes;
  }

  // "; server 1 keeps key ff25, part 0, frame 2, round 3"
  std::string kept_sums_text() {
    std::ostringstream text;
    for (std::size_t i = 0; i < servers_.size(); ++i) {
      if (!servers_[i]) continue;
      for_each_shard(*servers_[i], [&](const ServerProcess::ShardUnit& unit) {
        for (const auto& [key, tensor] : unit.shard.shelf().inventory().tensors()) {
          for (const auto& [index, part] : tensor->parts) {
            for (std::size_t frame = 0; frame < part->frames.size(); ++frame) {
              if (part->frames[frame].settling == 0) continue;
              text << "; server " << i << " keeps key " << std::hex << key.value << std::dec
                   << ", part " << index.value << ", frame " << frame << ", round "
                   << part->frames[frame].round.value - 1;
            }
          }
        }
      });
    }
    return text.str();
  }

  // At a server.
  bool is_any_spoiled() {
    bool any = false;
    for (const auto& server : servers_) {
      if (!server) continue;
      for_each_shard(*server, [&](const ServerProcess::ShardUnit& unit) {
        for (const auto& [key, tensor] : unit.shard.shelf().inventory().tensors()) {
          any = any || tensor->spoiled.code != Code::kOk;
        }
      });
    }
    return any;
  }

  // Connections to the relay of a lost worker have ended.
  bool have_relays_moved() {
    const auto& relay = leader().process()->relay;
    return ledger_.lost_count() > 0 && relay && relay->loop.relay() != nullptr;
  }

  bool may_have_reconnected() const {
    const Faults& happened = mischief_->happened();
    return happened.has(Fault::kCut) || happened.has(Fault::kPartition) ||
           happened.has(Fault::kDrain) || happened.has(Fault::kLostServer) ||
           happened.has(Fault::kFormerJob) || cluster_->network().counts().corrupted_messages > 0;
  }

  void check_end() {
    check_ends();
    check_nothing_left();
  }

  void check_ends() {
    check_end_of("the scheduler", *scheduler_end_);
    for (std::size_t i = 0; i < server_ends_.size(); ++i) {
      check_end_of("server " + std::to_string(i), *server_ends_[i]);
    }
  }

  void check_end_of(const std::string& who, const Status& end) {
    if (end.is_ok()) return;
    if (ledger_.has_lost()) return ledger_.check_cause(who, end);
    // Without the last worker the job ends, by its name.
    const bool is_nobody_left = ledger_.lost_count() == trainers_.size();
    if (is_nobody_left && end.cause().who.role == Role::kWorker) return;
    ledger_.fail(Invariant::kGoodEnd, who + " ended with " + end.text());
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
    if (former_ && !former_->is_gone()) text += "\n  " + former_->text();
    for (const SimCluster::Seat* seat : cluster_->busy_seats()) {
      text += "\n  " + seat->name() + " is not finished";
    }
    for (const auto& server : servers_) {
      if (!server) continue;
      for_each_shard(*server, [&](const ServerProcess::ShardUnit& unit) {
        const std::size_t frames = unit.shard.shelf().inventory().incomplete_frame_count();
        if (frames == 0) return;
        text += "\n  " + unit.transport.name() + " has " + std::to_string(frames) +
                " incomplete frames";
      });
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
    result.messages = cluster_->network().counts().delivered_messages;
    result.payload_bytes = cluster_->network().counts().delivered_bytes;
    result.turns = cluster_->turns();
    result.faults = mischief_->count();
    result.happened = mischief_->happened();
    if (cluster_->network().counts().corrupted_messages > 0) result.happened.add(Fault::kCorrupt);
    if (cluster_->network().counts().repeated_messages > 0) result.happened.add(Fault::kRepeat);
    if (cluster_->network().counts().late_look_ups > 0) result.happened.add(Fault::kLookUp);
    if (comings_.have_adopted) result.happened.add(Fault::kAdopt);
    for (const auto& trainer : trainers_) result.reconnects += trainer->reconnects();
    if (ledger_.has_lost()) result.lost = ledger_.loss()->what;
    result.virtual_ns = cluster_->now();
    return result;
  }

  const std::uint64_t options_seed_;
  Trace trace_;
  Prng prng_;
  WorldPlan plan_;
  Ledger ledger_;
  Prng fault_prng_;
  std::unique_ptr<SimCluster> cluster_;
  std::unique_ptr<SchedulerProcess> scheduler_;
  std::vector<std::unique_ptr<ServerProcess>> servers_;
  std::uint32_t scheduler_lives_ = 0;    // that have begun
  std::optional<Status> scheduler_end_;  // once it has exited; likewise the servers'
  std::vector<std::optional<Status>> server_ends_;
  struct Lives {
    std::uint32_t count = 0;   // that have begun
    std::uint32_t places = 0;  // where they were before
    bool is_told = false;      // the one that lives, to stop
    bool had_place = false;    // when it was told
    bool is_due = false;       // the next is to begin
  };
  std::vector<Lives> server_lives_;
  std::vector<std::unique_ptr<Trainer>> trainers_;
  std::optional<FormerJob> former_;
  std::optional<Mischief> mischief_;
  std::vector<std::uint32_t> ended_workers_;  // ranks, as whoever started them tells the scheduler
  TimeNs next_check_ns_ = 0;
  bool is_settling_ = false;
  // What is to be known of servers that come and go.
  struct Comings {
    bool have_adopted = false;      // any
    bool all_work_in_last = false;  // workers, in their last generation
    bool is_released = false;       // the workers leave for good
    TimeNs last_start_ns = 0;
  };
  Comings comings_;
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
