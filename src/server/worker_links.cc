#include "server/worker_links.h"

#include <algorithm>
#include <cstring>
#include <sstream>

#include "base/check.h"
#include "base/limits.h"
#include "base/phrases.h"
#include "base/planted.h"

namespace byteps {
namespace {

// What a tensor that ends with this has ended for.
CauseKind kind_of(Code code) {
  return code == Code::kMismatch ? CauseKind::kTensorDiffers
         : code == Code::kSystem ? CauseKind::kNoMemory
                                 : CauseKind::kOther;
}

// An empty one has all.
bool is_of_crew(const Crew& crew, WorkerRank worker) {
  return crew.empty() || std::binary_search(crew.begin(), crew.end(), worker);
}

}  // namespace

// ---- the queue of a link

void WorkerLinks::Queue::push(Message&& message) {
  // Moves up what is left once at least half is gone, instead of growing.
  if (messages_.size() == messages_.capacity() && next_ > messages_.size() / 2) {
    messages_.erase(messages_.begin(), messages_.begin() + static_cast<std::ptrdiff_t>(next_));
    next_ = 0;
  }
  bytes_ += message.payload_bytes;
  messages_.push_back(std::move(message));
}

void WorkerLinks::Queue::pop() {
  bytes_ -= messages_[next_].payload_bytes;
  messages_[next_++].buffer = {};
  if (next_ == messages_.size()) clear();
}

void WorkerLinks::Queue::clear() {
  messages_.clear();
  next_ = 0;
  bytes_ = 0;
}

// ---- whom it serves

WorkerLinks::WorkerLinks(const Config& config, const Place& place, Transport& transport,
                         BufferPool& pool, const Log& log, TimelineLane* timeline)
    : place_(place),
      queued_bytes_max_(std::clamp(config.memory_bytes_max / std::max(1U, config.shard_count) / 2,
                                   std::uint64_t{kWaitingBytesLeast},
                                   std::uint64_t{kWaitingBytesMost})),
      transport_(transport),
      pool_(pool),
      log_(log),
      timeline_(timeline) {}

void WorkerLinks::begin(Service service) {
  CHECK(links_.empty() && stopped_.is_ok()) << "an epoch begins before the former one has ended";
  service_ = std::move(service);
  if (!service_.is_guest) transport_.set_self(service_.self);
  transport_.expect_peers(service_.crew.empty() ? service_.worker_count : service_.crew.size());
  links_.resize(service_.worker_count);
}

void WorkerLinks::end_all(const Status& why) {
  for (WorkerRank worker(0); worker.value < links_.size(); ++worker.value) end(worker, why);
  links_.clear();
  service_.worker_count = 0;
  deserted_since_ns_ = kNever;
}

void WorkerLinks::stop(const Status& why) {
  end_all(why);
  stopped_ = why;
}

std::vector<WorkerRank> WorkerLinks::lose(WorkerRank worker,
                                          const std::map<WorkerRank, std::uint32_t>& stand_ins) {
  std::vector<WorkerRank> moved;
  if (worker.value < links_.size() && !std::exchange(links_[worker.value].lost, true)) {
    end(worker, {Code::kDisconnected, "it was away for too long, and the job goes on without it"});
  }
  for (WorkerRank each(0); each.value < links_.size(); ++each.value) {
    const auto found = stand_ins.find(each);
    const std::uint32_t since = found == stand_ins.end() ? 0 : found->second;
    if (links_[each.value].stands_since == since) continue;
    end(each, {Code::kDisconnected, "no relay stands in for it there any more"});
    links_[each.value].stands_since = since;
    moved.push_back(each);
  }
  return moved;
}

bool WorkerLinks::is_of_epoch(const Hello& hello) const {
  return hello.epoch == service_.self.epoch && hello.incarnation == service_.self.incarnation &&
         hello.since == service_.self.since;
}

// ---- what is there

bool WorkerLinks::any_up() const {
  return std::any_of(links_.begin(), links_.end(), [](const Link& link) { return link.up; });
}

std::size_t WorkerLinks::queued_message_count() const {
  std::size_t count = 0;
  for (const Link& link : links_) count += link.queue.size();
  return count;
}

// ---- events

WorkerLinks::News WorkerLinks::handle(const Event& event) {
  switch (event.kind) {
    case Event::Kind::kUp:
      return up(event);
    case Event::Kind::kReceived:
      return received(event);
    case Event::Kind::kSent:
      sent(event);
      break;
    case Event::Kind::kDown:
      return down(event);
  }
  return {};
}

WorkerLinks::News WorkerLinks::up(const Event& event) {
  peers_.add(event.peer, WorkerRank(event.hello.rank));
  const Status refused = refusal(event);
  if (!refused.is_ok()) {
    LOG(log_, kDebug) << "a connection was refused: " << refused.message();
    ended_.emplace_back(event.peer, refused);
    return {};
  }
  const WorkerRank worker(event.hello.rank);
  end(worker, {Code::kDisconnected, "this worker has a newer connection"});
  peers_.find(event.peer)->served = true;
  links_[worker.value].peer = event.peer;
  links_[worker.value].up = true;
  links_[worker.value].backlog_since_ns = 0;
  deserted_since_ns_ = kNever;
  record_link("up", worker, {});
  return {.kind = News::Kind::kUp, .worker = worker, .header = {}};
}

// Ok: this connection is served.
Status WorkerLinks::refusal(const Event& up) const {
  const Hello& hello = up.hello;
  std::ostringstream why;
  if (!stopped_.is_ok()) {
    why << stopped_.message();
  } else if (hello.role != Role::kWorker) {
    why << "a " << place_.noun << " serves workers, not a " << name(hello.role);
  } else if (service_.worker_count == 0) {
    why << "this " << place_.noun << " serves nobody now";
  } else if (hello.incarnation != service_.self.incarnation && !PLANTED(incarnation_not_fenced)) {
    // A worker that its job has left behind, say: the key is the same, and so may be epoch, ranks and names.
    why << "it is of another job, or of an earlier life of this one: its scheduler is another";
  } else if (hello.epoch != service_.self.epoch) {
    why << "it is of " << hello.epoch << ", this " << place_.noun << " serves "
        << service_.self.epoch;
  } else if (hello.since != service_.self.since) {
    // It has not heard of this successor, or looks for the one of this one.
    why << "it looks for who serves this slot since revision " << hello.since << ", this "
        << place_.noun << " does since " << service_.self.since;
  } else if (hello.rank >= service_.worker_count) {
    why << "worker " << hello.rank << " of a job with " << service_.worker_count;
  } else if (!is_of_crew(service_.crew, WorkerRank(hello.rank))) {
    why << "a " << place_.noun << " serves the workers of its machine, not worker " << hello.rank;
  } else if (hello.stands_since != links_[hello.rank].stands_since) {
    why << "its relay stands in for worker " << hello.rank << " since revision "
        << hello.stands_since << ", here "
        << (links_[hello.rank].stands_since == 0
                ? "it is not lost"
                : "that is known of one since " + std::to_string(links_[hello.rank].stands_since));
  } else if (links_[hello.rank].lost && hello.stands_since == 0) {
    why << "worker " << hello.rank << " was away for too long, and the job goes on without it";
  } else if (const Link& link = links_[hello.rank]; link.up && up.peer < link.peer) {
    // Between connections there is no order (T2), but their numbers have one: this was an earlier attempt.
    why << "this worker has a newer connection";
  } else {
    return Status::ok();
  }
  return {Code::kDisconnected, why.str()};
}

WorkerLinks::News WorkerLinks::received(const Event& event) {
  const Peers::Peer* const connection = peers_.find(event.peer);
  if (connection == nullptr || !connection->served) return {};
  const WorkerRank worker = connection->worker;
  const Result<wire::Header> header = wire::header_of(event);
  if (!header.is_ok()) {
    tell(ShelfOutput::Violation{worker, header.status().message()});
    return {};
  }
  if (header.value().kind == wire::Kind::kDeclare) record_declare(header.value(), event.payload);
  return {.kind = News::Kind::kMessage, .worker = worker, .header = header.value()};
}

void WorkerLinks::sent(const Event& event) {
  --sending_count_;
  if (event.token != 0) lent_.give_back(event.token);
  const Peers::Peer* const connection = peers_.find(event.peer);
  if (connection == nullptr || !connection->served) return;
  Link& link = links_[connection->worker.value];
  while (!link.queue.empty() && send(link, link.queue.front())) link.queue.pop();
  if (link.backlog_since_ns != 0 && link.queue.empty()) record_backlog(link, connection->worker);
}

WorkerLinks::News WorkerLinks::down(const Event& event) {
  const Peers::Peer* const peer = peers_.find(event.peer);
  if (peer == nullptr) return {};
  News news;
  if (peer->served) {
    Link& link = links_[peer->worker.value];
    link.up = false;
    link.queue.clear();
    record_link("down", peer->worker, event.why.message());
    if (!any_up()) deserted_since_ns_ = now_;
    news = {.kind = News::Kind::kDown, .worker = peer->worker, .header = {}};
  }
  peers_.remove(event.peer);
  return news;
}

// Stops serving the connection of this worker, if it has one. Its kDown still comes.
void WorkerLinks::end(WorkerRank worker, const Status& why) {
  Link& link = links_[worker.value];
  if (!link.up) return;
  peers_.find(link.peer)->served = false;
  link.up = false;
  link.queue.clear();
  ended_.emplace_back(link.peer, why);
  if (!any_up()) deserted_since_ns_ = now_;
}

void WorkerLinks::close_ended() {
  for (const auto& [peer, why] : ended_) transport_.close(peer, why);
  ended_.clear();
}

// ---- what the shelf says

// The answers to all workers stand in a row with one buffer: its checksum is computed while the sum is in the cache.
void WorkerLinks::tell(ShelfOutput::Answer& answer, Sum& last) {
  const std::span<const std::byte> payload = answer.payload();
  if (payload.data() != last.data) last = {payload.data(), std::nullopt};
  Message message{answer.header, std::move(answer.buffer), answer.payload_bytes, last.crc};
  post(answer.header.worker, message);
  last.crc = message.payload_crc;
}

void WorkerLinks::tell(const ShelfOutput::Wanted& wanted) {
  Message message;
  message.header.kind = wire::Kind::kWanted;
  message.header.epoch = service_.self.epoch;
  message.header.key = wanted.key;
  message.header.part = wanted.part;
  message.header.round = wanted.round;
  message.header.offset_bytes = wanted.end_bytes;
  message.header.worker = wanted.worker;
  log_.record({.kind = "wanted",
               .name = place_.noun,
               .role = "worker",
               .rank = wanted.worker.value,
               .key = wanted.key.value,
               .part = wanted.part.value,
               .round = wanted.round.value,
               .at_ns = now_});
  post(wanted.worker, message);
}

void WorkerLinks::tell(const ShelfOutput::Renew& renew) {
  end(renew.worker, {Code::kDisconnected, renew.text});
}

void WorkerLinks::tell(const ShelfOutput::Ask& asked) {
  Message message;
  message.header.kind = asked.kind;
  if (asked.kind == wire::Kind::kSettled) message.header.flags = wire::kOfFrame;
  message.header.epoch = service_.self.epoch;
  message.header.key = asked.key;
  message.header.part = asked.part;
  message.header.round = asked.round;
  message.header.offset_bytes = asked.offset_bytes;
  message.header.worker = asked.worker;
  post(asked.worker, message);
}

void WorkerLinks::tell(const ShelfOutput::ForgottenByAll& forgotten) {
  Message message;
  message.header.kind = wire::Kind::kForgotten;
  message.header.epoch = service_.self.epoch;
  message.header.key = forgotten.key;
  post_to(forgotten.worker, message);
}

void WorkerLinks::tell(const ShelfOutput::Settled& settled) {
  Message message;
  message.header.kind = wire::Kind::kSettled;
  message.header.epoch = service_.self.epoch;
  message.header.worker = settled.worker;
  message.header.count = settled.count;
  post(settled.worker, message);
}

void WorkerLinks::tell(const ShelfOutput::Violation& violation) {
  if (!links_[violation.worker.value].up) return;
  warn(Misdeed::kBrokeProtocol, "worker " + std::to_string(violation.worker.value) +
                                    " broke the protocol, its connection ends: " + violation.text);
  end(violation.worker, {Code::kInvalidArgument, violation.text});
}

WorkerLinks::Message WorkerLinks::message_of(wire::Kind kind, Key key,
                                             std::span<const std::byte> payload) {
  Message message;
  message.header.kind = kind;
  message.header.epoch = service_.self.epoch;
  message.header.key = key;
  message.payload_bytes = payload.size();
  message.buffer = pool_.take(payload.size());
  std::memcpy(message.buffer.span().data(), payload.data(), payload.size());
  return message;
}

void WorkerLinks::tell(const ShelfOutput::Missing& missing) {
  Message message = message_of(wire::Kind::kMissing, missing.key,
                               wire::encode(wire::Missing{Members(missing.ranks)}));
  message.header.part = missing.part;
  message.header.round = missing.round;
  if (log_.flight() != nullptr) {
    const std::string whom = workers_text(missing.ranks);
    log_.record({.kind = "missing",
                 .name = place_.noun,
                 .role = "worker",
                 .rank = missing.ranks.front(),
                 .key = missing.key.value,
                 .part = missing.part.value,
                 .round = missing.round.value,
                 .text = whom,
                 .at_ns = now_});
  }
  for (const WorkerRank worker : missing.to) {
    Message copy = message;
    copy.header.worker = worker;
    post(worker, copy);
  }
}

void WorkerLinks::tell(const ShelfOutput::Spoiled& spoiled) {
  Cause cause = spoiled.cause;
  if (cause.kind == CauseKind::kOther) cause.kind = kind_of(spoiled.code);
  const wire::Text text{spoiled.text, static_cast<std::uint32_t>(spoiled.code), std::move(cause)};
  const Message message = message_of(wire::Kind::kMismatch, spoiled.key, wire::encode(text));
  if (!spoiled.worker) warn(Misdeed::kSpoiledTensor, spoiled.text);
  post_to(spoiled.worker, message);
}

void WorkerLinks::tell(const ShelfOutput::InputsDone& done) {
  Message message;
  message.header.kind = wire::Kind::kInputsDone;
  message.header.epoch = service_.self.epoch;
  message.header.round = Round(done.generation);
  message.header.worker = done.last;
  for (WorkerRank worker(0); worker.value < links_.size(); ++worker.value) {
    if (done.worker && *done.worker != worker) continue;
    Message copy = message;
    post(worker, copy);
  }
}

// Or to all, in the name of whom it is for.
void WorkerLinks::post_to(std::optional<WorkerRank> one, const Message& message) {
  for (WorkerRank worker(0); worker.value < links_.size(); ++worker.value) {
    if (one && *one != worker) continue;
    Message copy = message;
    copy.header.worker = worker;
    post(worker, copy);
  }
}

// S3. Drops it when the worker is not connected: it will ask again.
void WorkerLinks::post(WorkerRank worker, Message& message) {
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

bool WorkerLinks::send(Link& link, Message& message) {
  const wire::HeaderBytes header = wire::encode(message.header);
  Outgoing outgoing;
  outgoing.header = header;
  if (message.buffer) {
    outgoing.payload =
        std::span<const std::byte>(message.buffer.span()).first(message.payload_bytes);
    outgoing.payload_crc = &message.payload_crc;
    outgoing.bulk = message.header.kind == wire::Kind::kAnswer;
    outgoing.token = lent_.next_token();
  }
  const Status sent = transport_.send(link.peer, outgoing);
  if (sent.is(Code::kAgain)) return false;
  CHECK(sent.is_ok() || sent.is(Code::kDisconnected)) << sent.text();
  if (sent.is_ok()) ++sending_count_;
  if (sent.is_ok() && message.buffer) lent_.lend(std::move(message.buffer));
  return true;  // or the connection is gone, and its kDown on the way
}

// ---- the flight recorder

void WorkerLinks::record_link(const char* kind, WorkerRank worker, std::string_view why) const {
  log_.record({.kind = kind,
               .name = place_.noun,
               .role = "worker",
               .rank = worker.value,
               .epoch = service_.self.epoch.value,
               .number = place_.index.value,
               .text = why,
               .at_ns = now_});
}

void WorkerLinks::record_declare(const wire::Header& header,
                                 std::span<const std::byte> payload) const {
  if (log_.flight() == nullptr) return;
  const Result<wire::Declare> declare = wire::decode_declare(payload);
  if (!declare.is_ok()) return;  // the shelf says so
  log_.record({.kind = "declare",
               .name = place_.noun,
               .role = "worker",
               .rank = header.worker.value,
               .key = header.key.value,
               .bytes = declare.value().total_bytes,
               .text = declare.value().name,
               .at_ns = now_});
}

// ---- the timeline

void WorkerLinks::begin_backlog(Link& link, const Message& message) const {
  const bool traced = message.header.kind == wire::Kind::kAnswer &&
                      timeline_->timeline().traces(message.header.round);
  link.backlog_since_ns = traced ? timeline_->timeline().now() : 0;
}

void WorkerLinks::record_backlog(Link& link, WorkerRank worker) const {
  TimelineRecord record{};
  record.kind = TimelineRecord::Kind::kBacklog;
  record.shard = place_.index.value;
  record.worker = worker.value;
  record.at_ns[TimelineRecord::kBegan] = std::exchange(link.backlog_since_ns, 0);
  record.at_ns[TimelineRecord::kEnded] = timeline_->timeline().now();
  timeline_->add(record);
}

void WorkerLinks::warn(Misdeed misdeed, const std::string& text) {
  const auto line = quiet_.pass(static_cast<std::size_t>(misdeed), now_, text);
  if (line) log_.write(LogLevel::kWarning, *line);
}

}  // namespace byteps
