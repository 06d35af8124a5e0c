#include "server/shard.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/outputs.h"
#include "net/wire.h"
#include "server/declaration.h"

namespace byteps {
namespace {

constexpr TimeNs kNoticeRetryNs = kMillisecond;

ShelfSettings shelf_settings(const Config& config, TimelineLane* timeline) {
  ShelfSettings settings;
  settings.wanted_ns = config.timeout.wanted_ns;
  settings.missing_ns = config.timeout.first_notice_ns / 2;  // workers give notice after that
  settings.missing_every_ns = config.timeout.notice_every_ns;
  settings.memory_bytes_max = config.memory_bytes_max / std::max(1U, config.shard_count);
  settings.deterministic = config.deterministic;
  settings.timeline = timeline;
  return settings;
}

}  // namespace

// ---- turns

Shard::Shard(const Config& config, ShardIndex index, Transport& transport,
             Mailbox<ShardCommand>& inbox, Mailbox<ShardNotice>& outbox, Log log,
             AbsenceSink absences)
    : index_(index),
      transport_(transport),
      inbox_(inbox),
      notices_{.box = outbox, .waiting = {}},
      log_(std::move(log)),
      absences_(std::move(absences)),
      timeline_(log_.timeline() == nullptr ? nullptr : &log_.timeline()->open_lane()),
      pool_(transport.payload_source()),
      shelf_(shelf_settings(config, timeline_), pool_),
      links_(config, {.noun = "shard", .index = index}, transport, pool_, log_, timeline_),
      scratch_{.commands = {}, .events = std::vector<Event>(kEventBatch)},
      patience_ns_(2 * config.timeout.failure_ns) {
  self_.role = Role::kServer;
  self_.job_id = config.job.job_id;
}

std::size_t Shard::turn(TimeNs now) {
  now_ = now;
  links_.begin_turn(now);
  std::size_t work = take_commands();
  links_.close_ended();
  for (int batch = 0; batch < kBatchesPerTurn; ++batch) {
    const std::size_t count = transport_.poll(now, scratch_.events);
    for (std::size_t i = 0; i < count; ++i) {
      look_ahead(i, count);
      handle(scratch_.events[i], now);
    }
    links_.close_ended();
    work += count;
    if (count < scratch_.events.size()) break;
  }
  // After the events: a worker that came back while this thread was not run is among them.
  if (now >= forgets_ns()) {
    links_.end_all({Code::kDisconnected, "all workers are gone"});
    forget();
  }
  shelf_.tick(now, out_);
  work += deliver();
  links_.close_ended();
  post_notices();
  return work;
}

TimeNs Shard::next_deadline() const {
  const TimeNs retry_ns = notices_.waiting.empty() ? kNever : now_ + kNoticeRetryNs;
  return std::min({transport_.next_deadline(), shelf_.next_deadline(), retry_ns, forgets_ns()});
}

bool Shard::finished() const {
  return stopping_ && links_.empty();
}

void Shard::failed(const Status& why) {
  LOG(log_, kError) << index_ << " failed: " << why.message();
  notify(ShardNotice::Kind::kFailed,
         why.in_words("shard " + std::to_string(index_.value) + " failed: " + why.message()));
  post_notices();
}

// S5
TimeNs Shard::forgets_ns() const {
  const TimeNs since_ns = links_.deserted_since_ns();
  return since_ns == kNever ? kNever : since_ns + patience_ns_;
}

// ---- commands

std::size_t Shard::take_commands() {
  inbox_.drain(scratch_.commands);
  for (const ShardCommand& command : scratch_.commands) {
    switch (command.kind) {
      case ShardCommand::Kind::kBeginEpoch:
        begin_epoch(command);
        break;
      case ShardCommand::Kind::kStop:
        stopping_ = true;
        links_.stop({Code::kCancelled, "the server ends"});
        forget();
        break;
      case ShardCommand::Kind::kWorkerLeft:
        shelf_.leave(command.worker, out_);
        deliver();
        break;
      case ShardCommand::Kind::kWorkerLost:
        shelf_.lose(command.worker, out_, links_.lose(command.worker, command.stand_ins));
        deliver();  // before who stands in for it is there, whose answers are counted anew
        break;
      case ShardCommand::Kind::kPing:
        notify(ShardNotice::Kind::kAlive, Status::ok());
        break;
    }
  }
  return scratch_.commands.size();
}

// Nobody is served from here on, so nothing is due to anybody, and no memory is kept for them.
void Shard::forget() {
  out_.clear();
  shelf_.end_epoch();
}

void Shard::begin_epoch(const ShardCommand& command) {
  if (stopping_) return;
  const ShelfEpoch& facts = command.facts;
  links_.end_all({Code::kDisconnected, "a new epoch began"});
  self_.epoch = {};
  self_.since = 0;
  out_.clear();
  const Status begun = shelf_.begin_epoch(facts);
  if (!begun.is_ok()) {
    LOG(log_, kError) << begun.message();
    return notify(ShardNotice::Kind::kFailed, begun);
  }
  if (command.failure_ns > 0) patience_ns_ = 2 * command.failure_ns;
  self_.rank = command.server_rank;
  self_.incarnation = command.incarnation;
  self_.epoch = facts.epoch;
  self_.since = command.since;
  links_.begin({.self = self_, .worker_count = facts.worker_count, .crew = {}});
  for (const WorkerRank worker : facts.lost) links_.lose(worker, command.stand_ins);
  LOG(log_, kDebug) << index_ << ": " << facts.epoch << " with " << facts.worker_count
                    << " workers";
  notify(ShardNotice::Kind::kEpochApplied, Status::ok());
}

// ---- events

// Records of small tensors are far away in memory: fetches those of the next pushes while this one is added.
void Shard::look_ahead(std::size_t at, std::size_t count) const {
  for (int distance = 1; distance <= Shelf::kFarthest; ++distance) {
    const std::size_t next = at + kEventsPerStep * static_cast<std::size_t>(distance);
    if (next >= count) return;
    if (scratch_.events[next].kind != Event::Kind::kReceived) continue;
    if (const auto push = wire::glimpse(scratch_.events[next].header)) {
      shelf_.expect(push->key, push->part, distance);
    }
  }
}

void Shard::handle(const Event& event, TimeNs now) {
  // Its roster may be newer than ours: the command is in the inbox then.
  if (event.kind == Event::Kind::kUp && !links_.is_of_epoch(event.hello)) take_commands();
  const WorkerLinks::News news = links_.handle(event);
  switch (news.kind) {
    case WorkerLinks::News::Kind::kNothing:
      return;
    case WorkerLinks::News::Kind::kUp:
      shelf_.connect(news.worker, out_);
      break;
    case WorkerLinks::News::Kind::kDown:
      shelf_.disconnect(news.worker, out_);
      break;
    case WorkerLinks::News::Kind::kMessage:
      shelf_.step(news.worker, news.header, event.payload, now, out_);
      break;
  }
  deliver();
}

// What is in out_; returns how much that was.
std::size_t Shard::deliver() {
  return links_.deliver(
      out_, Overloads{[this](ShelfOutput::Absence& absence) {
                        LOG(log_, kDebug) << absence.text();
                        if (absences_) absences_(self_.epoch, absence);
                      },
                      [this](ShelfOutput::Failure& failure) {
                        LOG(log_, kError) << failure.why.message();
                        notify(ShardNotice::Kind::kFailed, std::move(failure.why));
                      },
                      [](auto& /*of a relay*/) { CHECK(false) << "this is no relay"; }});
}

// ---- notices

void Shard::notify(ShardNotice::Kind kind, Status why) {
  notices_.waiting.push_back({kind, index_, self_.epoch, std::move(why)});
}

void Shard::post_notices() {
  std::vector<ShardNotice>& waiting = notices_.waiting;
  std::size_t posted = 0;
  while (posted < waiting.size() &&
         !notices_.box.post(std::move(waiting[posted])).is(Code::kAgain)) {
    ++posted;
  }
  waiting.erase(waiting.begin(), waiting.begin() + static_cast<std::ptrdiff_t>(posted));
}

}  // namespace byteps
