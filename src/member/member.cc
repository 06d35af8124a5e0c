#include "member/member.h"

#include <algorithm>
#include <utility>

#include "base/phrases.h"
#include "base/planted.h"
#include "net/wire_text.h"

namespace byteps {
namespace {

constexpr TimeNs kRefusalPauseMaxNs = kSecond;

Status fault(const std::string& what) {
  return {Code::kDisconnected, what};
}

// What the rest of the program relies on: members in order, places to connect to, sizes that can be divided by.
Status check_roster(const wire::Roster& roster, Role role, std::uint32_t wanted_rank) {
  if (roster.epoch == Epoch(0)) return fault("a roster of epoch 0");
  std::uint32_t worker_count = 0;
  std::uint32_t server_count = 0;
  for (const wire::RosterMember& member : roster.members) {
    const bool worker = member.role == Role::kWorker;
    if (!worker && member.role != Role::kServer) return fault("a roster with a strange role");
    if (worker && server_count > 0) return fault("a roster with workers after servers");
    if (member.rank != (worker ? worker_count : server_count)) return fault("a roster with gaps");
    if (!worker && member.endpoints.empty()) return fault("a roster with a server without address");
    ++(worker ? worker_count : server_count);
  }
  if (roster.your_rank >= (role == Role::kWorker ? worker_count : server_count)) {
    return fault("a roster without this process");
  }
  if (role == Role::kWorker && roster.your_rank != wanted_rank) {
    return fault("a roster that gives this worker another rank");
  }
  for (const std::uint64_t bytes : {roster.partition_bytes, roster.frame_bytes}) {
    if (bytes == 0 || bytes % 64 != 0)
      return fault("a roster with an impossible size of parts or frames");
  }
  return Status::ok();
}

}  // namespace

wire::Join make_join(const Config& config, Role role, std::string host,
                     std::vector<Endpoint> endpoints) {
  wire::Join join;
  join.role = role;
  join.wanted_rank = role == Role::kWorker ? config.job.rank : config.job.wanted_server_rank;
  join.worker_count = config.job.worker_count;
  join.server_count = config.job.server_count;
  join.host = std::move(host);
  join.endpoints = std::move(endpoints);
  join.partition_bytes = config.flow.partition_bytes;
  join.frame_bytes = config.flow.frame_bytes;
  join.machine = config.job.machine;
  join.rate_mbps = config.job.rate_mbps;
  join.machine_index = config.job.machine_index;
  join.life = config.job.life;
  return join;
}

Member::Member(wire::Join join, const Config& config, Timeline* timeline)
    : join_(std::move(join)),
      scheduler_{config.job.scheduler_host, config.job.scheduler_port},
      job_id_(config.job.job_id),
      scheduler_text_("scheduler at " + scheduler_.text()),
      timeline_(timeline),
      timeout_(config.timeout) {
  if (join_.role == Role::kWorker) rank_ = join_.wanted_rank;
}

// ---- the connection ----

void Member::connect(TimeNs now, MemberOutput& out) {
  attempt_ns_ = now;
  next_attempt_ns_ = now + timeout_.reconnect_ns();
  MemberAction action;
  action.kind = MemberAction::Kind::kConnect;
  action.to = scheduler_;
  action.hello.role = join_.role;
  action.hello.rank = rank_;
  action.hello.epoch = epoch_;
  action.hello.job_id = job_id_;
  action.hello.incarnation = incarnation_;
  out.actions.push_back(std::move(action));
}

void Member::on_connecting(const Result<PeerId>& attempt, TimeNs now, MemberOutput& out) {
  if (!attempt.is_ok()) {
    on_down(attempt.status(), now, out);
  } else if (done()) {
    MemberAction action;
    action.kind = MemberAction::Kind::kClose;
    action.peer = attempt.value();
    action.reason = Status(Code::kCancelled, "this member has ended");
    out.actions.push_back(std::move(action));
  } else {
    peer_ = attempt.value();
  }
}

void Member::on_up(const Hello& theirs, TimeNs now, MemberOutput& out) {
  if (done()) return;
  if (theirs.role != Role::kScheduler) {
    return drop_connection({Code::kMismatch, "a " + theirs.text() + " answers there"}, now, out);
  }
  if (has_roster() && theirs.incarnation != incarnation_) return meet_another_scheduler(out);
  if (const Status fine = take_timeout(theirs.failure_ms, out); !fine.is_ok()) {
    return drop_connection(fine, now, out);
  }
  answering_ = theirs.incarnation;
  up_ = true;
  heard_ns_ = now;
  refused_since_ns_.reset();
  next_heartbeat_ns_ = now + timeout_.heartbeat_ns();
  send(wire::Kind::kJoin, wire::encode(join_), out);
  // What was said on the last connection may be lost with it; the scheduler knows repeats.
  if (barriers_wanted_ > barriers_done_ && !PLANTED(barrier_said_once)) send_barrier(out);
  if (stage_ == Stage::kLeaving) {
    send(wire::Kind::kLeave, wire::encode(wire::Leave{leave_final_}), out);
  }
  if (stage_ == Stage::kFailing) send_fail(out);
  if (!stalled_.awaited.empty()) send_stalled(out);
}

// One failure timeout counts in a job: who beats every sixth of a longer one would be given up by those with a shorter.
Status Member::take_timeout(std::uint32_t failure_ms, MemberOutput& out) {
  if (failure_ms == 0 || failure_ms == timeout_.failure_ms()) return Status::ok();
  if (failure_ms < TimeoutConfig::kFailureMsMin || failure_ms > TimeoutConfig::kFailureMsMax) {
    return fault(scheduler_text_ + " has a failure timeout of " + std::to_string(failure_ms) +
                 " ms");
  }
  MemberEvent event;
  event.text = "BYTEPS_FAILURE_TIMEOUT_MS is " + std::to_string(timeout_.failure_ms()) +
               " here, but " + std::to_string(failure_ms) + " at the " + scheduler_text_ +
               ", whose value counts for the whole job";
  out.events.push_back(std::move(event));
  timeout_.failure_ns = TimeNs{failure_ms} * kMillisecond;
  return Status::ok();
}

// At the scheduler's address, with our key, but it does not know our job: our scheduler is gone.
void Member::meet_another_scheduler(MemberOutput& out) {
  if (stage_ == Stage::kLeaving) return finish(Status::ok(), out);
  if (stage_ == Stage::kFailing) return finish(failing_, out);
  finish(fault(scheduler_text_ +
               " is not the one that this job began with: it was started anew, or another job has "
               "its address now; start the whole job again"),
         out);
}

void Member::on_down(const Status& why, TimeNs now, MemberOutput& out) {
  if (done()) return;
  peer_.reset();
  up_ = false;
  next_heartbeat_ns_ = kNever;
  next_attempt_ns_ = std::max(now, attempt_ns_ + timeout_.reconnect_ns());
  last_down_ = why;
  if (why.is(Code::kMismatch) || why.is(Code::kSystem)) {
    note_refusal(now, out);
    if (done()) return;
  } else {
    refused_since_ns_.reset();
  }
  // Without an epoch there is nothing to say goodbye to; and one that comes back under our name must not be
  // taken for us.
  if (stage_ == Stage::kLeaving && epoch_ == Epoch(0)) finish(Status::ok(), out);
}

// The scheduler, or whoever is at its address, does not want to talk to us, or one side has no descriptors. That does
// not pass by itself, but its predecessor may still be at the address for a moment.
void Member::note_refusal(TimeNs now, MemberOutput& out) {
  if (!refused_since_ns_) {
    refused_since_ns_ = now;
    refusal_pause_ns_ = timeout_.heartbeat_ns();
  }
  if (now >= *refused_since_ns_ + 2 * timeout_.failure_ns && stage_ == Stage::kJoining) {
    return finish({last_down_.code(), unreachable_text(now)}, out);
  }
  next_attempt_ns_ = std::max(now, attempt_ns_ + refusal_pause_ns_);
  refusal_pause_ns_ =
      std::min(2 * refusal_pause_ns_, std::max(kRefusalPauseMaxNs, timeout_.heartbeat_ns()));
}

void Member::drop_connection(const Status& reason, TimeNs now, MemberOutput& out) {
  if (!peer_) return;
  MemberAction action;
  action.kind = MemberAction::Kind::kClose;
  action.peer = *peer_;
  action.reason = reason;
  out.actions.push_back(std::move(action));
  on_down(reason, now, out);
}

void Member::on_malformed(const Status& why, TimeNs now, MemberOutput& out) {
  drop_connection(fault(scheduler_text_ + " sent nonsense: " + why.message()), now, out);
}

void Member::send(wire::Kind kind, std::vector<std::byte> payload, MemberOutput& out) {
  if (!up_) return;  // said again in on_up
  MemberAction action;
  action.kind = MemberAction::Kind::kSend;
  action.peer = *peer_;
  action.header.kind = kind;
  action.header.epoch = epoch_;
  action.header.worker = WorkerRank(join_.role == Role::kWorker ? rank_ : 0);
  action.payload = std::move(payload);
  out.actions.push_back(std::move(action));
}

void Member::send_heartbeat(TimeNs now, MemberOutput& out) {
  next_heartbeat_ns_ = up_ ? now + timeout_.heartbeat_ns() : kNever;
  std::vector<std::byte> question;
  if (timeline_ != nullptr) {
    question =
        wire::encode(wire::Heartbeat{.sent_ns = static_cast<std::uint64_t>(timeline_->now())});
  }
  send(wire::Kind::kHeartbeat, std::move(question), out);
}

void Member::send_barrier(MemberOutput& out) {
  if (epoch_ == Epoch(0)) return;  // said when the roster is here
  send(wire::Kind::kBarrier, wire::encode(wire::Barrier{barriers_done_ - barrier_base_}), out);
}

void Member::send_fail(MemberOutput& out) {
  send(wire::Kind::kFail,
       wire::encode(wire::Text{printable(failing_.message(), wire::kTextBytesMax),
                               static_cast<std::uint32_t>(failing_.code())}),
       out);
}

void Member::send_stalled(MemberOutput& out) {
  send(wire::Kind::kStalled, wire::encode(stalled_), out);
}

// The last word was heard: the scheduler need not stay for us.
void Member::acknowledge_end(MemberOutput& out) {
  send(wire::Kind::kLeave, wire::encode(wire::Leave{true}), out);
}

// ---- messages ----

void Member::on_message(const wire::Header& header, std::span<const std::byte> payload, TimeNs now,
                        MemberOutput& out) {
  if (done() || !up_) return;
  heard_ns_ = now;
  known_ = true;
  switch (header.kind) {
    case wire::Kind::kHeartbeat:
      return on_heartbeat(payload, now, out);
    case wire::Kind::kRoster:
      return on_roster(header, payload, now, out);
    case wire::Kind::kBarrierDone:
      return on_barrier_done(header, payload, now, out);
    case wire::Kind::kLeave:
      return on_leave(header, payload, now, out);
    case wire::Kind::kFail:
      return on_fail(payload, now, out);
    case wire::Kind::kWaiting: {
      Result<wire::Text> text = wire::decode_text(payload);
      if (!text.is_ok()) return on_malformed(text.status(), now, out);
      waiting_text_ = printable(text.value().text, wire::kTextBytesMax);
      waiting_text_ns_ = now;
      MemberEvent event;
      event.text = scheduler_text_ + " says: " + waiting_text_;
      out.events.push_back(std::move(event));
      return;
    }
    default:
      return on_malformed(fault("a message that schedulers do not send"), now, out);
  }
}

void Member::on_heartbeat(std::span<const std::byte> payload, TimeNs now, MemberOutput& out) {
  if (timeline_ == nullptr) return;
  const Result<wire::Heartbeat> heartbeat = wire::decode_heartbeat(payload);
  if (!heartbeat.is_ok()) return on_malformed(heartbeat.status(), now, out);
  if (heartbeat.value().echo_ns == 0) return;
  timeline_->clock_sample(static_cast<TimeNs>(heartbeat.value().echo_ns),
                          static_cast<TimeNs>(heartbeat.value().sent_ns), timeline_->now());
}

void Member::on_roster(const wire::Header& header, std::span<const std::byte> payload, TimeNs now,
                       MemberOutput& out) {
  Result<wire::Roster> decoded = wire::decode_roster(payload);
  if (!decoded.is_ok()) return on_malformed(decoded.status(), now, out);
  wire::Roster& roster = decoded.value();
  roster.your_rank = header.worker.value;
  const Status fine = check_roster(roster, join_.role, join_.wanted_rank);
  if (!fine.is_ok()) return on_malformed(fine, now, out);
  if (roster.epoch <= roster_epoch_) {
    // A repeat after a lost connection: what it asks for is a word about the epoch we are in.
    return send_heartbeat(now, out);
  }
  roster_epoch_ = roster.epoch;
  incarnation_ = answering_;
  rank_ = roster.your_rank;
  left_.clear();
  stalled_ = {};
  barrier_base_ = barriers_done_;
  next_notice_ns_ = kNever;
  if (stage_ == Stage::kJoining) stage_ = Stage::kRunning;
  if (stage_ == Stage::kRunning) {
    MemberEvent event;
    event.kind = MemberEvent::Kind::kRoster;
    event.roster = std::move(roster);
    out.events.push_back(std::move(event));
  }
  if (join_.role == Role::kWorker) applied(roster_epoch_, now, out);
}

void Member::on_barrier_done(const wire::Header& header, std::span<const std::byte> payload,
                             TimeNs now, MemberOutput& out) {
  const Result<wire::Barrier> barrier = wire::decode_barrier(payload);
  if (!barrier.is_ok()) return on_malformed(barrier.status(), now, out);
  const std::uint64_t open = barriers_done_ - barrier_base_;
  if (header.epoch != epoch_ || barrier.value().number < open) return;  // a repeat
  if (barrier.value().number > open || barriers_wanted_ == barriers_done_) {
    return on_malformed(fault("the end of a barrier that has not begun"), now, out);
  }
  MemberEvent event;
  event.kind = MemberEvent::Kind::kBarrierDone;
  event.barrier = barriers_done_++;
  if ((header.flags & wire::kNeverDone) != 0) {
    event.why = fault("worker " + std::to_string(header.worker.value) +
                      " has left the job: a barrier of all workers can never end");
  }
  out.events.push_back(std::move(event));
  if (barriers_wanted_ > barriers_done_) send_barrier(out);
}

void Member::on_leave(const wire::Header& header, std::span<const std::byte> payload, TimeNs now,
                      MemberOutput& out) {
  const Result<wire::Leave> leave = wire::decode_leave(payload);
  if (!leave.is_ok()) return on_malformed(leave.status(), now, out);
  if (join_.role == Role::kServer) {  // the job is over
    acknowledge_end(out);
    return finish(stage_ == Stage::kFailing ? failing_ : Status::ok(), out);
  }
  const Members& who = leave.value().who;
  if (who.is_all() && header.worker == WorkerRank(rank_)) {
    if (stage_ == Stage::kLeaving) finish(Status::ok(), out);
    return;
  }
  if (header.epoch != roster_epoch_) return;
  if (who.is_all()) return note_left(header.worker, leave.value().final, out);
  for (const std::uint32_t rank : who.some()) note_left(WorkerRank(rank), leave.value().final, out);
}

void Member::note_left(WorkerRank worker, bool final, MemberOutput& out) {
  const auto place = std::lower_bound(left_.begin(), left_.end(), worker);
  if (place != left_.end() && *place == worker) return;
  left_.insert(place, worker);
  MemberEvent event;
  event.kind = MemberEvent::Kind::kWorkerLeft;
  event.worker = worker;
  event.final = final;
  out.events.push_back(std::move(event));
}

void Member::on_fail(std::span<const std::byte> payload, TimeNs now, MemberOutput& out) {
  const Result<wire::Text> text = wire::decode_text(payload);
  if (!text.is_ok()) return on_malformed(text.status(), now, out);
  acknowledge_end(out);
  if (stage_ == Stage::kLeaving) return finish(Status::ok(), out);
  if (stage_ == Stage::kFailing) return finish(failing_, out);
  finish(error_of(text.value(), Code::kCancelled), out);
}

// ---- the owner ----

void Member::applied(Epoch epoch, TimeNs now, MemberOutput& out) {
  CHECK_LE(epoch, roster_epoch_) << "applied before it was heard of";
  if (done() || epoch <= epoch_) return;
  epoch_ = epoch;
  send_heartbeat(now, out);
  if (barriers_wanted_ > barriers_done_) send_barrier(out);
}

std::uint64_t Member::barrier(TimeNs /*now*/, MemberOutput& out) {
  const std::uint64_t number = barriers_wanted_++;
  if (number == barriers_done_ && !done()) send_barrier(out);
  return number;
}

void Member::stalled(wire::Stalled report, MemberOutput& out) {
  if (done() || report == stalled_) return;
  stalled_ = std::move(report);
  send_stalled(out);
}

void Member::leave(bool final, TimeNs now, MemberOutput& out) {
  if (done() || stage_ == Stage::kLeaving || stage_ == Stage::kFailing) return;
  const bool unknown = stage_ == Stage::kJoining && !up_;  // the scheduler has not heard of us
  stage_ = Stage::kLeaving;
  if (unknown) return finish(Status::ok(), out);
  leave_final_ = final;
  give_up_ns_ = now + timeout_.failure_ns;
  send(wire::Kind::kLeave, wire::encode(wire::Leave{final}), out);
}

void Member::fail(const Status& why, TimeNs now, MemberOutput& out) {
  CHECK(!why.is_ok()) << "failing needs a reason";
  if (done() || stage_ == Stage::kLeaving || stage_ == Stage::kFailing) return;
  const bool unknown = stage_ == Stage::kJoining && !up_;
  stage_ = Stage::kFailing;
  failing_ = why;
  if (unknown) return finish(why, out);
  give_up_ns_ = now + timeout_.failure_ns;
  send_fail(out);
}

void Member::finish(Status why, MemberOutput& out) {
  stage_ = Stage::kDone;
  if (peer_) {
    MemberAction action;
    action.kind = MemberAction::Kind::kClose;
    action.peer = *peer_;
    action.reason = Status(Code::kCancelled, "this member has left");
    out.actions.push_back(std::move(action));
  }
  peer_.reset();
  up_ = false;
  MemberEvent event;
  event.kind = why.is_ok() ? MemberEvent::Kind::kLeft : MemberEvent::Kind::kFailed;
  event.why = std::move(why);
  out.events.push_back(std::move(event));
}

// ---- time ----

void Member::tick(TimeNs now, MemberOutput& out) {
  if (!started_) {
    started_ = true;
    started_ns_ = heard_ns_ = next_attempt_ns_ = now;
    next_notice_ns_ = now + timeout_.first_notice_ns;
  }
  if (done()) return;
  excuse_own_pause(now);
  look_at_clock(now, out);
  planned_ns_ = next_deadline();
}

// While this process stood still it could not hear the scheduler, and what came may still wait to be handed in.
void Member::excuse_own_pause(TimeNs now) {
  if (now <= planned_ns_) return;
  const TimeNs late_ns = now - planned_ns_;
  heard_ns_ = std::min(now, heard_ns_ + late_ns);
  attempt_ns_ = std::min(now, attempt_ns_ + late_ns);
}

void Member::look_at_clock(TimeNs now, MemberOutput& out) {
  if (now >= give_up_ns_) return finish(stage_ == Stage::kFailing ? failing_ : Status::ok(), out);
  if (stage_ == Stage::kJoining) watch_start(now, out);
  if (!done()) watch_silence(now, out);
  if (done()) return;
  if (!peer_ && now >= next_attempt_ns_) connect(now, out);
  if (up_ && now >= next_heartbeat_ns_) send_heartbeat(now, out);
}

void Member::watch_start(TimeNs now, MemberOutput& out) {
  if (now >= give_up_joining_ns()) {
    const std::string reason =
        !up_ ? unreachable_text(now)
        : !waiting_text_.empty()
            ? "the scheduler said " + duration_text(now - waiting_text_ns_) +
                  " ago: " + waiting_text_
            : scheduler_text_ + " is there, but the job did not become complete";
    return finish({Code::kTimeout,
                   "gave up joining after " + duration_text(timeout_.start_ns) + ": " + reason},
                  out);
  }
  if (now < next_notice_ns_) return;
  next_notice_ns_ = now + timeout_.notice_every_ns;
  if (up_) return;  // then the scheduler says who is missing
  MemberEvent event;
  event.text = unreachable_text(now);
  out.events.push_back(std::move(event));
}

std::string Member::unreachable_text(TimeNs now) const {
  if (refused_since_ns_) {
    const bool other_job = last_down_.is(Code::kMismatch);
    return scheduler_text_ + ": every attempt to join was refused for " +
           duration_text(now - *refused_since_ns_) + ": " + last_down_.message() +
           (other_job ? "; or do DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT lead to another job?" : "");
  }
  std::string text = scheduler_text_ + " unreachable since " + duration_text(now - heard_ns_);
  if (!last_down_.is_ok()) text += ": " + last_down_.message();
  return text + "; is it started, and are DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT right?";
}

void Member::watch_silence(TimeNs now, MemberOutput& out) {
  if (misses_scheduler() && now >= heard_ns_ + timeout_.silence_ns()) {
    std::string text = scheduler_text_ +
                       (up_ ? " has said nothing for " : " has been unreachable for ") +
                       duration_text(now - heard_ns_);
    if (!up_ && !last_down_.is_ok()) text += " (" + last_down_.message() + ")";
    return finish(fault(text + ": the job cannot go on without it; look at its log, or whether its "
                               "machine is down"),
                  out);
  }
  // A connection that has gone deaf is tried anew while there is time for that.
  if (peer_ && now >= std::max(heard_ns_, attempt_ns_) + timeout_.failure_ns / 2) {
    drop_connection(fault(std::string(up_ ? "silent" : "no answer to connecting") + " for " +
                          duration_text(timeout_.failure_ns / 2)),
                    now, out);
  }
}

TimeNs Member::next_deadline() const {
  if (!started_) return 0;
  if (done()) return kNever;
  TimeNs next = std::min(give_up_ns_, up_ ? next_heartbeat_ns_ : kNever);
  if (stage_ == Stage::kJoining) {
    next = std::min({next, next_notice_ns_, give_up_joining_ns()});
  }
  if (misses_scheduler()) next = std::min(next, heard_ns_ + timeout_.silence_ns());
  return std::min(
      next, peer_ ? std::max(heard_ns_, attempt_ns_) + timeout_.failure_ns / 2 : next_attempt_ns_);
}

}  // namespace byteps
