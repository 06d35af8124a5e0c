#include "scheduler/scheduler.h"

#include <algorithm>
#include <utility>

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
  return work;
}

void Scheduler::handle(const Event& event, TimeNs now) {
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
void Scheduler::carry_out(TimeNs /*now*/) {
  for (KeeperOutput& output : out_) {
    switch (output.kind) {
      case KeeperOutput::Kind::kSend: {
        const Status sent = outbox_.send(output.peer, output.header, std::move(output.payload));
        if (sent.is(Code::kAgain)) {
          LOG(log_, kWarning) << "closing a connection: " << sent.message();
          transport_.close(output.peer, sent);
        }
        break;
      }
      case KeeperOutput::Kind::kClose:
        transport_.close(output.peer, std::move(output.reason));
        break;
      case KeeperOutput::Kind::kNotice:
        log_.write(output.level, output.text);
        break;
    }
  }
  out_.clear();
}

TimeNs Scheduler::next_deadline() const {
  return std::min(keeper_.next_deadline(), transport_.next_deadline());
}

bool Scheduler::finished() const {
  return keeper_.ended() && outbox_.empty();
}

}  // namespace byteps
