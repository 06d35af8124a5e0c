#include "server/server_member.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/check.h"
#include "base/limits.h"
#include "base/phrases.h"
#include "base/planted.h"
#include "member/roster_check.h"
#include "member/summing.h"

namespace byteps {
namespace {

constexpr std::size_t kEventBatch = 64;
constexpr TimeNs kCommandRetryNs = kMillisecond;

// The revision since which this server serves the slot of one of its shards; 0: from the beginning, or it has none.
std::uint32_t since_of(const wire::Roster& roster, std::uint32_t shard) {
  const auto slot = std::find_if(roster.slots.begin(), roster.slots.end(), [&](const auto& each) {
    return each.server == roster.your_rank && each.shard == shard;
  });
  return slot == roster.slots.end() ? 0 : slot->since;
}

}  // namespace

ServerMember::ServerMember(const Config& config, Transport& transport, std::string host,
                           std::vector<Endpoint> shard_endpoints,
                           std::vector<Mailbox<ShardCommand>*> shards,
                           Mailbox<ShardNotice>& notices, Log log, Mailbox<UnitOrder>* orders)
    : transport_(transport),
      shards_(std::move(shards)),
      notices_(notices),
      orders_(orders),
      log_(std::move(log)),
      timeout_(config.timeout),
      descriptors_(config.job.descriptors),
      port_(make_join(config, Role::kServer, std::move(host), std::move(shard_endpoints)), config,
            transport, log_.flight(), log_.timeline()),
      events_(kEventBatch),
      to_post_(shards_.size()),
      applied_(shards_.size(), false),
      signs_(shards_.size()) {
  stop_.recovers = config.recovers;
}

std::size_t ServerMember::turn(TimeNs now) {
  now_ = now;
  const std::size_t count = transport_.poll(now, events_);
  // This transport has no other connection, so every event is the port's.
  for (std::size_t i = 0; i < count; ++i) port_.handle(events_[i], now);
  notices_.drain(drained_);
  for (const ShardNotice& notice : drained_) handle(notice, now);
  heed_stop(now);
  port_.tick(now);
  const MemberEvents happened = port_.take_events();
  for (const auto& event : happened) handle(event);
  watch_shards(now);
  post_commands();
  planned_ns_ = next_deadline();
  publish();
  return count + drained_.size() + happened.size();
}

void ServerMember::publish() {
  const State state = finished()                ? State::kEnded
                      : served_.rank != kNoRank ? State::kServes
                                                : State::kWaits;
  shared_.state.store(state, std::memory_order_release);
}

TimeNs ServerMember::next_deadline() const {
  const bool waiting = std::any_of(to_post_.begin(), to_post_.end(),
                                   [](const auto& commands) { return !commands.empty(); });
  return std::min({transport_.next_deadline(), port_.next_deadline(), next_round_ns_,
                   waiting ? now_ + kCommandRetryNs : kNever});
}

bool ServerMember::finished() const {
  return ending_.is_over && port_.closed() &&
         std::all_of(to_post_.begin(), to_post_.end(),
                     [](const auto& commands) { return commands.empty(); });
}

void ServerMember::heed_stop(TimeNs now) {
  const int wanted = shared_.stop_requested.load(std::memory_order_acquire);
  if (wanted <= stop_.heeded) return;
  stop_.heeded = wanted;
  if (wanted == kLeave && stop_.recovers) {
    stop_.leaves = true;
    return port_.leave(true, now);
  }
  port_.fail({Code::kCancelled, "a server was told to stop", {.kind = CauseKind::kToldToStop}},
             now);
}

void ServerMember::handle(const MemberEvents::value_type& event) {
  std::visit(
      Overloads{
          [this](const MemberOutput::Began& epoch) { begin_epoch(epoch.roster); },
          [this](const MemberOutput::Amended& amended) { lose_workers(amended.roster); },
          [this](const MemberOutput::Notice& notice) { log_.write(notice.level, notice.text); },
          [this](const MemberOutput::WorkerLeft& gone) {
            LOG(log_, kDebug) << gone.worker << " left";
            ShardCommand left;
            left.kind = ShardCommand::Kind::kWorkerLeft;
            left.worker = gone.worker;
            for (auto& commands : to_post_) commands.push_back(left);
          },
          [this](const MemberOutput::Adopt& asked) {
            if (orders_ == nullptr) return;
            (void)orders_->post({asked.adopt, served_.worker_count});
          },
          [](const MemberOutput::BarrierDone&) {},
          [this](const MemberOutput::Left&) { end(Status::ok()); },
          [this](const MemberOutput::Failed& failed) { end(failed.why); }},
      event);
}

// Fails the job when this server cannot serve so many workers: they would be refused one by one.
bool ServerMember::has_descriptors(std::size_t worker_count) {
  const std::string what =
      std::to_string(shards_.size()) + " shards for " + std::to_string(worker_count) + " workers";
  const Status fine =
      check_descriptors(descriptors_of_server(shards_.size(), worker_count), descriptors_, what);
  if (!fine.is_ok()) port_.fail(fine, now_);
  return fine.is_ok();
}

void ServerMember::begin_epoch(const wire::Roster& roster) {
  ShardCommand command;
  command.kind = ShardCommand::Kind::kBeginEpoch;
  command.server_rank = roster.your_rank;
  command.incarnation = port_.member().incarnation();
  command.failure_ns = port_.member().timeout().failure_ns;
  command.facts.epoch = roster.epoch;
  command.facts.worker_count = static_cast<std::uint32_t>(
      std::count_if(roster.members.begin(), roster.members.end(),
                    [](const auto& member) { return member.role == Role::kWorker; }));
  if (!has_descriptors(command.facts.worker_count)) return;
  command.facts.placement = std::make_shared<const Placement>(placement_of(roster));
  command.facts.groups = std::make_shared<const Groups>(groups_of(roster));
  served_ = {roster.epoch, roster.your_rank, command.facts.worker_count};
  stop_.recovers = roster.recovers;
  applied_.assign(shards_.size(), false);
  command.facts.recovers = roster.recovers;
  if (!PLANTED(vacancy_untold_to_heirs)) command.facts.lost = vacant_ranks(roster);
  command.stand_ins = stand_ins_of(roster, *command.facts.groups);
  for (std::uint32_t shard = 0; shard < to_post_.size(); ++shard) {
    command.since = since_of(roster, shard);
    command.facts.takes_over = command.since > 0;
    to_post_[shard].push_back(command);
  }
  for (SignOfLife& sign : signs_) sign.ask(now_);  // it is answered, too
  next_round_ns_ = now_ + timeout_.heartbeat_ns();
  LOG(log_, kInfo) << roster.epoch << ": server " << roster.your_rank << ", "
                   << command.facts.worker_count << " workers";
}

// The other changes of a roster are of other servers.
void ServerMember::lose_workers(const wire::Roster& roster) {
  for (const WorkerRank worker : vacant_ranks(roster)) {
    ShardCommand lost;
    lost.kind = ShardCommand::Kind::kWorkerLost;
    lost.worker = worker;
    lost.stand_ins = stand_ins_of(roster, groups_of(roster));
    for (auto& commands : to_post_) commands.push_back(lost);
  }
}

// Asks all shards for a sign of life again and again, and fails the job when one owes it for too long.
void ServerMember::watch_shards(TimeNs now) {
  const TimeNs late_ns = std::max<TimeNs>(0, now - planned_ns_);
  const bool is_round = now >= next_round_ns_ && !ending_.is_over;
  if (is_round) next_round_ns_ = now + timeout_.heartbeat_ns();
  if (ending_.is_over) next_round_ns_ = kNever;
  for (std::size_t shard = 0; shard < shards_.size(); ++shard) {
    SignOfLife& sign = signs_[shard];
    if (!sign.is_owed()) {
      if (is_round) ask(shard, now);
      continue;
    }
    const TimeNs for_ns = sign.owed_for_ns(late_ns, now);
    if (ending_.is_over || for_ns < timeout_.failure_ns || PLANTED(shard_unwatched)) continue;
    port_.fail({Code::kTimeout,
                "shard " + std::to_string(shard) + " stands still for " + duration_text(for_ns) +
                    ": its thread neither sums nor answers",
                {.kind = CauseKind::kStandsStill, .for_ns = for_ns}},
               now);
    sign.came();
  }
}

void ServerMember::ask(std::size_t shard, TimeNs now) {
  signs_[shard].ask(now);
  ShardCommand ping;
  ping.kind = ShardCommand::Kind::kPing;
  to_post_[shard].push_back(std::move(ping));
}

void ServerMember::handle(const ShardNotice& notice, TimeNs now) {
  CHECK_LT(notice.shard.value, shards_.size());
  signs_[notice.shard.value].came();  // whatever it says
  if (notice.kind == ShardNotice::Kind::kAlive) return;
  if (notice.kind == ShardNotice::Kind::kFailed) return port_.fail(notice.why, now);
  if (notice.epoch != served_.epoch) return;  // of an epoch that is over
  applied_[notice.shard.value] = true;
  if (std::find(applied_.begin(), applied_.end(), false) == applied_.end() ||
      PLANTED(epoch_applied_by_one_shard)) {
    port_.applied(served_.epoch, now);
  }
}

void ServerMember::end(Status outcome) {
  ending_.is_over = true;
  ending_.outcome = std::move(outcome);
  if (stop_.leaves && ending_.outcome.is_because_of(CauseKind::kReplaced)) {
    LOG(log_, kWarning) << "told to stop, and ends: " << ending_.outcome.message();
    ending_.outcome = Status::ok();
    stop_.is_replaced = true;
  }
  // Now, because whoever started this process may not wait until it ends by itself.
  // (Of who was replaced, the job goes on.)
  const bool is_over =
      !ending_.outcome.is_ok() && !ending_.outcome.is_because_of(CauseKind::kReplaced);
  if (is_over && log_.flight() != nullptr) log_.flight()->leave_behind("job", ending_.outcome);
  for (auto& commands : to_post_) commands.push_back(ShardCommand{});  // kStop
}

void ServerMember::post_commands() {
  for (std::size_t shard = 0; shard < shards_.size(); ++shard) {
    std::vector<ShardCommand>& commands = to_post_[shard];
    std::size_t posted = 0;
    while (posted < commands.size() &&
           !shards_[shard]->post(std::move(commands[posted])).is(Code::kAgain)) {
      ++posted;
    }
    commands.erase(commands.begin(), commands.begin() + static_cast<std::ptrdiff_t>(posted));
  }
}

}  // namespace byteps
