#include "relay/relay_post.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/planted.h"
#include "member/roster_check.h"
#include "member/summing.h"
#include "net/wire.h"

namespace byteps {
namespace {

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

}  // namespace

RelayPost::RelayPost(const Config& config, Transport& transport, Residuals* residuals,
                     const Log& log, TimelineLane* timeline, const AbsenceSink& absences,
                     std::function<void(const Status&)> fail)
    : config_(config),
      residuals_(residuals),
      log_(log),
      timeline_(timeline),
      absences_(absences),
      fail_(std::move(fail)),
      pool_(transport.payload_source()),
      links_(config_, {.noun = "relay", .index = {}}, transport, pool_, log_, timeline_),
      shards_(config_, transport, log_, *this) {}

void RelayPost::begin(const Place& place, const wire::Roster& roster, const Job& job, TimeNs now) {
  now_ = now;
  place_ = place;
  epoch_ = roster.epoch;
  const Groups groups = groups_of(roster);
  relay_ = std::make_unique<Relay>(relay_config(roster), pool_);
  WorkerLinks::Service service;
  service.self.role = Role::kWorker;
  service.self.rank = roster.your_rank;
  service.self.epoch = roster.epoch;
  service.self.since = place.since;
  service.self.job_id = config_.job.job_id;
  service.self.incarnation = job.incarnation;
  service.worker_count = groups.worker_count();
  service.crew = groups.crew_of(groups.group_of(place.worker), Members());
  service.is_guest = place.since > 0;
  links_.begin(std::move(service));
  for (const WorkerRank lost : vacant_ranks(roster)) links_.lose(lost);
  if (relay_->is_alone()) return;
  shards_.begin(relay_->uplink(),
                {.epoch = roster.epoch,
                 .incarnation = job.incarnation,
                 .failure_ns = job.failure_ns,
                 .recovers = roster.recovers,
                 .self = place.worker,
                 .stands_since = place.since},
                shards_of(roster), now);
}

void RelayPost::amend(const wire::Roster& roster, TimeNs now) {
  now_ = now;
  for (const WorkerRank lost : vacant_ranks(roster)) {
    links_.lose(lost);
    relay_->lose(lost);
  }
  deliver();
  if (relay_->is_alone()) return;
  if (roster.slots.size() != shards_.connections().count()) {
    return fail_({Code::kDisconnected, "the roster of an epoch has other shards than before"});
  }
  shards_.connections().amend(shards_of(roster), now);
}

void RelayPost::note_left(WorkerRank worker, TimeNs now) {
  now_ = now;
  relay_->leave(worker);
  deliver();
}

RelayConfig RelayPost::relay_config(const wire::Roster& roster) const {
  RelayConfig relay{.shelf = {},
                    .uplink = with_flow({.self = place_.worker,
                                         .epoch = roster.epoch,
                                         .placement = placement_of(roster),
                                         .worker_count = groups_of(roster).worker_count()},
                                        config_.flow),
                    .is_alone = roster.summing == wire::Summing::kAlone,
                    .recovers = roster.continues,
                    .takes_over = place_.since > 0 && !PLANTED(leader_moved),
                    .lost = vacant_ranks(roster)};
  relay.shelf.wanted_ns = config_.timeout.wanted_ns;
  relay.shelf.missing_ns = config_.timeout.first_notice_ns / 2;  // workers give notice after that
  relay.shelf.missing_every_ns = config_.timeout.notice_every_ns;
  relay.shelf.deterministic = config_.deterministic;
  relay.shelf.memory_bytes_max = config_.relay_memory_bytes_max;
  relay.shelf.words = words_of(roster);
  relay.shelf.timeline = timeline_;
  relay.shelf.residuals = relay.is_alone ? residuals_ : nullptr;
  relay.uplink.keeps_sums = roster.recovers && !relay.is_alone && !PLANTED(relay_keeps_nothing);
  relay.uplink.duties.waits_for_crew = roster.continues && !relay.is_alone;
  relay.uplink.duties.stands_in = relay.takes_over && !relay.is_alone;
  relay.uplink.relays.residuals = residuals_;
  relay.uplink.stalled_ns = config_.timeout.wanted_ns;
  relay.uplink.first_notice_ns = config_.timeout.first_notice_ns;
  relay.uplink.notice_every_ns = config_.timeout.notice_every_ns;
  relay.uplink.measured.timeline = timeline_;
  relay.uplink.groups = std::make_shared<const Groups>(groups_of(roster));
  return relay;
}

// ---- events

bool RelayPost::is_meant(const Hello& hello) const {
  return has_begun() && links_.is_of_epoch(hello) && hello.relay_of == place_.worker.value + 1;
}

// A relay may lead nothing on a shard for long. A connection that was up, and owed nothing, did what it had to.
void RelayPost::note_idle_end(const Event& event) {
  if (event.kind != Event::Kind::kDown) return;
  const auto shard = shards_.connections().shard_of(event.peer);
  if (!shard) return;
  const bool owes = relay_->uplink().gate(*shard).unanswered_bytes() > 0;
  if (shards_.connections().is_in_use(*shard) && !owes) shards_.connections().on_answer(*shard);
}

bool RelayPost::handle_upward(const Event& event, TimeNs now) {
  now_ = now;
  note_idle_end(event);
  if (!shards_.handle(event, now, is_ending_)) return false;
  deliver();
  return true;
}

void RelayPost::handle_downward(const Event& event, TimeNs now) {
  now_ = now;
  const WorkerLinks::News news = links_.handle(event);
  switch (news.kind) {
    case WorkerLinks::News::Kind::kNothing:
      return;
    case WorkerLinks::News::Kind::kDown:
      relay_->disconnect(news.worker);
      break;
    case WorkerLinks::News::Kind::kUp:
      relay_->connect(news.worker);
      break;
    case WorkerLinks::News::Kind::kMessage:
      relay_->step(news.worker, news.header, event.payload, now_);
      break;
  }
  deliver();
}

Status RelayPost::on_message(ShardIndex shard, const wire::Header& header, const Event& event) {
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
      relay_->on_recovery(shard, header);
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

Status RelayPost::on_mismatch(ShardIndex shard, const wire::Header& header,
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
void RelayPost::record(FlightEvent event, ShardIndex shard, const wire::Header& header) const {
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

std::size_t RelayPost::deliver() {
  for (const PipelineOutput::Tuned& tuned : relay_->tuned()) {
    LOG(log_.at(LogLevel::kInfo), kInfo) << tuned.text;
  }
  relay_->tuned().clear();
  for (const PipelineOutput::Notice& notice : relay_->notices()) {
    LOG(log_, kDebug) << "its relay: " << notice.text;
  }
  relay_->notices().clear();
  // Once it ends, the others hear of the job's end from the scheduler, and of a worker that left.
  if (is_ending_ && !relay_->is_alone()) relay_->down().clear();
  Status failure;
  const std::size_t count = links_.deliver(
      relay_->down(),
      Overloads{[&failure](ShelfOutput::Failure& each) { failure = std::move(each.why); },
                [this](ShelfOutput::Absence& absence) { record_absence(absence); },
                [](auto& /*for the servers*/) { CHECK(false) << "a relay keeps this to itself"; }});
  if (!failure.is_ok()) fail_(failure);
  return count;
}

// Of its own sums, where it sums alone: what goes to servers these record.
void RelayPost::record_absence(const ShelfOutput::Absence& absence) const {
  LOG(log_, kDebug) << absence.text();
  if (absences_) absences_(epoch_, absence);
}

// ---- what goes out

std::size_t RelayPost::tick(TimeNs now) {
  now_ = now;
  relay_->tick(now);
  std::size_t count = deliver();
  if (!relay_->is_alone()) count += shards_.send_frames();
  if (now >= leaves_ns_) leave_servers();
  return count;
}

void RelayPost::publish(TrafficCounters& counters, const PipelineCounters& others) const {
  if (!relay_->is_alone()) shards_.publish(counters, others);
}

TimeNs RelayPost::next_deadline() const {
  const TimeNs next = std::min(shards_.connections().next_deadline(), leaves_ns_);
  return relay_ ? std::min(next, relay_->next_deadline()) : next;
}

bool RelayPost::keeps_for_others() const {
  if (!relay_ || is_ending_ || relay_->is_alone()) return false;
  if (relay_->waits_for_crew()) return misses_server();
  Pipeline& uplink = relay_->uplink();
  if (!uplink.uplink().keeps_sums()) return false;
  return uplink.uplink().keeps_any() || (misses_server() && uplink.inputs().generation() > 0);
}

// ---- the end

void RelayPost::end(const Status& why) {
  is_ending_ = !relay_;
  if (!relay_) return;
  deliver();
  // Where the job goes on without this worker, its crew turn to another relay: what they have not got yet they ask of
  // the servers, which are to keep it.
  const bool is_replaced = why.is_because_of(CauseKind::kReplaced);
  if (!is_replaced) relay_->hand_on();
  deliver();
  is_ending_ = true;
  ended_ = why;
  if (relay_->is_alone() || !relay_->waits_for_crew() || is_replaced) return leave_servers();
  leaves_ns_ = now_ + 2 * KeptSums::kSilenceNs;
}

void RelayPost::leave_servers() {
  leaves_ns_ = kNever;
  relay_->fail_all(ended_);
  shards_.connections().close_all(ended_);
}

void RelayPost::stop(const Status& why) {
  links_.stop(why);
  links_.close_ended();
}

bool RelayPost::is_over() const {
  if (!links_.empty() || !shards_.connections().none_is_left()) return false;
  CHECK(!relay_ || relay_->is_idle()) << "lent memory did not come back";
  return true;
}

}  // namespace byteps
