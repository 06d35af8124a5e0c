#include "member/member_port.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/phrases.h"
#include "member/roster_check.h"
#include "net/wire_text.h"

namespace byteps {

MemberPort::MemberPort(wire::Join join, const Config& config, Transport& transport,
                       FlightRecorder* flight, Timeline* timeline)
    : transport_(transport),
      role_(join.role),
      flight_(flight),
      timeline_(timeline),
      member_(std::move(join), config, timeline),
      outbox_(transport) {}

bool MemberPort::handle(const Event& event, TimeNs now) {
  if (event.kind == Event::Kind::kSent) {
    if (!Outbox::owns(event.token)) return false;
    outbox_.on_sent(event.peer, event.token);
    return true;
  }
  const auto own = std::find(own_peers_.begin(), own_peers_.end(), event.peer);
  if (own == own_peers_.end()) return false;
  const bool current = member_.peer() == event.peer;
  if (flight_ != nullptr) record(event, now);
  switch (event.kind) {
    case Event::Kind::kUp:
      if (current) member_.on_up(event.hello, now, out_);
      break;
    case Event::Kind::kDown:
      own_peers_.erase(own);
      outbox_.on_down(event.peer);
      if (current) member_.on_down(event.why, now, out_);
      break;
    case Event::Kind::kReceived: {
      if (!current) break;
      const Result<wire::Header> header = wire::header_of(event);
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
  is_asked_ = false;
  if (flight_ != nullptr) flight_->note_late(due_ns_, now);
  member_.tick(now, out_);
  carry_out(now);
  due_ns_ = next_deadline();
}

void MemberPort::tick_again(TimeNs now) {
  if (std::exchange(is_asked_, false)) tick(now);
}

TimeNs MemberPort::next_deadline() const {
  return out_.empty() ? member_.next_deadline() : 0;
}

void MemberPort::applied(Epoch epoch, TimeNs now) {
  is_asked_ = true;
  member_.applied(epoch, now, out_);
}
std::uint64_t MemberPort::barrier(TimeNs now) {
  is_asked_ = true;
  return member_.barrier(now, out_);
}
void MemberPort::stalled(wire::Stalled report) {
  is_asked_ = true;
  member_.stalled(std::move(report), out_);
}
void MemberPort::leave(bool final, TimeNs now) {
  is_asked_ = true;
  member_.leave(final, now, out_);
}
void MemberPort::fail(const Status& why, TimeNs now) {
  is_asked_ = true;
  member_.fail(why, now, out_);
}

// ---- the flight recorder

void MemberPort::record(const Event& event, TimeNs now) {
  constexpr const char* kRole = "scheduler";
  switch (event.kind) {
    case Event::Kind::kUp:
      last_down_.clear();
      return flight_->record(
          {.kind = "up", .role = kRole, .text = member_.scheduler_text(), .at_ns = now});
    case Event::Kind::kDown:
      if (event.why.message() == last_down_) return;  // attempt after attempt
      last_down_ = event.why.message();
      return flight_->record({.kind = "down",
                              .role = kRole,
                              .cause = FlightEvent::cause_of_down(event.why),
                              .text = event.why.message(),
                              .at_ns = now});
    case Event::Kind::kReceived: {
      flight_->heard(kRole, FlightEvent::kNone, now);
      const Result<wire::Header> header = wire::header_of(event);
      if (header.is_ok()) record("received", header.value(), event.payload, now);
      return;
    }
    case Event::Kind::kSent:
      return;
  }
}

void MemberPort::record(const char* kind, const wire::Header& header,
                        std::span<const std::byte> payload, TimeNs now) const {
  if (header.kind == wire::Kind::kHeartbeat) return;
  const std::string text = message_text(header, payload);
  flight_->record({.kind = kind,
                   .name = message_name(header.kind),
                   .role = "scheduler",
                   .epoch = header.epoch.value,
                   .text = text,
                   .at_ns = now});
}

// Workers know more of it, by their connections (worker/connections.h); but who ends a job often ends them first.
void MemberPort::record_replaced(const wire::Roster& roster, TimeNs now) const {
  if (role_ != Role::kServer || roster.members.size() != roster_.members.size()) return;
  const std::size_t first = count_of(roster, Role::kWorker);
  std::set<std::uint32_t> told;
  for (std::size_t at = 0; at < std::min(roster.slots.size(), roster_.slots.size()); ++at) {
    const wire::Slot& slot = roster.slots[at];
    if (slot.since <= roster_.slots[at].since || !told.insert(slot.server).second) continue;
    const std::string before = printable(roster_.members[first + slot.server].host, 128);
    const std::string after = printable(roster.members[first + slot.server].host, 128);
    const std::string rank = "server " + std::to_string(slot.server);
    const std::string text =
        rank + " (" + after + ") took the place of " + rank + " (" + before + ")";
    flight_->record({.kind = "replaced",
                     .role = name(Role::kServer),
                     .rank = slot.server,
                     .epoch = roster.epoch.value,
                     .number = slot.since,
                     .host = before,
                     .text = text,
                     .at_ns = now,
                     .stays = true});
  }
}

void MemberPort::record_roster(const wire::Roster& roster) {
  if (role_ == Role::kServer) roster_ = roster;
  std::vector<FlightPeer> peers;
  for (const wire::RosterMember& member : roster.members) {
    FlightPeer& peer = peers.emplace_back();
    peer.role = name(member.role);
    peer.rank = member.rank;
    peer.host = printable(member.host, 128);
  }
  flight_->set_rank(roster.your_rank);
  flight_->set_epoch(roster.epoch.value);
  flight_->set_peers(std::move(peers));
}

void MemberPort::note_successor(MemberOutput::Succeeded& successor, TimeNs now) {
  ++lost_schedulers_;
  if (flight_ != nullptr) {
    flight_->record({.kind = "replaced",
                     .role = name(Role::kScheduler),
                     .epoch = member_.epoch().value,
                     .number = successor.term,
                     .text = successor.text,
                     .at_ns = now,
                     .stays = true});
  }
  if (timeline_ == nullptr) return;
  timeline_->mark({.name = "scheduler replaced",
                   .text = std::move(successor.text),
                   .number = successor.term,
                   .at_ns = now});
}

MemberEvents MemberPort::take_events() {
  return std::exchange(happened_, {});
}

void MemberPort::carry_out(TimeNs now) {
  if (out_.empty()) return;
  is_asked_ = true;
  const Overloads does{
      [&](MemberOutput::Connect& wanted) {
        const Result<PeerId> attempt = transport_.connect(wanted.to, wanted.hello);
        if (attempt.is_ok()) own_peers_.push_back(attempt.value());
        member_.on_connecting(attempt, now, out_);
      },
      [&](MemberOutput::Send& message) {
        if (flight_ != nullptr) record("sent", message.header, message.payload, now);
        const Status sent = outbox_.send(message.peer, message.header, std::move(message.payload));
        // Its kDown tells the member.
        if (sent.is(Code::kAgain)) transport_.close(message.peer, sent);
      },
      [&](MemberOutput::Close& ending) { transport_.close(ending.peer, std::move(ending.reason)); },
      [&](MemberOutput::Began& epoch) {
        if (flight_ != nullptr) record_roster(epoch.roster);
        if (timeline_ != nullptr) timeline_->set_rank(epoch.roster.your_rank);
        happened_.emplace_back(std::move(epoch));
      },
      [&](MemberOutput::Amended& amended) {
        if (flight_ != nullptr) record_replaced(amended.roster, now);
        if (flight_ != nullptr) record_roster(amended.roster);
        happened_.emplace_back(std::move(amended));
      },
      [&](MemberOutput::Succeeded& successor) { note_successor(successor, now); },
      [&](MemberOutput::WorkerLeft& gone) {
        if (flight_ != nullptr) {
          flight_->record({.kind = "left", .role = name(Role::kWorker), .rank = gone.worker.value});
        }
        happened_.emplace_back(gone);
      },
      [&](auto& event) { happened_.emplace_back(std::move(event)); }};
  MemberOutputs outputs = std::exchange(out_, {});
  for (auto& output : outputs) std::visit(does, output);
}

}  // namespace byteps
