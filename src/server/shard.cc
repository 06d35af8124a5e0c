#include "server/shard.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <sstream>
#include <utility>

#include "base/check.h"
#include "base/planted.h"
#include "kernels/crc32c.h"

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

// What a tensor that ends with this has ended for.
CauseKind kind_of(Code code) {
  return code == Code::kMismatch ? CauseKind::kTensorDiffers
         : code == Code::kSystem ? CauseKind::kNoMemory
                                 : CauseKind::kOther;
}

}  // namespace

// ---- the queue of a link

void Shard::Queue::push(Message&& message) {
  // Moves up what is left once at least half is gone, instead of growing.
  if (messages_.size() == messages_.capacity() && next_ > messages_.size() / 2) {
    messages_.erase(messages_.begin(), messages_.begin() + static_cast<std::ptrdiff_t>(next_));
    next_ = 0;
  }
  bytes_ += message.payload_bytes;
  messages_.push_back(std::move(message));
}

void Shard::Queue::pop() {
  bytes_ -= messages_[next_].payload_bytes;
  messages_[next_++].buffer = {};
  if (next_ == messages_.size()) clear();
}

void Shard::Queue::clear() {
  messages_.clear();
  next_ = 0;
  bytes_ = 0;
}

// ---- turns

Shard::Shard(const Config& config, ShardIndex index, Transport& transport,
             Mailbox<ShardCommand>& inbox, Mailbox<ShardNotice>& outbox, Log log)
    : index_(index),
      queued_bytes_max_(std::clamp(config.memory_bytes_max / std::max(1U, config.shard_count) / 2,
                                   std::uint64_t{kWaitingBytesLeast},
                                   std::uint64_t{kWaitingBytesMost})),
      transport_(transport),
      inbox_(inbox),
      notices_{.box = outbox, .waiting = {}},
      log_(std::move(log)),
      timeline_(log_.timeline() == nullptr ? nullptr : &log_.timeline()->open_lane()),
      pool_(transport.payload_source()),
      shelf_(shelf_settings(config, timeline_), pool_),
      scratch_{.commands = {}, .events = std::vector<Event>(kEventBatch)} {
  deserted_.patience_ns = 2 * config.timeout.failure_ns;
  serving_.self.role = Role::kServer;
  serving_.self.job_id = config.job.job_id;
}

std::size_t Shard::turn(TimeNs now) {
  now_ = now;
  std::size_t work = take_commands();
  close_ended();
  for (int batch = 0; batch < kBatchesPerTurn; ++batch) {
    const std::size_t count = transport_.poll(now, scratch_.events);
    for (std::size_t i = 0; i < count; ++i) {
      look_ahead(i, count);
      handle(scratch_.events[i], now);
    }
    close_ended();
    work += count;
    if (count < scratch_.events.size()) break;
  }
  // After the events: a worker that came back while this thread was not run is among them.
  if (now >= deserted_.forgets_ns) end_epoch({Code::kDisconnected, "all workers are gone"});
  shelf_.tick(now, out_);
  work += deliver();
  close_ended();
  post_notices();
  return work;
}

TimeNs Shard::next_deadline() const {
  const TimeNs retry_ns = notices_.waiting.empty() ? kNever : now_ + kNoticeRetryNs;
  return std::min(
      {transport_.next_deadline(), shelf_.next_deadline(), retry_ns, deserted_.forgets_ns});
}

bool Shard::finished() const {
  return stopping_ && peers_.empty() && lent_.all_are_back();
}

void Shard::failed(const Status& why) {
  LOG(log_, kError) << index_ << " failed: " << why.message();
  notify(ShardNotice::Kind::kFailed,
         why.in_words("shard " + std::to_string(index_.value) + " failed: " + why.message()));
  post_notices();
}

std::size_t Shard::queued_message_count() const {
  std::size_t count = 0;
  for (const Link& link : links_) count += link.queue.size();
  return count;
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
        end_epoch({Code::kCancelled, "the server ends"});
        break;
      case ShardCommand::Kind::kPing:
        notify(ShardNotice::Kind::kAlive, Status::ok());
        break;
    }
  }
  return scratch_.commands.size();
}

// Nobody is served from here on, so nothing is due to anybody, and no memory is kept for them.
void Shard::end_epoch(const Status& why) {
  end_all(why);
  out_.clear();
  shelf_.end_epoch();
  serving_.facts.worker_count = 0;
  deserted_.forgets_ns = kNever;
}

// A worker's connection has ended.
void Shard::note_absence() {
  const bool any_up =
      std::any_of(links_.begin(), links_.end(), [](const Link& link) { return link.up; });
  if (!any_up) deserted_.forgets_ns = now_ + deserted_.patience_ns;
}

void Shard::begin_epoch(const ShardCommand& command) {
  if (stopping_) return;
  const ShelfEpoch& facts = command.facts;
  end_all({Code::kDisconnected, "a new epoch began"});
  serving_.facts = {};
  deserted_.forgets_ns = kNever;
  out_.clear();
  const Status begun = shelf_.begin_epoch(facts);
  if (!begun.is_ok()) {
    LOG(log_, kError) << begun.message();
    return notify(ShardNotice::Kind::kFailed, begun);
  }
  serving_.facts = facts;
  if (command.failure_ns > 0) deserted_.patience_ns = 2 * command.failure_ns;
  serving_.self.rank = command.server_rank;
  serving_.self.incarnation = command.incarnation;
  serving_.self.epoch = facts.epoch;
  transport_.set_self(serving_.self);
  transport_.expect_peers(facts.worker_count);
  links_.resize(facts.worker_count);
  LOG(log_, kDebug) << index_ << ": " << facts.epoch << " with " << facts.worker_count
                    << " workers";
  notify(ShardNotice::Kind::kEpochApplied, Status::ok());
}

void Shard::end_all(const Status& why) {
  for (WorkerRank worker(0); worker.value < links_.size(); ++worker.value) end(worker, why);
  links_.clear();
}

// Stops serving the connection of this worker, if it has one. Its kDown still comes.
void Shard::end(WorkerRank worker, const Status& why) {
  Link& link = links_[worker.value];
  if (!link.up) return;
  peers_.find(link.peer)->served = false;
  link.up = false;
  link.queue.clear();
  ended_.emplace_back(link.peer, why);
  note_absence();
}

// close() ends the views of all events of a poll(), so it waits until they are handled.
void Shard::close_ended() {
  for (const auto& [peer, why] : ended_) transport_.close(peer, why);
  ended_.clear();
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
  switch (event.kind) {
    case Event::Kind::kUp:
      return up(event);
    case Event::Kind::kReceived:
      return received(event, now);
    case Event::Kind::kSent:
      return sent(event);
    case Event::Kind::kDown:
      return down(event);
  }
}

void Shard::up(const Event& event) {
  // Its roster may be newer than ours: the command is in the inbox then.
  if (event.hello.epoch != serving_.self.epoch ||
      event.hello.incarnation != serving_.self.incarnation) {
    take_commands();
  }
  peers_.add(event.peer, WorkerRank(event.hello.rank));
  const Status refused = refusal(event.hello);
  if (!refused.is_ok()) {
    LOG(log_, kDebug) << "a connection was refused: " << refused.message();
    ended_.emplace_back(event.peer, refused);
    return;
  }
  const WorkerRank worker(event.hello.rank);
  end(worker, {Code::kDisconnected, "this worker has a newer connection"});
  peers_.find(event.peer)->served = true;
  links_[worker.value].peer = event.peer;
  links_[worker.value].up = true;
  deserted_.forgets_ns = kNever;
  links_[worker.value].backlog_since_ns = 0;
  record_link("up", worker, {});
  shelf_.connect(worker, out_);
  deliver();
}

// Ok: this connection is served.
Status Shard::refusal(const Hello& hello) {
  std::ostringstream why;
  if (stopping_) {
    why << "the server ends";
  } else if (hello.role != Role::kWorker) {
    why << "a shard serves workers, not a " << name(hello.role);
  } else if (serving_.facts.worker_count == 0) {
    why << "this shard serves nobody now";
  } else if (hello.incarnation != serving_.self.incarnation && !PLANTED(incarnation_not_fenced)) {
    // A worker that its job has left behind, say: the key is the same, and so may be epoch, ranks and names.
    why << "it is of another job, or of an earlier life of this one: its scheduler is another";
  } else if (hello.epoch != serving_.facts.epoch) {
    why << "it is of " << hello.epoch << ", this shard serves " << serving_.facts.epoch;
  } else if (hello.rank >= serving_.facts.worker_count) {
    why << "worker " << hello.rank << " of a job with " << serving_.facts.worker_count;
  } else {
    return Status::ok();
  }
  return {Code::kDisconnected, why.str()};
}

void Shard::received(const Event& event, TimeNs now) {
  const Peers::Peer* const connection = peers_.find(event.peer);
  if (connection == nullptr || !connection->served) return;
  const WorkerRank worker = connection->worker;
  const Result<wire::Header> header = wire::decode_header(event.header);
  if (header.is_ok()) {
    if (header.value().kind == wire::Kind::kDeclare) record_declare(header.value(), event.payload);
    shelf_.step(worker, header.value(), event.payload, now, out_);
  } else {
    out_.emplace_back(ShelfOutput::Violation{worker, header.status().message()});
  }
  deliver();
}

void Shard::sent(const Event& event) {
  if (event.token != 0) lent_.give_back(event.token);
  const Peers::Peer* const connection = peers_.find(event.peer);
  if (connection == nullptr || !connection->served) return;
  Link& link = links_[connection->worker.value];
  while (!link.queue.empty() && send(link, link.queue.front())) link.queue.pop();
  if (link.backlog_since_ns != 0 && link.queue.empty()) record_backlog(link, connection->worker);
}

void Shard::down(const Event& event) {
  const Peers::Peer* const peer = peers_.find(event.peer);
  if (peer == nullptr) return;
  if (peer->served) {
    Link& link = links_[peer->worker.value];
    link.up = false;
    link.queue.clear();
    record_link("down", peer->worker, event.why.message());
    note_absence();
  }
  peers_.remove(event.peer);
}

// ---- what the shelf wants done

std::size_t Shard::deliver() {
  const std::size_t count = out_.size();
  Sum last;
  const Overloads does{
      [&](ShelfOutput::Answer& answer) { deliver(answer, last); },
      [this](ShelfOutput::Renew& renew) {
        end(renew.worker, {Code::kDisconnected, std::move(renew.text)});
      },
      [](const ShelfOutput::Forward&) { CHECK(false) << "a server forwards nothing"; },
      [this](ShelfOutput::Failure& failure) {
        LOG(log_, kError) << failure.why.message();
        notify(ShardNotice::Kind::kFailed, std::move(failure.why));
      },
      [this](const auto& told) { deliver(told); }};
  for (auto& output : out_) std::visit(does, output);
  out_.clear();
  return count;
}

// The answers to all workers stand in a row with one buffer: its checksum is computed while the sum is in the cache.
void Shard::deliver(ShelfOutput::Answer& answer, Sum& last) {
  const std::span<const std::byte> payload = answer.payload();
  if (payload.data() != last.data) last = {payload.data(), std::nullopt};
  Message message{answer.header, answer.landing_offset, std::move(answer.buffer),
                  answer.payload_bytes, last.crc};
  post(answer.header.worker, message);
  last.crc = message.payload_crc;
}

void Shard::deliver(const ShelfOutput::Wanted& wanted) {
  Message message;
  message.header.kind = wire::Kind::kWanted;
  message.header.epoch = serving_.facts.epoch;
  message.header.key = wanted.key;
  message.header.part = wanted.part;
  message.header.round = wanted.round;
  message.header.worker = wanted.worker;
  log_.record({.kind = "wanted",
               .role = "worker",
               .rank = wanted.worker.value,
               .key = wanted.key.value,
               .part = wanted.part.value,
               .round = wanted.round.value,
               .at_ns = now_});
  post(wanted.worker, message);
}

void Shard::deliver(const ShelfOutput::Violation& violation) {
  if (!links_[violation.worker.value].up) return;
  warn(Misdeed::kBrokeProtocol, "worker " + std::to_string(violation.worker.value) +
                                    " broke the protocol, its connection ends: " + violation.text);
  end(violation.worker, {Code::kInvalidArgument, violation.text});
}

Shard::Message Shard::message_of(wire::Kind kind, Key key, std::span<const std::byte> payload) {
  Message message;
  message.header.kind = kind;
  message.header.epoch = serving_.facts.epoch;
  message.header.key = key;
  message.payload_bytes = payload.size();
  message.buffer = pool_.take(payload.size());
  std::memcpy(message.buffer.span().data(), payload.data(), payload.size());
  return message;
}

void Shard::deliver(const ShelfOutput::Missing& missing) {
  Message message = message_of(wire::Kind::kMissing, missing.key,
                               wire::encode(wire::Missing{Members(missing.ranks)}));
  message.header.part = missing.part;
  message.header.round = missing.round;
  for (const WorkerRank worker : missing.to) {
    Message copy = message;
    copy.header.worker = worker;
    post(worker, copy);
  }
}

void Shard::deliver(const ShelfOutput::Spoiled& spoiled) {
  const Message message =
      message_of(wire::Kind::kMismatch, spoiled.key,
                 wire::encode(wire::Text{spoiled.text,
                                         static_cast<std::uint32_t>(spoiled.code),
                                         {.kind = kind_of(spoiled.code)}}));
  if (!spoiled.worker) warn(Misdeed::kSpoiledTensor, spoiled.text);
  for (WorkerRank worker(0); worker.value < links_.size(); ++worker.value) {
    if (spoiled.worker && *spoiled.worker != worker) continue;
    Message copy = message;
    copy.header.worker = worker;
    post(worker, copy);
  }
}

void Shard::deliver(const ShelfOutput::InputsDone& done) {
  Message message;
  message.header.kind = wire::Kind::kInputsDone;
  message.header.epoch = serving_.facts.epoch;
  message.header.round = Round(done.generation);
  message.header.worker = done.last;
  for (WorkerRank worker(0); worker.value < links_.size(); ++worker.value) {
    if (done.worker && *done.worker != worker) continue;
    Message copy = message;
    post(worker, copy);
  }
}

// S3. Drops it when the worker is not connected: it will ask again.
void Shard::post(WorkerRank worker, Message& message) {
  Link& link = links_[worker.value];
  if (!link.up) return;
  if (link.queue.empty() && send(link, message)) return;
  if (link.queue.size() >= waiting_messages_max(links_.size()) ||
      link.queue.bytes() + message.payload_bytes > queued_bytes_max_) {
    const std::string text = "it does not read: " + std::to_string(link.queue.size()) +
                             " messages of " + std::to_string(link.queue.bytes()) +
                             " bytes wait for it";
    warn(Misdeed::kDoesNotRead,
         "worker " + std::to_string(worker.value) + ", its connection ends: " + text);
    return end(worker, {Code::kTimeout, text});
  }
  if (PLANTED(answer_dropped_when_full)) return;
  if (timeline_ != nullptr && link.queue.empty()) begin_backlog(link, message);
  link.queue.push(std::move(message));
}

bool Shard::send(Link& link, Message& message) {
  const wire::HeaderBytes header = wire::encode(message.header);
  Outgoing outgoing;
  outgoing.header = header;
  if (message.buffer) {
    outgoing.payload =
        std::span<const std::byte>(message.buffer.span()).first(message.payload_bytes);
    outgoing.landing = message.header.landing;
    outgoing.payload_crc = &message.payload_crc;
    outgoing.landing_offset = message.landing_offset;
    outgoing.token = lent_.next_token();
  }
  const Status sent = transport_.send(link.peer, outgoing);
  if (sent.is(Code::kAgain)) return false;
  CHECK(sent.is_ok() || sent.is(Code::kDisconnected)) << sent.text();
  if (sent.is_ok() && message.buffer) lent_.lend(std::move(message.buffer));
  return true;  // or the connection is gone, and its kDown on the way
}

// ---- the flight recorder

void Shard::record_link(const char* kind, WorkerRank worker, std::string_view why) const {
  log_.record({.kind = kind,
               .role = "worker",
               .rank = worker.value,
               .epoch = serving_.facts.epoch.value,
               .number = index_.value,
               .text = why,
               .at_ns = now_});
}

void Shard::record_declare(const wire::Header& header, std::span<const std::byte> payload) const {
  if (log_.flight() == nullptr) return;
  const Result<wire::Declare> declare = wire::decode_declare(payload);
  if (!declare.is_ok()) return;  // the shelf says so
  log_.record({.kind = "declare",
               .role = "worker",
               .rank = header.worker.value,
               .key = header.key.value,
               .bytes = declare.value().total_bytes,
               .text = declare.value().name,
               .at_ns = now_});
}

// ---- the timeline

void Shard::begin_backlog(Link& link, const Message& message) const {
  const bool traced = message.header.kind == wire::Kind::kAnswer &&
                      timeline_->timeline().traces(message.header.round);
  link.backlog_since_ns = traced ? timeline_->timeline().now() : 0;
}

void Shard::record_backlog(Link& link, WorkerRank worker) const {
  TimelineRecord record{};
  record.kind = TimelineRecord::Kind::kBacklog;
  record.shard = index_.value;
  record.worker = worker.value;
  record.at_ns[TimelineRecord::kBegan] = std::exchange(link.backlog_since_ns, 0);
  record.at_ns[TimelineRecord::kEnded] = timeline_->timeline().now();
  timeline_->add(record);
}

void Shard::warn(Misdeed misdeed, const std::string& text) {
  const auto line = quiet_.pass(static_cast<std::size_t>(misdeed), now_, text);
  if (line) log_.write(LogLevel::kWarning, *line);
}

// ---- notices

void Shard::notify(ShardNotice::Kind kind, Status why) {
  notices_.waiting.push_back({kind, index_, serving_.facts.epoch, std::move(why)});
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
