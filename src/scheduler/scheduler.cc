#include "scheduler/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/limits.h"
#include "net/wire_text.h"

namespace byteps {
namespace {

constexpr std::size_t kEventsPerPoll = 64;
constexpr int kPollsPerTurn = 4;
// Who stands still is told by what it says, so the clock is looked at when all that came is handed in; but in the end
// in any case.
constexpr int kTurnsWithoutTickMax = 16;
// What one turn sends at most; the rest goes with the next. A roster for 1,000 workers may have 200 KiB, so that all
// together are too much for a turn in which nobody else is heard.
constexpr std::size_t kSendsPerTurn = 512;
constexpr std::size_t kSentBytesPerTurn = std::size_t{4} << 20;
// That nobody has taken yet: each worker once.
constexpr std::size_t kEndedWorkersMax = kWorkersMax;

}  // namespace

Scheduler::Scheduler(const Config& config, Transport& transport, Log log)
    : transport_(transport),
      log_(std::move(log)),
      keeper_(config),
      outbox_(transport),
      events_(kEventsPerPoll),
      ended_workers_(kEndedWorkersMax, nullptr) {}

std::size_t Scheduler::turn(TimeNs now) {
  now_ = now;
  if (log_.flight() != nullptr) log_.flight()->note_late(due_ns_, now);
  std::size_t work = 0;
  bool all_handed_in = false;
  sends_left_ = kSendsPerTurn;
  sent_bytes_left_ = kSentBytesPerTurn;
  for (int i = 0; i < kPollsPerTurn && !all_handed_in; ++i) {
    const std::size_t count = transport_.poll(now, events_);
    for (std::size_t e = 0; e < count; ++e) handle(events_[e], now);
    work += count;
    work += carry_out(now);
    all_handed_in = count == 0;
  }
  hear_of_ended_workers(now);
  send_heartbeats(now);
  if (all_handed_in || ++turns_without_tick_ >= kTurnsWithoutTickMax) {
    turns_without_tick_ = 0;
    keeper_.tick(now, out_);
  }
  if (stop_requested_.exchange(false, std::memory_order_acquire)) {
    keeper_.stop({Code::kCancelled,
                  "the scheduler was told to stop",
                  {.kind = CauseKind::kToldToStop, .who = {.role = Role::kScheduler}}},
                 now, out_);
  }
  work += carry_out(now);
  if (!keeper_.outcome().is_ok() && !left_behind_) leave_behind();
  due_ns_ = next_deadline();
  return work;
}

void Scheduler::handle(const Event& event, TimeNs now) {
  if (log_.flight() != nullptr) record(event, now);
  switch (event.kind) {
    case Event::Kind::kUp:
      return keeper_.on_up(event.peer, event.hello, now, out_);
    case Event::Kind::kDown:
      outbox_.on_down(event.peer);
      return keeper_.on_down(event.peer, event.why, now, out_);
    case Event::Kind::kSent:
      return outbox_.on_sent(event.peer, event.token);
    case Event::Kind::kReceived: {
      const Result<wire::Header> header = wire::header_of(event);
      if (!header.is_ok()) return keeper_.on_malformed(event.peer, header.status(), out_);
      return keeper_.step(event.peer, header.value(), event.payload, now, out_);
    }
  }
}

void Scheduler::hear_of_ended_workers(TimeNs now) {
  std::vector<EndedWorker> ended;
  ended_workers_.drain(ended);
  for (const EndedWorker& each : ended) keeper_.on_worker_ended(each.rank, each.how, now);
}

// Before all that waits to be sent.
void Scheduler::send_heartbeats(TimeNs now) {
  keeper_.beat(now, beats_);
  for (auto& output : beats_) send(std::get<KeeperOutput::Send>(output), now);
  beats_.clear();
}

// After all events of a poll: close() would end the views of those not yet handled. Returns how much it did.
std::size_t Scheduler::carry_out(TimeNs now) {
  const Overloads does{
      [&](KeeperOutput::Send& message) { send(message, now); },
      [&](KeeperOutput::Close& ending) { transport_.close(ending.peer, std::move(ending.reason)); },
      [&](const KeeperOutput::Notice& notice) { write(notice, now); },
      [&](const KeeperOutput::News& news) { record(news, now); }};
  const std::size_t before = next_out_;
  while (next_out_ < out_.size() && may_go(out_[next_out_])) std::visit(does, out_[next_out_++]);
  const std::size_t done = next_out_ - before;
  if (next_out_ == out_.size()) {
    out_.clear();
    next_out_ = 0;
  }
  return done;
}

// Within what one turn sends. Counts it.
bool Scheduler::may_go(const KeeperOutputs::value_type& output) {
  if (sends_left_ == 0) return false;
  const auto* const message = std::get_if<KeeperOutput::Send>(&output);
  if (message == nullptr) return true;
  const std::size_t bytes = message->payload.size();
  if (bytes > sent_bytes_left_ && sent_bytes_left_ < kSentBytesPerTurn) return false;
  sent_bytes_left_ -= std::min(bytes, sent_bytes_left_);
  --sends_left_;
  return true;
}

void Scheduler::send(KeeperOutput::Send& message, TimeNs now) {
  record_sent(message);
  const Status sent = outbox_.send(message.peer, message.header, std::move(message.payload));
  if (!sent.is(Code::kAgain)) return;
  write(
      {LogLevel::kWarning, "closing a connection: " + sent.message(), KeeperOutput::Sort::kUnread},
      now);
  transport_.close(message.peer, sent);
}

// ---- the flight recorder

// What it says of a member is what was known before the event.
void Scheduler::record(const Event& event, TimeNs now) const {
  switch (event.kind) {
    case Event::Kind::kUp:
      return log_.record({.kind = "up",
                          .role = name(event.hello.role),
                          .rank = event.hello.rank,
                          .epoch = event.hello.epoch.value,
                          .at_ns = now});
    case Event::Kind::kDown: {
      const std::string text = keeper_.seats().who(event.peer) + ": " + event.why.message();
      return log_.record({.kind = "down",
                          .cause = FlightEvent::cause_of_down(event.why),
                          .text = text,
                          .at_ns = now});
    }
    case Event::Kind::kReceived: {
      const Result<wire::Header> header = wire::header_of(event);
      if (!header.is_ok() || header.value().kind == wire::Kind::kHeartbeat) return;
      const std::string text =
          keeper_.seats().who(event.peer) + ": " + message_text(header.value(), event.payload);
      return log_.record({.kind = "received",
                          .name = message_name(header.value().kind),
                          .epoch = header.value().epoch.value,
                          .text = text,
                          .at_ns = now});
    }
    case Event::Kind::kSent:
      return;
  }
}

void Scheduler::record(const KeeperOutput::News& news, TimeNs now) const {
  log_.record({.kind = news.kind,
               .role = news.who.role ? name(*news.who.role) : nullptr,
               .rank = news.who.rank,
               .cause = FlightEvent::cause_of_down(news.why),
               .host = news.who.host,
               .text = news.why.message(),
               .at_ns = now,
               .stays = std::string_view(news.kind) == "replaced"});
}

// What is in a roster is read once, however many members it goes to.
void Scheduler::record_sent(const KeeperOutput::Send& message) {
  if (log_.flight() == nullptr || message.header.kind == wire::Kind::kHeartbeat) return;
  std::string text = keeper_.seats().who(message.peer) + ": ";
  if (message.header.kind == wire::Kind::kRoster) {
    if (!message.payload.is_same(recorded_roster_)) {
      recorded_roster_ = message.payload;
      recorded_roster_text_ = payload_text(message.header, message.payload);
    }
    text += roster_text(message.header, recorded_roster_text_);
  } else {
    text += message_text(message.header, message.payload);
  }
  log_.record({.kind = "sent",
               .name = message_name(message.header.kind),
               .epoch = message.header.epoch.value,
               .text = text});
}

// The job has failed. Now, because whoever started this process may not wait until it ends by itself.
void Scheduler::leave_behind() {
  left_behind_ = true;
  if (log_.flight() == nullptr || keeper_.outcome().is_because_of(CauseKind::kReplaced)) return;
  log_.flight()->set_epoch(keeper_.epoch().value);
  log_.flight()->set_peers(keeper_.seats().flight_peers());
  log_.flight()->leave_behind("job", keeper_.outcome());
}

void Scheduler::write(const KeeperOutput::Notice& notice, TimeNs now) {
  if (notice.sort == KeeperOutput::Sort::kJob) return log_.write(notice.level, notice.text);
  const auto line = quiet_.pass(static_cast<std::size_t>(notice.sort), now, notice.text);
  if (line) log_.write(notice.level, *line);
}

void Scheduler::failed(const Status& why) {
  Cause cause = why.cause();
  cause.who.role = Role::kScheduler;
  keeper_.stop({why.code(), "the scheduler failed: " + why.message(), std::move(cause)}, now_,
               out_);
}

TimeNs Scheduler::next_deadline() const {
  if (next_out_ < out_.size() || turns_without_tick_ > 0) return 0;
  return std::min(keeper_.next_deadline(), transport_.next_deadline());
}

bool Scheduler::finished() const {
  return keeper_.ended() && out_.empty() && outbox_.empty();
}

}  // namespace byteps
