#include "relay/relay_loop.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/planted.h"
#include "member/summing.h"
#include "net/wire.h"

namespace byteps {
namespace {

constexpr std::size_t kEventBatch = 256;
constexpr int kBatchesPerTurn =
    8;  // then mailbox, timers and the way to the servers get their turn

ShelfWords words_of(const wire::Roster& roster) {
  const std::string owner = "the relay of worker " + std::to_string(roster.your_rank);
  Participant who{.role = Role::kWorker, .rank = roster.your_rank};
  for (const wire::RosterMember& member : roster.members) {
    if (member.role == who.role && member.rank == who.rank) who.host = member.host;
  }
  return {.owner = owner,
          .used_by = " by " + owner,
          .who = std::move(who),
          .limited_by = "BYTEPS_RELAY_MEMORY_MB allows it",
          .remedy =
              "Raise that limit, if one is set; or have fewer workers on a machine, or "
              "machines with more memory"};
}

// What servers may use is no limit for what slow workers leave unread here; their credit is.
Config config_of(Config worker) {
  worker.memory_bytes_max = UINT64_MAX;
  return worker;
}

}  // namespace

RelayLoop::RelayLoop(const Config& config, Transport& transport, Mailbox<RelayCommand>& commands,
                     Mailbox<RelayNotice>& notices, TrafficCounters& counters, const Log& log)
    : config_(config_of(config)),
      transport_(transport),
      commands_(commands),
      notices_(notices),
      counters_(counters),
      log_(log),
      timeline_(log_.timeline() == nullptr ? nullptr
                                           : &log_.timeline()->open_lane(Recorder::kRelay)),
      pool_(transport.payload_source()),
      links_(config_, {.noun = "relay", .index = {}}, transport, pool_, log_, timeline_),
      shards_(config_, transport, log_, *this),
      failure_ns_(config.timeout.failure_ns),
      scratch_{.commands = {}, .events = std::vector<Event>(kEventBatch)} {}

RelayLoop::~RelayLoop() = default;

std::size_t RelayLoop::turn(TimeNs now) {
  if (state_ == State::kFinished) return 0;
  now_ = now;
  links_.begin_turn(now);
  if (now > planned_ns_) shards_.connections().excuse(now - planned_ns_, now);
  std::size_t work = take_commands();
  for (int batch = 0; batch < kBatchesPerTurn; ++batch) {
    const std::size_t count = transport_.poll(now, scratch_.events);
    take_events(count);
    work += count;
    if (count < scratch_.events.size()) break;
  }
  if (relay_) {
    const bool is_ending = state_ != State::kServing;
    const Status reached = shards_.connections().keep(now, is_ending);
    if (!reached.is_ok()) notify(RelayNotice::Kind::kFailed, reached);
    relay_->tick(now);
    work += deliver();
    if (!relay_->is_alone()) {
      work += shards_.send_frames();
      if (work > 0) shards_.publish(counters_);
    }
    tell_ready();
  }
  links_.close_ended();
  try_finish();
  planned_ns_ = next_deadline();
  return work;
}

TimeNs RelayLoop::next_deadline() const {
  TimeNs next = std::min({transport_.next_deadline(), shards_.connections().next_deadline(),
                          state_ == State::kFlushing ? flush_until_ns_ : kNever});
  if (relay_) next = std::min(next, relay_->next_deadline());
  return next;
}

// ---- the worker beside it

std::size_t RelayLoop::take_commands() {
  commands_.drain(scratch_.commands);
  for (const RelayCommand& command : scratch_.commands) {
    switch (command.kind) {
      case RelayCommand::Kind::kBegin:
        begin(command);
        break;
      case RelayCommand::Kind::kAmend:
        amend(command.roster);
        break;
      case RelayCommand::Kind::kEnd:
        end(command.why);
        break;
      case RelayCommand::Kind::kPing:
        notify(RelayNotice::Kind::kAlive, Status::ok());
        break;
    }
  }
  return scratch_.commands.size();
}

void RelayLoop::begin(const RelayCommand& command) {
  if (state_ != State::kWaiting) return;
  const wire::Roster& roster = command.roster;
  const WorkerRank self(roster.your_rank);
  const Groups groups = groups_of(roster);
  state_ = State::kServing;
  failure_ns_ = command.failure_ns;
  relay_ = std::make_unique<Relay>(relay_config(roster), pool_);
  WorkerLinks::Service service;
  service.self.role = Role::kWorker;
  service.self.rank = self.value;
  service.self.epoch = roster.epoch;
  service.self.job_id = config_.job.job_id;
  service.self.incarnation = command.incarnation;
  service.worker_count = groups.worker_count();
  service.crew = groups.crew_of(groups.group_of(self), Members());
  links_.begin(std::move(service));
  if (relay_->is_alone()) return;
  shards_.begin(relay_->uplink(),
                {.epoch = roster.epoch,
                 .incarnation = command.incarnation,
                 .failure_ns = command.failure_ns,
                 .recovers = roster.recovers},
                shards_of(roster), now_);
}

// Who serves a slot has changed; its parts stay there.
void RelayLoop::amend(const wire::Roster& roster) {
  if (state_ != State::kServing || relay_->is_alone()) return;
  if (roster.slots.size() != shards_.connections().count()) {
    return notify(RelayNotice::Kind::kFailed,
                  {Code::kDisconnected, "the roster of an epoch has other shards than before"});
  }
  shards_.connections().amend(shards_of(roster), now_);
}

RelayConfig RelayLoop::relay_config(const wire::Roster& roster) {
  RelayConfig relay{.shelf = {},
                    .uplink = with_flow({.self = WorkerRank(roster.your_rank),
                                         .epoch = roster.epoch,
                                         .placement = placement_of(roster),
                                         .worker_count = groups_of(roster).worker_count()},
                                        config_.flow),
                    .is_alone = roster.summing == wire::Summing::kAlone};
  relay.shelf.wanted_ns = config_.timeout.wanted_ns;
  relay.shelf.missing_ns = config_.timeout.first_notice_ns / 2;  // workers give notice after that
  relay.shelf.missing_every_ns = config_.timeout.notice_every_ns;
  relay.shelf.deterministic = config_.deterministic;
  relay.shelf.memory_bytes_max = config_.relay_memory_bytes_max;
  relay.shelf.words = words_of(roster);
  relay.shelf.timeline = timeline_;
  relay.uplink.keeps_sums = roster.recovers && !relay.is_alone && !PLANTED(relay_keeps_nothing);
  relay.uplink.stalled_ns = config_.timeout.wanted_ns;
  relay.uplink.first_notice_ns = config_.timeout.first_notice_ns;
  relay.uplink.notice_every_ns = config_.timeout.notice_every_ns;
  relay.uplink.timeline = timeline_;
  relay.uplink.groups = std::make_shared<const Groups>(groups_of(roster));
  return relay;
}

// ---- events

void RelayLoop::take_events(std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) handle(scratch_.events[i]);
  links_.close_ended();
}

// A relay may lead nothing on a shard for long. A connection that was up, and owed nothing, did what it had to.
void RelayLoop::note_idle_end(const Event& event) {
  if (event.kind != Event::Kind::kDown) return;
  const auto shard = shards_.connections().shard_of(event.peer);
  if (!shard) return;
  const bool owes = relay_->uplink().gate(*shard).unanswered_bytes() > 0;
  if (shards_.connections().is_in_use(*shard) && !owes) shards_.connections().on_answer(*shard);
}

void RelayLoop::handle(const Event& event) {
  note_idle_end(event);
  if (shards_.handle(event, now_, state_ != State::kServing)) {
    deliver();
    return;
  }
  // Another worker may have the roster already.
  if (event.kind == Event::Kind::kUp && !links_.is_of_epoch(event.hello)) take_commands();
  const WorkerLinks::News news = links_.handle(event);
  switch (news.kind) {
    case WorkerLinks::News::Kind::kNothing:
    case WorkerLinks::News::Kind::kDown:
      return;
    case WorkerLinks::News::Kind::kUp:
      relay_->connect(news.worker);
      break;
    case WorkerLinks::News::Kind::kMessage:
      relay_->step(news.worker, news.header, event.payload, now_);
      break;
  }
  deliver();
}

Status RelayLoop::on_message(ShardIndex shard, const wire::Header& header, const Event& event) {
  switch (header.kind) {
    case wire::Kind::kAnswer:
      return relay_->on_answer(shard, header, event.payload);
    case wire::Kind::kWanted:
      record({.kind = "wanted"}, shard, header);
      relay_->on_wanted(shard, header);
      return Status::ok();
    case wire::Kind::kMismatch:
      return on_mismatch(shard, header, event.payload);
    case wire::Kind::kInputsDone:
      relay_->on_inputs_done(shard, header);
      return Status::ok();
    case wire::Kind::kGive:
    case wire::Kind::kAgain:
    case wire::Kind::kForgotten:
    case wire::Kind::kSettled:
      relay_->uplink().on_recovery(shard, header);
      return Status::ok();
    case wire::Kind::kMissing: {
      const Result<wire::Missing> missing = wire::decode_missing(event.payload);
      if (missing.is_ok()) relay_->on_missing(header, missing.value().ranks);
      return missing.status();
    }
    default:
      return {Code::kDisconnected, "a message of a kind that shards do not send"};
  }
}

Status RelayLoop::on_mismatch(ShardIndex shard, const wire::Header& header,
                              std::span<const std::byte> payload) {
  if (header.epoch != relay_->uplink().epoch()) return Status::ok();
  const Result<wire::Text> text = wire::decode_text(payload);
  if (!text.is_ok()) return text.status();
  const Status why = shards_.error_of_mismatch(shard, text.value(), {});
  record(FlightEvent::of_end("mismatch", why), shard, header);
  relay_->on_mismatch(header.key, why);
  return Status::ok();
}

// A server's word about a tensor, for the flight recorder.
void RelayLoop::record(FlightEvent event, ShardIndex shard, const wire::Header& header) const {
  if (log_.flight() == nullptr) return;
  event.name = "relay";
  if (event.role == nullptr) {
    event.role = byteps::name(Role::kServer);
    event.rank = shards_.connections().owner_of(shard).rank;
  }
  event.key = header.key.value;
  event.part = header.part.value;
  event.round = header.round.value;
  event.at_ns = now_;
  log_.record(event);
}

std::size_t RelayLoop::deliver() {
  for (const PipelineOutput::Tuned& tuned : relay_->tuned()) {
    LOG(log_.at(LogLevel::kInfo), kInfo) << tuned.text;
  }
  relay_->tuned().clear();
  for (const PipelineOutput::Notice& notice : relay_->notices()) {
    LOG(log_, kDebug) << "its relay: " << notice.text;
  }
  relay_->notices().clear();
  // Once it ends, the others hear of the job's end from the scheduler, and of a worker that left.
  if (state_ != State::kServing && !relay_->is_alone()) relay_->down().clear();
  Status failure;
  const std::size_t count = links_.deliver(
      relay_->down(),
      Overloads{[&failure](ShelfOutput::Failure& each) { failure = std::move(each.why); },
                [](auto& /*for the servers*/) { CHECK(false) << "a relay keeps this to itself"; }});
  if (!failure.is_ok()) notify(RelayNotice::Kind::kFailed, std::move(failure));
  return count;
}

void RelayLoop::tell_ready() {
  if (said_ready_ || state_ != State::kServing) return;
  if (!relay_->is_alone() && !shards_.connections().all_were_up()) return;
  said_ready_ = true;
  notify(RelayNotice::Kind::kReady, Status::ok());
}

void RelayLoop::notify(RelayNotice::Kind kind, Status why) {
  if (kind == RelayNotice::Kind::kFailed && std::exchange(said_failed_, true)) return;
  const Status posted = notices_.post({.kind = kind, .why = std::move(why)});
  CHECK(posted.is_ok()) << posted.text();
}

// ---- the end

void RelayLoop::end(const Status& why) {
  if (state_ > State::kServing) return;
  ended_ = why;
  if (relay_) deliver();
  state_ = State::kFlushing;
  flush_until_ns_ = now_ + failure_ns_;  // so long others may stand still
  if (!relay_) return;
  relay_->fail_all(why);
  shards_.connections().close_all(why);
}

void RelayLoop::try_finish() {
  const bool is_flushed = PLANTED(relay_ends_unflushed) || links_.is_flushed();
  if (state_ == State::kFlushing && (is_flushed || now_ >= flush_until_ns_)) {
    state_ = State::kClosing;
    links_.stop(ended_);
    links_.close_ended();
  }
  if (state_ != State::kClosing || !links_.empty()) return;
  if (!shards_.connections().none_is_left()) return;
  CHECK(!relay_ || relay_->is_idle()) << "lent memory did not come back";
  state_ = State::kFinished;
}

void RelayLoop::failed(const Status& why) {
  if (state_ == State::kFinished) return;
  notify(RelayNotice::Kind::kFailed, why.in_words("its relay's thread failed: " + why.message()));
}

}  // namespace byteps
