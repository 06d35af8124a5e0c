#include "member/member.h"

#include <algorithm>
#include <utility>

#include "base/limits.h"
#include "base/phrases.h"
#include "base/planted.h"
#include "member/roster_check.h"
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

// That it gives this process a place, and a worker the one that it has.
Status check_place(const wire::Roster& roster, Role role, std::uint32_t wanted_rank) {
  if (roster.your_rank >= count_of(roster, role)) return fault("a roster without this process");
  if (role == Role::kWorker && roster.your_rank != wanted_rank) {
    return fault("a roster that gives this worker another rank");
  }
  return Status::ok();
}

// One failure timeout counts in a job: who beats every sixth of a longer one would be given up by those with a shorter.
Status take_timeout(std::uint32_t failure_ms, const Line& line, TimeoutConfig& timeout,
                    MemberOutputs& out) {
  if (failure_ms == 0 || failure_ms == timeout.failure_ms()) return Status::ok();
  if (failure_ms < TimeoutConfig::kFailureMsMin || failure_ms > TimeoutConfig::kFailureMsMax) {
    return fault(line.scheduler_text() + " has a failure timeout of " + std::to_string(failure_ms) +
                 " ms");
  }
  tell("BYTEPS_FAILURE_TIMEOUT_MS is " + std::to_string(timeout.failure_ms()) + " here, but " +
           std::to_string(failure_ms) + " at the " + line.scheduler_text() +
           ", whose value counts for the whole job",
       out);
  timeout.failure_ns = TimeNs{failure_ms} * kMillisecond;
  return Status::ok();
}

// Whether a job goes on without somebody is the scheduler's to say: who has asked for something else hears so.
void tell_what_counts(const Member::Asked& asked, const wire::Roster& roster, const Line& line,
                      MemberOutputs& out) {
  const auto differs = [&](const char* variable, const char* here, const char* there) {
    tell(std::string(variable) + " is " + here + " here, but " + there + " at the " +
             line.scheduler_text() + ", whose value counts for the whole job",
         out);
  };
  if (!asked.recovers && roster.recovers) differs("BYTEPS_RECOVERY", "0", "1");
  if (asked.continues && !roster.continues) differs("BYTEPS_ON_WORKER_LOSS", "continue", "fail");
}

std::string reason_text(const Status& why) {
  return why.is_ok() ? "" : " (" + why.message() + ")";
}

// What ends a server that was told to leave, and of which the scheduler takes no notice.
Status unanswered(const Line& line, TimeNs for_ns) {
  return {Code::kTimeout,
          line.scheduler_text() + " has not answered for " + duration_text(for_ns) +
              " (BYTEPS_RECOVERY_TIMEOUT_S) that this server is to leave",
          {.kind = CauseKind::kSilent, .who = {.role = Role::kScheduler}}};
}

Status check_adopt(const wire::Adopt& adopt, Role role) {
  const bool is_possible = role == Role::kServer && adopt.rank < kServersMax && adopt.shards > 0 &&
                           adopt.shards <= kShardsOfServerMax;
  return is_possible ? Status::ok() : fault("an impossible place to take");
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
  join.card = config.job.card.number;
  join.rate_mbps = config.job.card.rate_mbps;
  join.more_cards = config.job.more_cards;
  join.machine_index = config.job.machine_index;
  join.local_reduce = config.job.sums.locally;
  join.needs_servers = config.job.sums.needs_servers;
  join.place = config.job.local.device;
  join.life = config.job.life;
  return join;
}

Member::Member(wire::Join join, const Config& config, Timeline* timeline)
    : join_(std::move(join)),
      job_id_(config.job.job_id),
      tells_roll_call_(config.tells_roll_call),
      asked_{.recovers = config.recovers, .continues = config.continues},
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
  const bool is_another = job_.roster_epoch != Epoch(0) && theirs.incarnation != job_.scheduler;
  if (is_another && !recovers()) return meet_another_scheduler(out);
  if (const Status fine = take_timeout(theirs.failure_ms, line_, timeout_, out); !fine.is_ok()) {
    return drop_connection(fine, now, out);
  }
  if (is_another && job_.answering == job_.scheduler) {
    job_.scheduler_heard_ns = line_.silent_since_ns();
  }
  job_.answering = theirs.incarnation;
  line_.up(now);
  next_heartbeat_ns_ = now + timeout_.heartbeat_ns();
  wire::Join join = join_;
  join.has_waited = line_.is_known() && job_.roster_epoch == Epoch(0);
  if (testimony_.recovers()) {
    testimony_.note_barriers(barriers_.open_on_wire());
    join.heard = testimony_.heard();
  }
  send(wire::Kind::kJoin, wire::encode(join), out);
  // What was said on the last connection may be lost with it; the scheduler knows repeats. (To one that was begun anew
  // it is said when that knows the job, and sends its roster.)
  if (!is_another && barriers_.is_open() && !PLANTED(barrier_said_once)) send_barrier(out);
  if (stage_ == Stage::kLeaving || exit_.hands_over) {
    if (is_another) exit_.give_up_ns = std::max(exit_.give_up_ns, now + 2 * timeout_.failure_ns);
    send(wire::Kind::kLeave, wire::encode(wire::Leave{exit_.final}), out);
  }
  if (stage_ == Stage::kFailing) send(wire::Kind::kFail, wire::encode(text_of(exit_.failing)), out);
  if (!is_another && !stalled_.awaited.empty()) {
    send(wire::Kind::kStalled, wire::encode(stalled_), out);
  }
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
  if (stage_ == Stage::kRunning && recovers() && next_notice_ns_ == kNever) {
    next_notice_ns_ = now + timeout_.heartbeat_ns();
  }
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

// ---- messages ----

void Member::on_message(const wire::Header& header, std::span<const std::byte> payload, TimeNs now,
                        MemberOutputs& out) {
  if (done() || !line_.is_up()) return;
  if (header.round.value < testimony_.term() && !PLANTED(lower_term_heard)) {
    return drop_connection(
        fault(scheduler_text() + " is of term " + std::to_string(header.round.value) +
              ", but the job has had one of term " + std::to_string(testimony_.term())),
        now, out);
  }
  line_.hear(now);
  switch (header.kind) {
    case wire::Kind::kRecall:
      if (!testimony_.recovers()) break;
      return send(wire::Kind::kRoster, testimony_.roster(), out);
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
      const Result<wire::Text> text = wire::decode_text(payload);
      if (!text.is_ok()) return on_malformed(text.status(), now, out);
      waiting_ = {error_of(text.value(), Code::kCancelled), now};
      if (exit_.hands_over) exit_.give_up_ns = kNever;  // the scheduler knows
      const bool is_told_elsewhere =
          !tells_roll_call_ && waiting_.why.is_because_of(CauseKind::kIncomplete);
      return tell(scheduler_text() + " says: " + waiting_.why.message(), out,
                  is_told_elsewhere ? LogLevel::kDebug : LogLevel::kWarning);
    }
    case wire::Kind::kAdopt: {
      const Result<wire::Adopt> adopt = wire::decode_adopt(payload);
      const Status fine = adopt.is_ok() ? check_adopt(adopt.value(), join_.role) : adopt.status();
      if (!fine.is_ok()) return on_malformed(fine, now, out);
      if (stage_ != Stage::kJoining && stage_ != Stage::kRunning) return;
      return void(out.emplace_back(MemberOutput::Adopt{adopt.value()}));
    }
    default:
      break;
  }
  on_malformed(fault("a message that schedulers do not send"), now, out);
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
  Status fine = check_roster(roster);
  if (fine.is_ok()) fine = check_place(roster, join_.role, join_.wanted_rank);
  if (!fine.is_ok()) return on_malformed(fine, now, out);
  if (job_.roster_epoch != Epoch(0) && testimony_.recovers() &&
      roster.incarnation != job_.incarnation) {
    return meet_another_scheduler(out);
  }
  if (roster.epoch >= job_.roster_epoch) testimony_.take(roster, header.round.value, payload);
  const bool is_another = job_.answering != job_.scheduler;
  if (roster.epoch == job_.roster_epoch && is_another) meet_successor(header.round.value, now, out);
  if (stage_ == Stage::kRunning) next_notice_ns_ = kNever;
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
  job_.scheduler = job_.answering;
  job_.incarnation = roster.incarnation == Incarnation{} ? job_.answering : roster.incarnation;
  job_.rank = roster.your_rank;
  stalled_ = {};
  barriers_.begin_epoch();
  next_notice_ns_ = kNever;
  // It got a place after all: the scheduler has heard, or will, that it leaves.
  if (stage_ == Stage::kLeaving && join_.role == Role::kServer) {
    exit_ = {.hands_over = true,
             .failing = unanswered(line_, timeout_.recovery_ns),
             .give_up_ns = now + timeout_.recovery_ns};
  }
  if (stage_ == Stage::kJoining || exit_.hands_over) stage_ = Stage::kRunning;
  if (stage_ == Stage::kRunning) {
    tell_what_counts(asked_, roster, line_, out);
    out.emplace_back(MemberOutput::Began{std::move(roster)});
  }
  if (join_.role == Role::kWorker) applied(job_.roster_epoch, now, out);
}

// A scheduler that was begun anew knows our job again. What it cannot know is said again.
void Member::meet_successor(std::uint32_t term, TimeNs now, MemberOutputs& out) {
  job_.scheduler = job_.answering;
  out.emplace_back(MemberOutput::Succeeded{.term = term,
                                           .text = scheduler_text() + " was lost" +
                                                   reason_text(line_.last_down()) +
                                                   "; started anew, it had the job again " +
                                                   duration_text(now - job_.scheduler_heard_ns) +
                                                   " later (term " + std::to_string(term) + ")"});
  if (stage_ == Stage::kRunning) {
    tell(scheduler_text() +
             " was lost, and is back: started anew, it has heard from the members where the job is "
             "(term " +
             std::to_string(term) + ")",
         out);
  }
  if (barriers_.is_open()) send_barrier(out);
  if (!stalled_.awaited.empty()) send(wire::Kind::kStalled, wire::encode(stalled_), out);
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
  const Members& who = leave.value().who;
  if (!who.is_all() && header.epoch == job_.roster_epoch && testimony_.recovers()) {
    testimony_.note_barriers(leave.value().barriers);
    for (const std::uint32_t rank : who.some()) {
      if (join_.role != Role::kServer || !testimony_.note_left(rank, leave.value().final)) continue;
      out.emplace_back(MemberOutput::WorkerLeft{WorkerRank(rank), leave.value().final});
    }
    // Now a scheduler that is begun anew will know it, too.
    send(wire::Kind::kLeave, {payload.begin(), payload.end()}, out);
  }
  const auto note = [&](WorkerRank worker) {
    const bool is_news = testimony_.note_left(worker.value, leave.value().final);
    if (is_news) out.emplace_back(MemberOutput::WorkerLeft{worker, leave.value().final});
  };
  if (join_.role == Role::kServer && !who.is_all()) return;
  if (join_.role == Role::kServer) {                                 // the job is over
    send(wire::Kind::kLeave, wire::encode(wire::Leave{true}), out);  // it need not stay for us
    return finish(stage_ == Stage::kFailing ? exit_.failing : Status::ok(), out);
  }
  if (who.is_all() && header.worker == WorkerRank(job_.rank)) {
    if (stage_ == Stage::kLeaving) finish(Status::ok(), out);
    return;
  }
  if (header.epoch != job_.roster_epoch) return;
  if (who.is_all()) return note(header.worker);
  for (const std::uint32_t rank : who.some()) note(WorkerRank(rank));
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
  if (done() || stage_ == Stage::kLeaving || stage_ == Stage::kFailing || exit_.hands_over) return;
  const bool unknown =
      stage_ == Stage::kJoining && !line_.is_up();  // the scheduler has not heard of us
  if (unknown) return finish(Status::ok(), out);
  exit_.final = final;
  if (join_.role == Role::kServer && stage_ == Stage::kRunning) {
    exit_ = {.hands_over = true,
             .failing = unanswered(line_, timeout_.recovery_ns),
             .give_up_ns = now + timeout_.recovery_ns};
  } else {
    stage_ = Stage::kLeaving;
    // Where it recovers, others hear of it before it is answered.
    exit_.give_up_ns = now + (recovers() ? 2 : 1) * timeout_.failure_ns;
  }
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
  send(wire::Kind::kFail, wire::encode(text_of(exit_.failing)), out);
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
  if (now >= exit_due_ns()) return finish(exit_.failing, out);
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
  if (now >= give_up_scheduler_ns()) {
    const Status why = line_.silence(now);
    return finish(!recovers()
                      ? why
                      : why.in_words(why.message() +
                                     "; the job has waited for one that is started anew at this "
                                     "address (BYTEPS_RECOVERY_TIMEOUT_S)"),
                  out);
  }
  if (line_.is_deaf(now)) drop_connection(line_.deafness(), now, out);
  if (stage_ != Stage::kRunning || line_.is_up() || now < next_notice_ns_) return;
  next_notice_ns_ = now + timeout_.notice_every_ns;
  tell(line_.absence_text(now, give_up_scheduler_ns() - now), out);
}

TimeNs Member::give_up_scheduler_ns() const {
  const bool misses = stage_ == Stage::kRunning || (stage_ == Stage::kJoining && line_.is_known());
  if (!misses) return kNever;
  return line_.silent_since_ns() + (recovers() ? timeout_.recovery_ns : timeout_.silence_ns());
}

TimeNs Member::next_deadline() const {
  if (!started_) return 0;
  if (done()) return kNever;
  TimeNs next = std::min({exit_due_ns(), next_heartbeat_ns_, line_.next_deadline()});
  if (stage_ == Stage::kJoining) {
    next = std::min({next, next_notice_ns_, give_up_joining_ns()});
  }
  if (stage_ == Stage::kRunning && !line_.is_up()) next = std::min(next, next_notice_ns_);
  return std::min(next, give_up_scheduler_ns());
}

}  // namespace byteps
