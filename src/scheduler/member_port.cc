#include "scheduler/member_port.h"

#include <algorithm>
#include <utility>

namespace byteps {

MemberPort::MemberPort(wire::Join join, const Config& config, Transport& transport)
    : transport_(transport), member_(std::move(join), config), outbox_(transport) {}

bool MemberPort::handle(const Event& event, TimeNs now) {
  if (event.kind == Event::Kind::kSent) {
    if (!Outbox::owns(event.token)) return false;
    outbox_.on_sent(event.peer, event.token);
    return true;
  }
  const auto own = std::find(own_peers_.begin(), own_peers_.end(), event.peer);
  if (own == own_peers_.end()) return false;
  const bool current = member_.peer() == event.peer;
  switch (event.kind) {
    case Event::Kind::kUp:
      if (current) member_.on_up(now, out_);
      break;
    case Event::Kind::kDown:
      own_peers_.erase(own);
      outbox_.on_down(event.peer);
      if (current) member_.on_down(event.why, now, out_);
      break;
    case Event::Kind::kReceived: {
      if (!current) break;
      const Result<wire::Header> header = wire::decode_header(event.header);
      if (header.is_ok()) {
        member_.on_message(header.value(), event.payload, now, out_);
      } else {
        member_.on_malformed(header.status(), now, out_);
      }
      break;
    }
    case Event::Kind::kSent:
      break;
  }
  return true;
}

void MemberPort::tick(TimeNs now) {
  member_.tick(now, out_);
  carry_out(now);
}

TimeNs MemberPort::next_deadline() const {
  return out_.actions.empty() ? member_.next_deadline() : 0;
}

void MemberPort::applied(Epoch epoch, TimeNs now) {
  member_.applied(epoch, now, out_);
}
std::uint64_t MemberPort::barrier(TimeNs now) {
  return member_.barrier(now, out_);
}
void MemberPort::leave(bool final, TimeNs now) {
  member_.leave(final, now, out_);
}
void MemberPort::fail(const Status& why, TimeNs now) {
  member_.fail(why, now, out_);
}

std::vector<MemberEvent> MemberPort::take_events() {
  return std::exchange(out_.events, {});
}

void MemberPort::carry_out(TimeNs now) {
  std::vector<MemberAction> actions = std::exchange(out_.actions, {});
  for (MemberAction& action : actions) {
    switch (action.kind) {
      case MemberAction::Kind::kConnect: {
        const Result<PeerId> attempt = transport_.connect(action.to, action.hello);
        if (attempt.is_ok()) own_peers_.push_back(attempt.value());
        member_.on_connecting(attempt, now, out_);
        break;
      }
      case MemberAction::Kind::kSend: {
        const Status sent = outbox_.send(action.peer, action.header, std::move(action.payload));
        if (sent.is(Code::kAgain))
          transport_.close(action.peer, sent);  // its kDown tells the member
        break;
      }
      case MemberAction::Kind::kClose:
        transport_.close(action.peer, std::move(action.reason));
        break;
    }
  }
}

}  // namespace byteps
