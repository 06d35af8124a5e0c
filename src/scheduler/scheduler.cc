#include "scheduler/scheduler.h"

#include <algorithm>
#include <utility>

#include "scheduler/message_text.h"

namespace byteps {
namespace {

constexpr std::size_t kEventsPerPoll = 64;
constexpr int kPollsPerTurn = 64;

}  // namespace

Scheduler::Scheduler(const Config& config, Transport& transport, Log log)
    : transport_(transport),
      log_(std::move(log)),
      keeper_(config),
      outbox_(transport),
      events_(kEventsPerPoll) {}

std::size_t Scheduler::turn(TimeNs now) {
  if (log_.flight() != nullptr) log_.flight()->note_late(due_ns_, now);
  std::size_t work = 0;
  for (int i = 0; i < kPollsPerTurn; ++i) {
    const std::size_t count = transport_.poll(now, events_);
    for (std::size_t e = 0; e < count; ++e) handle(events_[e], now);
    work += count;
    carry_out(now);
    if (count == 0) break;
  }
  keeper_.tick(now, out_);
  if (stop_requested_.exchange(false, std::memory_order_acquire)) {
    keeper_.stop({Code::kCancelled, "the scheduler was told to stop"}, now, out_);
  }
  carry_out(now);
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
      const Result<wire::Header> header = wire::decode_header(event.header);
      if (!header.is_ok()) return keeper_.on_malformed(event.peer, header.status(), out_);
      return keeper_.step(event.peer, header.value(), event.payload, now, out_);
    }
  }
}

// After all events of a poll: close() would end the views of those not yet handled.
void Scheduler::carry_out(TimeNs now) {
  for (KeeperOutput& output : out_) {
    switch (output.kind) {
      case KeeperOutput::Kind::kSend: {
        record_sent(output);
        const Status sent = outbox_.send(output.peer, output.header, std::move(output.payload));
        if (sent.is(Code::kAgain)) {
          write(KeeperOutput::Cause::kUnread, LogLevel::kWarning, now,
                "closing a connection: " + sent.message());
          transport_.close(output.peer, sent);
        }
        break;
      }
      case KeeperOutput::Kind::kClose:
        transport_.close(output.peer, std::move(output.reason));
        break;
      case KeeperOutput::Kind::kNotice:
        write(output.cause, output.level, now, output.text);
        break;
    }
  }
  out_.clear();
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
      const std::string text = keeper_.who(event.peer) + ": " + event.why.message();
      return log_.record({.kind = "down", .text = text, .at_ns = now});
    }
    case Event::Kind::kReceived: {
      const Result<wire::Header> header = wire::decode_header(event.header);
      if (!header.is_ok() || header.value().kind == wire::Kind::kHeartbeat) return;
      const std::string text =
          keeper_.who(event.peer) + ": " + message_text(header.value(), event.payload);
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

void Scheduler::record_sent(const KeeperOutput& output) const {
  if (log_.flight() == nullptr || output.header.kind == wire::Kind::kHeartbeat) return;
  const std::string text =
      keeper_.who(output.peer) + ": " + message_text(output.header, output.payload);
  log_.record({.kind = "sent",
               .name = message_name(output.header.kind),
               .epoch = output.header.epoch.value,
               .text = text});
}

// The job has failed. Now, because whoever started this process may not wait until it ends by itself.
void Scheduler::leave_behind() {
  left_behind_ = true;
  if (log_.flight() == nullptr) return;
  log_.flight()->set_epoch(keeper_.epoch().value);
  log_.flight()->set_peers(keeper_.members());
  log_.flight()->leave_behind("job", keeper_.outcome());
}

void Scheduler::write(KeeperOutput::Cause cause, LogLevel level, TimeNs now,
                      const std::string& text) {
  if (cause == KeeperOutput::Cause::kJob) return log_.write(level, text);
  const auto line = quiet_.pass(static_cast<std::size_t>(cause), now, text);
  if (line) log_.write(level, *line);
}

TimeNs Scheduler::next_deadline() const {
  return std::min(keeper_.next_deadline(), transport_.next_deadline());
}

bool Scheduler::finished() const {
  return keeper_.ended() && outbox_.empty();
}

}  // namespace byteps
