#include "member/member.h"

#include <algorithm>
#include <utility>

#include "base/limits.h"
#include "base/phrases.h"
#include "base/placement.h"
#include "base/planted.h"
#include "net/wire_text.h"

namespace byteps {
namespace {

Status fault(const std::string& what) {
  return {Code::kDisconnected, what};
}

void close(PeerId peer, Status reason, MemberOutputs& out) {
  out.emplace_back(MemberOutput::Close{peer, std::move(reason)});
}

void tell(std::string text, MemberOutputs& out, LogLevel level = LogLevel::kWarning) {
  out.emplace_back(MemberOutput::Notice{std::move(text), level});
}

// `first`: place of the first server among the members.
Status check_slots(const wire::Roster& roster, std::size_t first) {
  const std::size_t server_count = roster.members.size() - first;
  if (roster.slots.empty() != (server_count == 0))
    return fault("a roster of servers without shards");
  if (roster.slots.size() > kShardsMax) return fault("a roster with too many shards");
  for (const wire::Slot& slot : roster.slots) {
    if (slot.server >= server_count ||
        slot.shard >= roster.members[first + slot.server].endpoints.size()) {
      return fault("a roster with a shard of nobody");
    }
    if (slot.weight == 0 || slot.weight > Placement::kWeightMax) {
      return fault("a roster with a shard of impossible weight");
    }
    if (slot.since > roster.revision) return fault("a roster with a shard of the future");
  }
  return Status::ok();
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
  if (const Status fine = check_slots(roster, worker_count); !fine.is_ok()) return fine;
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
  join.card = config.job.card;
  join.rate_mbps = config.job.rate_mbps;
  join.machine_index = config.job.machine_index;
  join.local_reduce = config.job.sums.locally;
  join.needs_servers = config.job.sums.needs_servers;
  join.life = config.job.life;
  return join;
}

Member::Member(wire::Join join, const Config& config, Timeline* timeline)
    : join_(std::move(join)),
      job_id_(config.job.job_id),
      tells_roll_call_(config.tells_roll_call),
      timeline_(timeline),
      timeout_(config.timeout),
      line_({config.job.scheduler_host, config.job.scheduler_port}, timeout_) {
  if (join_.role == Role::kWorker) job_.rank = join_.wanted_rank;
}

// ---- the connection ----

void Member::connect(TimeNs now, MemberOutputs& out) {
  line_.attempt(now);
  MemberOutput::Connect attempt{.to = line_.scheduler(), .hello = {}};
  attempt.hello.role = join_.role;
  attempt.hello.rank = job_.rank;
  attempt.hello.epoch = job_.epoch;
  attempt.hello.job_id = job_id_;
  attempt.hello.incarnation = job_.incarnation;
  out.emplace_back(std::move(attempt));
}

void Member::on_connecting(const Result<PeerId>& attempt, TimeNs now, MemberOutputs& out) {
  if (!attempt.is_ok()) {
    on_down(attempt.status(), now, out);
  } else if (done()) {
    close(attempt.value(), {Code::kCancelled, "this member has ended"}, out);
  } else {
    line_.attach(attempt.value());
  }
}

void Member::on_up(const Hello& theirs, TimeNs now, MemberOutputs& out) {
  if (done()) return;
  if (theirs.role != Role::kScheduler) {
    return drop_connection({Code::kMismatch, "a " + theirs.text() + " answers there"}, now, out);
  }
  if (job_.roster_epoch != Epoch(0) && theirs.incarnation != job_.incarnation)
    return meet_another_scheduler(out);
  if (const Status fine = take_timeout(theirs.failure_ms, out); !fine.is_ok()) {
    return drop_connection(fine, now, out);
  }
  job_.answering = theirs.incarnation;
  line_.up(now);
  next_heartbeat_ns_ = now + timeout_.heartbeat_ns();
  send(wire::Kind::kJoin, wire::encode(join_), out);
  // What was said on the last connection may be lost with it; the scheduler knows repeats.
  if (barriers_.is_open() && !PLANTED(barrier_said_once)) send_barrier(out);
  if (stage_ == Stage::kLeaving) {
    send(wire::Kind::kLeave, wire::encode(wire::Leave{exit_.final}), out);
  }
  if (stage_ == Stage::kFailing) send_fail(out);
  if (!stalled_.awaited.empty()) send(wire::Kind::kStalled, wire::encode(stalled_), out);
}

// One failure timeout counts in a job: who beats every sixth of a longer one would be given up by those with a shorter.
Status Member::take_timeout(std::uint32_t failure_ms, MemberOutputs& out) {
  if (failure_ms == 0 || failure_ms == timeout_.failure_ms()) return Status::ok();
  if (failure_ms < TimeoutConfig::kFailureMsMin || failure_ms > TimeoutConfig::kFailureMsMax) {
    return fault(scheduler_text() + " has a failure timeout of " + std::to_string(failure_ms) +
                 " ms");
  }
  tell("BYTEPS_FAILURE_TIMEOUT_MS is " + std::to_string(timeout_.failure_ms()) + " here, but " +
           std::to_string(failure_ms) + " at the " + scheduler_text() +
           ", whose value counts for the whole job",
       out);
  timeout_.failure_ns = TimeNs{failure_ms} * kMillisecond;
  return Status::ok();
}

// At the scheduler's address, with our key, but it does not know our job: our scheduler is gone.
void Member::meet_another_scheduler(MemberOutputs& out) {
  if (stage_ == Stage::kLeaving) return finish(Status::ok(), out);
  if (stage_ == Stage::kFailing) return finish(exit_.failing, out);
  finish({Code::kDisconnected,
          scheduler_text() +
              " is not the one that this job began with: it was started anew, or another job has "
              "its address now; start the whole job again",
          {.kind = CauseKind::kStartedAnew, .who = {.role = Role::kScheduler}}},
         out);
}

void Member::on_down(const Status& why, TimeNs now, MemberOutputs& out) {
  if (done()) return;
  next_heartbeat_ns_ = kNever;
  const bool is_refused = line_.down(why, now);
  if (is_refused && stage_ == Stage::kJoining) {
    return finish({why.code(), line_.unreachable_text(now), line_.unreachable_cause(now)}, out);
  }
  // Without an epoch there is nothing to say goodbye to; and one that comes back under our name must not be
  // taken for us.
  if (stage_ == Stage::kLeaving && job_.epoch == Epoch(0)) finish(Status::ok(), out);
}

void Member::drop_connection(const Status& reason, TimeNs now, MemberOutputs& out) {
  if (!line_.peer()) return;
  close(*line_.peer(), reason, out);
  on_down(reason, now, out);
}

void Member::on_malformed(const Status& why, TimeNs now, MemberOutputs& out) {
  drop_connection(fault(scheduler_text() + " sent nonsense: " + why.message()), now, out);
}

void Member::send(wire::Kind kind, std::vector<std::byte> payload, MemberOutputs& out) {
  if (!line_.is_up()) return;  // said again in on_up
  MemberOutput::Send message{.peer = *line_.peer(), .header = {}, .payload = std::move(payload)};
  message.header.kind = kind;
  message.header.epoch = job_.epoch;
  message.header.worker = WorkerRank(join_.role == Role::kWorker ? job_.rank : 0);
  out.emplace_back(std::move(message));
}

void Member::send_heartbeat(TimeNs now, MemberOutputs& out) {
  next_heartbeat_ns_ = line_.is_up() ? now + timeout_.heartbeat_ns() : kNever;
  std::vector<std::byte> question;
  if (timeline_ != nullptr) {
    question =
        wire::encode(wire::Heartbeat{.sent_ns = static_cast<std::uint64_t>(timeline_->now())});
  }
  send(wire::Kind::kHeartbeat, std::move(question), out);
}

void Member::send_barrier(MemberOutputs& out) {
  if (job_.epoch == Epoch(0)) return;  // said when the roster is here
  send(wire::Kind::kBarrier, wire::encode(wire::Barrier{barriers_.open_on_wire()}), out);
}

void Member::send_fail(MemberOutputs& out) {
  send(wire::Kind::kFail, wire::encode(text_of(exit_.failing)), out);
}

// ---- messages ----

void Member::on_message(const wire::Header& header, std::span<const std::byte> payload, TimeNs now,
                        MemberOutputs& out) {
  if (done() || !line_.is_up()) return;
  line_.hear(now);
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
      waiting_ = {error_of(text.value(), Code::kCancelled), now};
      const bool is_told_elsewhere =
          !tells_roll_call_ && waiting_.why.is_because_of(CauseKind::kIncomplete);
      return tell(scheduler_text() + " says: " + waiting_.why.message(), out,
                  is_told_elsewhere ? LogLevel::kDebug : LogLevel::kWarning);
    }
    default:
      return on_malformed(fault("a message that schedulers do not send"), now, out);
  }
}

void Member::on_heartbeat(std::span<const std::byte> payload, TimeNs now, MemberOutputs& out) {
  if (timeline_ == nullptr) return;
  const Result<wire::Heartbeat> heartbeat = wire::decode_heartbeat(payload);
  if (!heartbeat.is_ok()) return on_malformed(heartbeat.status(), now, out);
  if (heartbeat.value().echo_ns == 0) return;
  timeline_->clock_sample(static_cast<TimeNs>(heartbeat.value().echo_ns),
                          static_cast<TimeNs>(heartbeat.value().sent_ns), timeline_->now());
}

void Member::on_roster(const wire::Header& header, std::span<const std::byte> payload, TimeNs now,
                       MemberOutputs& out) {
  Result<wire::Roster> decoded = wire::decode_roster(payload);
  if (!decoded.is_ok()) return on_malformed(decoded.status(), now, out);
  wire::Roster& roster = decoded.value();
  roster.your_rank = header.worker.value;
  const Status fine = check_roster(roster, join_.role, join_.wanted_rank);
  if (!fine.is_ok()) return on_malformed(fine, now, out);
  const bool is_amended = roster.epoch == job_.roster_epoch && roster.revision > job_.revision;
  if (is_amended) job_.revision = roster.revision;
  if (is_amended && stage_ == Stage::kRunning) {
    return void(out.emplace_back(MemberOutput::Amended{std::move(roster)}));
  }
  if (roster.epoch <= job_.roster_epoch) {
    // A repeat after a lost connection: what it asks for is a word about the epoch we are in.
    return send_heartbeat(now, out);
  }
  job_.roster_epoch = roster.epoch;
  job_.revision = roster.revision;
  job_.incarnation = job_.answering;
  job_.rank = roster.your_rank;
  left_.clear();
  stalled_ = {};
  barriers_.begin_epoch();
  next_notice_ns_ = kNever;
  if (stage_ == Stage::kJoining) stage_ = Stage::kRunning;
  if (stage_ == Stage::kRunning) {
    out.emplace_back(MemberOutput::Began{std::move(roster)});
  }
  if (join_.role == Role::kWorker) applied(job_.roster_epoch, now, out);
}

void Member::on_barrier_done(const wire::Header& header, std::span<const std::byte> payload,
                             TimeNs now, MemberOutputs& out) {
  const Result<wire::Barrier> barrier = wire::decode_barrier(payload);
  if (!barrier.is_ok()) return on_malformed(barrier.status(), now, out);
  const std::uint64_t open = barriers_.open_on_wire();
  if (header.epoch != job_.epoch || barrier.value().number < open) return;  // a repeat
  if (barrier.value().number > open || !barriers_.is_open()) {
    return on_malformed(fault("the end of a barrier that has not begun"), now, out);
  }
  MemberOutput::BarrierDone ended{.barrier = barriers_.done++, .why = Status::ok()};
  if ((header.flags & wire::kNeverDone) != 0) {
    ended.why = {
        Code::kDisconnected,
        "worker " + std::to_string(header.worker.value) +
            " has left the job: a barrier of all workers can never end",
        {.kind = CauseKind::kLeft, .who = {.role = Role::kWorker, .rank = header.worker.value}}};
  }
  out.emplace_back(std::move(ended));
  if (barriers_.is_open()) send_barrier(out);
}

void Member::on_leave(const wire::Header& header, std::span<const std::byte> payload, TimeNs now,
                      MemberOutputs& out) {
  const Result<wire::Leave> leave = wire::decode_leave(payload);
  if (!leave.is_ok()) return on_malformed(leave.status(), now, out);
  if (join_.role == Role::kServer) {                                 // the job is over
    send(wire::Kind::kLeave, wire::encode(wire::Leave{true}), out);  // it need not stay for us
    return finish(stage_ == Stage::kFailing ? exit_.failing : Status::ok(), out);
  }
  const Members& who = leave.value().who;
  if (who.is_all() && header.worker == WorkerRank(job_.rank)) {
    if (stage_ == Stage::kLeaving) finish(Status::ok(), out);
    return;
  }
  if (header.epoch != job_.roster_epoch) return;
  if (who.is_all()) return note_left(header.worker, leave.value().final, out);
  for (const std::uint32_t rank : who.some()) note_left(WorkerRank(rank), leave.value().final, out);
}

void Member::note_left(WorkerRank worker, bool final, MemberOutputs& out) {
  const auto place = std::lower_bound(left_.begin(), left_.end(), worker);
  if (place != left_.end() && *place == worker) return;
  left_.insert(place, worker);
  out.emplace_back(MemberOutput::WorkerLeft{worker, final});
}

void Member::on_fail(std::span<const std::byte> payload, TimeNs now, MemberOutputs& out) {
  const Result<wire::Text> text = wire::decode_text(payload);
  if (!text.is_ok()) return on_malformed(text.status(), now, out);
  send(wire::Kind::kLeave, wire::encode(wire::Leave{true}), out);  // it need not stay for us
  if (stage_ == Stage::kLeaving) return finish(Status::ok(), out);
  if (stage_ == Stage::kFailing) return finish(exit_.failing, out);
  finish(error_of(text.value(), Code::kCancelled), out);
}

// ---- the owner ----

void Member::applied(Epoch epoch, TimeNs now, MemberOutputs& out) {
  CHECK_LE(epoch, job_.roster_epoch) << "applied before it was heard of";
  if (done() || epoch <= job_.epoch) return;
  job_.epoch = epoch;
  send_heartbeat(now, out);
  if (barriers_.is_open()) send_barrier(out);
}

std::uint64_t Member::barrier(TimeNs /*now*/, MemberOutputs& out) {
  const std::uint64_t number = barriers_.wanted++;
  if (number == barriers_.done && !done()) send_barrier(out);
  return number;
}

void Member::stalled(wire::Stalled report, MemberOutputs& out) {
  if (done() || report == stalled_) return;
  stalled_ = std::move(report);
  send(wire::Kind::kStalled, wire::encode(stalled_), out);
}

void Member::leave(bool final, TimeNs now, MemberOutputs& out) {
  if (done() || stage_ == Stage::kLeaving || stage_ == Stage::kFailing) return;
  const bool unknown =
      stage_ == Stage::kJoining && !line_.is_up();  // the scheduler has not heard of us
  stage_ = Stage::kLeaving;
  if (unknown) return finish(Status::ok(), out);
  exit_.final = final;
  exit_.give_up_ns = now + timeout_.failure_ns;
  send(wire::Kind::kLeave, wire::encode(wire::Leave{final}), out);
}

void Member::fail(const Status& why, TimeNs now, MemberOutputs& out) {
  CHECK(!why.is_ok()) << "failing needs a reason";
  if (done() || stage_ == Stage::kLeaving || stage_ == Stage::kFailing) return;
  const bool unknown = stage_ == Stage::kJoining && !line_.is_up();
  stage_ = Stage::kFailing;
  exit_.failing = why;
  if (unknown) return finish(why, out);
  exit_.give_up_ns = now + timeout_.failure_ns;
  send_fail(out);
}

void Member::finish(Status why, MemberOutputs& out) {
  stage_ = Stage::kDone;
  if (const std::optional<PeerId> peer = line_.let_go()) {
    close(*peer, {Code::kCancelled, "this member has left"}, out);
  }
  if (why.is_ok()) {
    out.emplace_back(MemberOutput::Left{});
  } else {
    out.emplace_back(MemberOutput::Failed{std::move(why)});
  }
}

// ---- time ----

void Member::tick(TimeNs now, MemberOutputs& out) {
  if (!started_) {
    started_ = true;
    started_ns_ = now;
    line_.begin(now);
    next_notice_ns_ = now + timeout_.first_notice_ns;
  }
  if (done()) return;
  if (now > planned_ns_) line_.excuse(now - planned_ns_, now);
  look_at_clock(now, out);
  planned_ns_ = next_deadline();
}

void Member::look_at_clock(TimeNs now, MemberOutputs& out) {
  if (now >= exit_.give_up_ns)
    return finish(stage_ == Stage::kFailing ? exit_.failing : Status::ok(), out);
  if (stage_ == Stage::kJoining) watch_start(now, out);
  if (!done()) watch_silence(now, out);
  if (done()) return;
  if (line_.wants_attempt(now)) connect(now, out);
  if (line_.is_up() && now >= next_heartbeat_ns_) send_heartbeat(now, out);
}

void Member::watch_start(TimeNs now, MemberOutputs& out) {
  if (now >= give_up_joining_ns()) {
    const Status why =
        !line_.is_up()
            ? Status(Code::kTimeout, line_.unreachable_text(now), line_.unreachable_cause(now))
        : waiting_.why.is_ok()
            ? Status(Code::kTimeout,
                     scheduler_text() + " is there, but the job did not become complete",
                     {.kind = CauseKind::kIncomplete})
            : waiting_.why.in_words("the scheduler said " + duration_text(now - waiting_.said_ns) +
                                    " ago: " + waiting_.why.message());
    return finish(
        {Code::kTimeout,
         "gave up joining after " + duration_text(timeout_.start_ns) + ": " + why.message(),
         why.cause()},
        out);
  }
  if (now < next_notice_ns_) return;
  next_notice_ns_ = now + timeout_.notice_every_ns;
  // When it is there, the scheduler says who is missing.
  if (!line_.is_up()) tell(line_.unreachable_text(now), out);
}

void Member::watch_silence(TimeNs now, MemberOutputs& out) {
  if (misses_scheduler() && now >= line_.silent_since_ns() + timeout_.silence_ns()) {
    return finish(line_.silence(now), out);
  }
  if (line_.is_deaf(now)) drop_connection(line_.deafness(), now, out);
}

TimeNs Member::next_deadline() const {
  if (!started_) return 0;
  if (done()) return kNever;
  TimeNs next = std::min({exit_.give_up_ns, next_heartbeat_ns_, line_.next_deadline()});
  if (stage_ == Stage::kJoining) {
    next = std::min({next, next_notice_ns_, give_up_joining_ns()});
  }
  if (misses_scheduler()) {
    next = std::min(next, line_.silent_since_ns() + timeout_.silence_ns());
  }
  return next;
}

}  // namespace byteps
