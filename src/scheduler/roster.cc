#include "scheduler/roster.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/limits.h"
#include "base/phrases.h"
#include "base/placement.h"
#include "base/planted.h"
#include "member/roster_check.h"
#include "net/wire_text.h"
#include "scheduler/sayings.h"
#include "scheduler/stall.h"

namespace byteps {
namespace {

Status nonsense(std::string what) {
  return {Code::kInvalidArgument, std::move(what)};
}

Scene scene_of(const JobConfig& job, const Seats& seats, Epoch epoch, RosterKeeper::Phase phase) {
  return {.job = job,
          .seats = seats,
          .epoch = epoch,
          .is_gathering = phase == RosterKeeper::Phase::kGathering,
          .is_confirming = phase == RosterKeeper::Phase::kConfirming};
}

// The roster that a member alone knows. It does not serve the workers any more that are lost there, so they are lost.
Status believe(Seat& seat, std::span<const std::byte> payload, const Recall& recall,
               const Seats& seats, Losses& losses, TimeNs now) {
  if (!seat.is_asked()) return nonsense("a roster that nobody asked for");
  const Result<std::vector<WorkerRank>> lost = recall.on_unknown(seat, payload);
  if (!lost.is_ok()) return lost.status();
  for (const WorkerRank rank : lost.value()) {
    if (seats.is_vacant(rank.value)) continue;
    losses.note_ended(
        rank, "was given up by a scheduler before this one, as only " + seat.text() + " has heard",
        now);
  }
  return Status::ok();
}

void tell_spares(const Seats& seats, const Speaker& speaker, std::size_t servers,
                 KeeperOutputs& out) {
  const SharedBytes words = encode_status(
      {Code::kAgain, "this server is a spare: the job has " + std::to_string(servers) +
                         " others, as DMLC_NUM_SERVER says, and began without it"});
  for (const auto& [arrival, seat] : seats.all()) {
    if (seat.in_roster || seat.worker() || !seat.peer) continue;
    Speaker::notice(LogLevel::kWarning, seat.text() + " is a spare", out);
    speaker.send(*seat.peer, wire::Kind::kWaiting, WorkerRank(), words, out);
  }
}

// It took the failure timeout or longer to notice.
bool was_waited_for(const Status& why) {
  const CauseKind kind = why.cause().kind;
  return kind == CauseKind::kGone || kind == CauseKind::kSilent || kind == CauseKind::kUnreachable;
}

}  // namespace

RosterKeeper::RosterKeeper(const Config& config)
    : job_(config.job),
      timeout_(config.timeout),
      recovers_(config.recovers),
      term_(config.recovers ? 1 : 0),
      losses_(config.recovers && config.continues, timeout_,
              {.seats = seats_,
               .speaker = speaker_,
               .joining = joining_,
               .barriers = barriers_,
               .stalls = stalls_,
               .succession = succession_}) {}

// ---- from the network ----

void RosterKeeper::on_up(PeerId peer, const Hello& hello, TimeNs now, Outputs& out) {
  begin(now);
  seats_.connections()[peer].since_ns = now;
  seats_.connection(peer).hello = hello;
  if (hello.role == Role::kScheduler) {
    speaker_.close(peer, nonsense("a scheduler called a scheduler"), out);
  } else if (ended()) {  // nothing must be said to it: the scheduler would have to stay
    speaker_.close(peer, {Code::kCancelled, "the job has ended"}, out);
  }
}

void RosterKeeper::on_down(PeerId peer, const Status& why, TimeNs now, Outputs& out) {
  if (seats_.find(peer) == nullptr) return;
  if (const std::optional<Arrival> arrival = seats_.detach(peer, why, now)) {
    const Seat& seat = seats_.at(*arrival);
    if (!seat.left && phase_ != Phase::kEnding) {
      Speaker::news("lost", seat, " lost its connection: " + why.message(), out, why);
    }
  }
  try_end(now, out);
}

void RosterKeeper::on_malformed(PeerId peer, const Status& why, Outputs& out) {
  const Connection* const connection = seats_.find(peer);
  if (connection == nullptr || connection->refused) return;
  Speaker::notice(LogLevel::kWarning,
                  "closing the connection of " + seats_.who(peer) + ": " + why.message(), out,
                  KeeperOutput::Sort::kMalformed);
  speaker_.close(peer, why, out);
}

void RosterKeeper::step(PeerId peer, const wire::Header& header, std::span<const std::byte> payload,
                        TimeNs now, Outputs& out) {
  const Connection* const connection = seats_.find(peer);
  if (connection == nullptr || connection->closed) return;
  // Leave is answered whoever sends it: its answer may have been lost with an older connection.
  if (header.kind == wire::Kind::kLeave) return on_leave(peer, header, payload, now, out);
  if (connection->refused || ended()) return;
  if (header.kind == wire::Kind::kJoin) return on_join(peer, header, payload, now, out);
  const std::optional<Arrival> arrival = connection->seat;
  if (!arrival) {
    // A member that has left may still have something on the way.
    if (header.epoch == Epoch(0)) on_malformed(peer, nonsense("a message before Join"), out);
    return;
  }
  Seat& seat = seats_.at(*arrival);
  seat.heard_ns = seat.said_ns = now;
  if (phase_ == Phase::kEnding) return;
  switch (header.kind) {
    case wire::Kind::kHeartbeat:
      return on_heartbeat(peer, seat, header, payload, now, out);
    case wire::Kind::kBarrier:
      return on_barrier(peer, seat, header, payload, out);
    case wire::Kind::kStalled:
      return on_stalled(peer, seat, header, payload, now, out);
    case wire::Kind::kFail:
      return on_fail(peer, *arrival, payload, now, out);
    case wire::Kind::kRoster: {
      const bool is_recalling = recall_.is_on();
      const Status fine = is_recalling ? recall_.on_roster(*arrival, payload)
                                       : believe(seat, payload, recall_, seats_, losses_, now);
      if (!fine.is_ok()) return on_malformed(peer, fine, out);
      if (!is_recalling) catch_up(seat, out);
      return;
    }
    default:
      return on_malformed(peer, nonsense("a message that members do not send"), out);
  }
}

// ---- joining ----

void RosterKeeper::on_join(PeerId peer, const wire::Header& header,
                           std::span<const std::byte> payload, TimeNs now, Outputs& out) {
  if (seats_.connection(peer).seat) return on_malformed(peer, nonsense("a second Join"), out);
  Result<wire::Join> decoded = wire::decode_join(payload);
  if (!decoded.is_ok()) return on_malformed(peer, decoded.status(), out);
  wire::Join& join = decoded.value();
  join.host = printable(join.host, kHostTextBytesMax);
  if (join.role == Role::kWorker) join.endpoints.clear();  // nobody connects to a worker
  const Hello& hello = seats_.connection(peer).hello;
  if (join.role != hello.role || (join.role == Role::kWorker && join.wanted_rank != hello.rank)) {
    return on_malformed(peer, nonsense("a Join of another role or rank than its Hello"), out);
  }
  const Status fine = joining_.check(join);
  if (!fine.is_ok()) return refuse(peer, fine, now, out);

  if (!hear_of_others(peer, join, now, out)) return;

  const bool in_epoch = phase_ == Phase::kConfirming || phase_ == Phase::kRunning;
  Joining::Known known =
      joining_.recognise(join, recall_.is_on() ? Incarnation{} : hello.incarnation,
                         recall_.is_on() ? Epoch(0) : header.epoch,
                         {.epoch = epoch_,
                          .in_epoch = in_epoch,
                          .recovers = recovers_,
                          .is_vacant = seats_.is_vacant(join.wanted_rank)},
                         now);
  if (known.begun) mark_left(seats_.at(*known.begun), false, now, out);
  if (known.is_new) joining_.check_new(join, phase_ == Phase::kGathering, known);
  if (!known.closed.is_ok()) return speaker_.close(peer, known.closed, out);
  if (join.role == Role::kWorker && known.refusal.is_because_of(CauseKind::kReplaced)) {
    return refuse(peer, known.refusal, now, out);
  }
  if (phase_ == Phase::kEnding) {  // perhaps only now, by what was recognised
    if (!known.same && !outcome().is_ok()) return refuse(peer, outcome(), now, out);
    if (!known.same && header.epoch == Epoch(0)) {
      // One of the next job, perhaps, which has the same address: let it try again.
      return speaker_.close(peer, {Code::kCancelled, "the job has ended"}, out);
    }
    if (!known.same) {
      // A former member: its Leave is answered, nothing else. But a server that waits for a place has to hear that
      // there is none.
      seats_.connection(peer).refused = true;
      const bool was_replaced = known.refusal.is_because_of(CauseKind::kReplaced);
      if (join.role != Role::kServer || !was_replaced) return;
      return speaker_.send(peer, wire::Kind::kLeave, WorkerRank(), wire::encode(wire::Leave{true}),
                           out);
    }
    joining_.attach(*known.same, peer, now, speaker_, out);
    if (PLANTED(last_word_said_once)) return;
    return ending_.tell(seats_.at(*known.same), out);
  }
  if (!known.refusal.is_ok()) return refuse(peer, known.refusal, now, out);
  seat(peer, std::move(join), known, header.epoch, now, out);
}

// What it was told by another scheduler of the job: one before this, which has to recall then, or one after. False: it
// has no business here now.
bool RosterKeeper::hear_of_others(PeerId peer, const wire::Join& join, TimeNs now, Outputs& out) {
  const std::uint32_t term = join.heard.term;
  if (!recovers_ || term == 0) return true;
  const Incarnation& incarnation = seats_.connection(peer).hello.incarnation;
  if (phase_ == Phase::kGathering && epoch_ == Epoch(0)) {
    phase_ = Phase::kRecalling;
    recall_.begin(incarnation, now);
    Speaker::notice(LogLevel::kWarning,
                    "members have a job that runs: this scheduler was started anew, and hears from "
                    "them where that is",
                    out);
  }
  if (recall_.is_on()) {
    const bool is_ours = incarnation == recall_.incarnation();
    if (is_ours) term_ = std::max(term_, term + 1);
    if (!is_ours) speaker_.close(peer, {Code::kAgain, "members of another job are here"}, out);
    return is_ours;
  }
  if (incarnation != job_.incarnation || term <= term_ || phase_ == Phase::kEnding) return true;
  const Status why(Code::kDisconnected,
                   "another scheduler, of term " + std::to_string(term) +
                       ", has had this job: this one, of term " + std::to_string(term_) +
                       ", knows it no more, and has to be started anew",
                   {.kind = CauseKind::kReplaced, .who = {.role = Role::kScheduler}});
  Speaker::notice(LogLevel::kWarning, why.message(), out);
  phase_ = Phase::kEnding;
  ending_.resign(why, now);
  try_end(now, out);
  return false;
}

// It is let in, or is back.
void RosterKeeper::seat(PeerId peer, wire::Join join, const Joining::Known& known, Epoch epoch,
                        TimeNs now, Outputs& out) {
  const bool is_new = !known.same.has_value();
  const std::uint64_t life = join.life;
  const bool is_worker = join.role == Role::kWorker;
  if (!is_new) Joining::renew(seats_.at(*known.same), join);
  if (is_new && is_worker && epoch == Epoch(0)) losses_.note_new(join.wanted_rank);
  const Arrival arrival = is_new ? joining_.admit(std::move(join), now) : *known.same;
  if (is_new && is_worker && gathering_.is_idle())
    gather(now);  // the next generation begins to come
  joining_.attach(arrival, peer, now, speaker_, out);
  if (!known.fatal.is_ok()) return end_job(known.fatal, now, out);

  Seat& seat = seats_.at(arrival);
  Joining::note_life(seat, life);
  if (!is_new) seat.join.heard = join.heard;
  if (recall_.is_on()) {
    if (!is_new) seat.join = std::move(join);
    seat.applied = epoch;
  }
  Speaker::news(is_new ? "here" : "back", seat, is_new ? " is here" : " is back", out);
  if (phase_ == Phase::kGathering) return try_complete(now, out);
  if (recall_.is_on()) return recall_.ask(out);
  if (!seat.in_roster) {
    if (succession_.recovers()) succession_.fill(now, out);
    return;
  }
  catch_up(seat, out);
  note_epoch(&seat, epoch, out);
}

// What a member of the roster may have missed while it had no connection.
void RosterKeeper::catch_up(Seat& seat, Outputs& out) {
  if (!seat.peer || seat.left || (seat.worker() && phase_ != Phase::kRunning)) return;
  if (seat.join.heard.epoch == epoch_ &&
      recall_.ask_for_unknown(seat, succession_.revision(), out)) {
    return;
  }
  succession_.catch_up(seat, out);
  if (recovers_) return departures_.announce_all_to(seat, barriers_.number(), out);
  if (seat.worker()) departures_.tell_all_to(*seat.peer, out);
}

void RosterKeeper::refuse(PeerId peer, const Status& why, TimeNs now, Outputs& out) {
  Speaker::notice(LogLevel::kWarning, "refused: " + why.message(), out,
                  KeeperOutput::Sort::kRefused);
  speaker_.send(peer, wire::Kind::kFail, WorkerRank(), encode_status(why), out);
  seats_.connection(peer).refused = true;
  seats_.connection(peer).since_ns = now;
  if (phase_ == Phase::kGathering) gathering_.note_refusal(why);
}

// ---- the other messages ----

void RosterKeeper::on_heartbeat(PeerId peer, Seat& seat, const wire::Header& header,
                                std::span<const std::byte> payload, TimeNs now, Outputs& out) {
  const Result<wire::Heartbeat> heartbeat = wire::decode_heartbeat(payload);
  if (!heartbeat.is_ok()) return on_malformed(peer, heartbeat.status(), out);
  if (heartbeat.value().sent_ns != 0) {
    const wire::Heartbeat answer{.sent_ns = static_cast<std::uint64_t>(now),
                                 .echo_ns = heartbeat.value().sent_ns};
    speaker_.send(peer, wire::Kind::kHeartbeat, WorkerRank(), wire::encode(answer), out);
  }
  note_epoch(&seat, header.epoch, out);
}

// The epoch that a member works in, as it says; null: there are no servers. When all servers have taken it up, it runs.
void RosterKeeper::note_epoch(Seat* seat, Epoch epoch, Outputs& out) {
  if (seat != nullptr) {
    if (!seat->in_roster || (epoch != epoch_ && !PLANTED(epoch_not_fenced))) return;
    seat->applied = epoch_;
  }
  const bool is_new_to_all = phase_ == Phase::kRunning && succession_.is_pending();
  if (phase_ != Phase::kConfirming && !is_new_to_all) return;
  for (const auto& [arrival, other] : seats_.all()) {
    if (PLANTED(roster_unconfirmed)) break;
    if (other.in_roster && !other.worker() && other.applied != epoch_) return;
  }
  succession_.release(out);
  if (phase_ == Phase::kRunning) return;
  phase_ = Phase::kRunning;
  for (auto& [arrival, other] : seats_.all()) {
    if (other.plays()) catch_up(other, out);
  }
}

void RosterKeeper::on_leave(PeerId peer, const wire::Header& header,
                            std::span<const std::byte> payload, TimeNs now, Outputs& out) {
  const Result<wire::Leave> leave = wire::decode_leave(payload);
  if (!leave.is_ok()) return on_malformed(peer, leave.status(), out);
  const std::optional<Arrival> arrival = seats_.connection(peer).seat;
  if (!leave.value().who.is_all()) {  // it knows that these leave
    if (arrival) departures_.note_known(seats_.at(*arrival), leave.value().who.some());
    return;
  }
  if (succession_.awaits_farewell(peer)) return;  // said again: it goes when all know its successor
  const bool server_of_running_job = arrival && !seats_.at(*arrival).worker() &&
                                     seats_.at(*arrival).in_roster &&
                                     (phase_ == Phase::kConfirming || phase_ == Phase::kRunning);
  // Its sums are lost with it, unless another one takes its place.
  if (server_of_running_job && !succession_.recovers()) {
    const Seat& seat = seats_.at(*arrival);
    return end_job({Code::kDisconnected,
                    seat.text() + " was stopped while the job ran",
                    {.kind = CauseKind::kLeft, .who = seat.participant()}},
                   now, out);
  }
  if (server_of_running_job) return succession_.leave(*arrival, now, out);
  if (arrival && phase_ == Phase::kEnding) {
    seats_.at(*arrival).heard_end = true;
    return;
  }
  const bool is_of_epoch = arrival && seats_.at(*arrival).worker() && !seats_.at(*arrival).left &&
                           (seats_.at(*arrival).in_roster ||
                            (recall_.is_on() && seats_.at(*arrival).join.heard.term > 0));
  if (recovers_ && is_of_epoch && phase_ != Phase::kEnded) {  // answered when others know it
    seats_.at(*arrival).heard_ns = now;
    seats_.at(*arrival).leaving.final = leave.value().final;
    return;
  }
  speaker_.send(peer, wire::Kind::kLeave, header.worker, wire::encode(leave.value()), out);
  if (!arrival || phase_ == Phase::kEnded) return;
  Seat& seat = seats_.at(*arrival);
  seat.heard_ns = now;
  if (seat.in_roster && seat.worker()) {
    if (!seat.left) mark_left(seat, leave.value().final, now, out);
    return;
  }
  Speaker::news("left", seat, " left before the job was complete", out);
  seats_.erase(*arrival, now);
  if (phase_ == Phase::kGathering) gathering_.note_absence(epoch_, seats_, now);
}

void RosterKeeper::mark_left(Seat& seat, bool final, TimeNs now, Outputs& out) {
  seat.left = true;
  seat.left_for_good = final;
  Speaker::news("left", seat, final ? " has left" : " has left and may come back", out);
  departures_.add(seat, phase_ == Phase::kRunning);
  barriers_.on_left(out);
  stalls_.on_left(now);
  try_next_generation(now, out);
}

// Where it recovers: who leaves may go when it is known to who would tell a scheduler begun anew.
void RosterKeeper::answer_leaving(TimeNs now, Outputs& out) {
  if (phase_ != Phase::kConfirming && phase_ != Phase::kRunning) return;
  const TimeNs gone_ns = now - timeout_.failure_ns;
  departures_.announce(barriers_.number(), gone_ns, out);
  for (const Arrival arrival : departures_.known(gone_ns)) {
    Seat& seat = seats_.at(arrival);
    const bool final = *seat.leaving.final;
    if (seat.peer) {
      speaker_.send(*seat.peer, wire::Kind::kLeave, WorkerRank(seat.rank),
                    wire::encode(wire::Leave{final}), out);
    }
    mark_left(seat, final, now, out);
    if (!seats_.all().contains(arrival)) return;  // all have left
  }
}

void RosterKeeper::on_barrier(PeerId peer, const Seat& seat, const wire::Header& header,
                              std::span<const std::byte> payload, Outputs& out) {
  const Result<wire::Barrier> barrier = wire::decode_barrier(payload);
  if (!barrier.is_ok()) return on_malformed(peer, barrier.status(), out);
  if (!seat.in_roster || seat.left || header.epoch != epoch_) return;  // of another epoch
  const std::uint64_t number = barrier.value().number;
  if (recovers_ && phase_ == Phase::kConfirming) return;  // said again with the roster
  const bool may_come = seat.worker() && phase_ == Phase::kRunning;
  if (!may_come || !barriers_.arrive(seat, number, out)) {
    on_malformed(peer, nonsense("barrier " + std::to_string(number) + " out of turn"), out);
  }
}

void RosterKeeper::on_stalled(PeerId peer, Seat& seat, const wire::Header& header,
                              std::span<const std::byte> payload, TimeNs now, Outputs& out) {
  Result<wire::Stalled> stalled = wire::decode_stalled(payload);
  if (!stalled.is_ok()) return on_malformed(peer, stalled.status(), out);
  if (!seat.in_roster || seat.left || header.epoch != epoch_) return;  // of another epoch
  if (!seat.worker()) return on_malformed(peer, nonsense("a server that waits"), out);
  seat.stalled = std::move(stalled).value();
  stalls_.on_report(now);
}

void RosterKeeper::on_fail(PeerId peer, Arrival arrival, std::span<const std::byte> payload,
                           TimeNs now, Outputs& out) {
  const Result<wire::Text> text = wire::decode_text(payload);
  if (!text.is_ok()) return on_malformed(peer, text.status(), out);
  const Seat& seat = seats_.at(arrival);
  const Status said = error_of(text.value(), Code::kCancelled, wire::kTextBytesMax / 2);
  // Whose word it is, and whom it is about where it does not say so, is not for the member to say.
  Cause cause = said.cause();
  cause.told_by = seat.participant();
  if (!cause.who.role) cause.who = cause.told_by;
  if (cause.detail.empty()) cause.detail = said.message();
  const Status why(said.code(), seat.text() + ": " + said.message(), std::move(cause));
  if (seat.in_roster || phase_ == Phase::kGathering || recall_.is_on())
    return end_job(why, now, out);
  // It waits for the next epoch; the running one is none of its business.
  seats_.erase(arrival, now);
  refuse(peer, why, now, out);
}

// ---- phases ----

void RosterKeeper::gather(TimeNs now) {
  phase_ = Phase::kGathering;
  succession_.end_epoch();
  gathering_.begin(now);
}

void RosterKeeper::try_complete(TimeNs now, Outputs& out) {
  const Cast roles = seats_.cast();
  if (!roles.complete()) return;
  epoch_ = Epoch(epoch_.value + 1 + recall_.take_epoch_jump());
  phase_ = Phase::kConfirming;
  gathering_.end();
  stalls_.begin_epoch();
  barriers_.begin_epoch(static_cast<std::uint32_t>(roles.workers.size()));
  departures_.begin_epoch();
  wire::Roster roster = seats_.take(roles, epoch_, losses_.are_borne());
  roster.recovers = recovers_;
  if (recovers_) roster.incarnation = job_.incarnation;
  for (wire::RosterMember& member : roster.members) member.life = recovers_ ? member.life : 0;
  const std::size_t servers = roles.servers.size();
  if (servers == 0 && roster.summing != wire::Summing::kAlone) {
    return end_job(
        {Code::kInvalidArgument,
         "all workers are here, but nobody said how many servers the job has, and they do "
         "not all sum on one machine (BYTEPS_LOCAL_REDUCE): set DMLC_NUM_SERVER to at "
         "least 1"},
        now, out);
  }
  for (const std::string& text : summing_texts(roster, servers, seats_.local_reduce())) {
    Speaker::notice(LogLevel::kWarning, text, out);
  }
  if (!succession_.begin_epoch(roster)) {
    return end_job(
        {Code::kUnsupported, "the job is too large: its roster has " +
                                 std::to_string(succession_.roster_bytes()) + " bytes, at most " +
                                 std::to_string(kPayloadBytesMax) + " fit a message"},
        now, out);
  }
  Speaker::notice(LogLevel::kInfo,
                  "complete: epoch " + std::to_string(epoch_.value) + " with " +
                      std::to_string(roles.workers.size()) + " workers and " +
                      std::to_string(servers) +
                      " servers; who sums: " + who_sums_text(roster, servers),
                  out);
  const std::string sizes = other_sizes_text(scene_of(job_, seats_, epoch_, phase_));
  if (!sizes.empty()) Speaker::notice(LogLevel::kWarning, sizes, out);
  for (auto& [arrival, seat] : seats_.all()) {
    if (seat.in_roster) catch_up(seat, out);  // servers only, in this phase
  }
  tell_spares(seats_, speaker_, servers, out);
  if (servers == 0) note_epoch(nullptr, epoch_, out);
}

void RosterKeeper::try_next_generation(TimeNs now, Outputs& out) {
  if (phase_ != Phase::kConfirming && phase_ != Phase::kRunning) return;
  bool for_good = true;
  std::vector<Arrival> gone;
  for (const auto& [arrival, seat] : seats_.all()) {
    if (!seat.plays()) continue;
    if (!seat.left) return;
    for_good = for_good && seat.left_for_good;
    gone.push_back(arrival);
  }
  joining_.remember(gone);
  for (const Arrival arrival : gone) seats_.erase(arrival, now);
  if (for_good && !seats_.anyone_waits())
    return end_job(Status::ok(), now, out, "all workers have left");
  gather(now);
  succession_.dismiss(now, out);
  if (phase_ == Phase::kGathering) gathering_.note_absence(epoch_, seats_, now);
  try_complete(now, out);
}

// Begun anew: it goes on with the job, if it has heard enough.
void RosterKeeper::resume(TimeNs now, Outputs& out) {
  recall_.ask(out);
  const Recall::Verdict verdict = recall_.verdict(now);
  if (verdict == Recall::Verdict::kWait) return;
  std::vector<Arrival> strangers;
  if (verdict == Recall::Verdict::kGoOn) {
    Speaker::notice(LogLevel::kWarning,
                    "started anew, the scheduler goes on with the job: " + recall_.text() +
                        ", epoch " + std::to_string(recall_.roster().epoch.value) + ", term " +
                        std::to_string(term_),
                    out);
    strangers = recall_.take_seats();
  } else {
    for (const auto& [arrival, seat] : seats_.all()) {
      if (seat.join.heard.term > 0) strangers.push_back(arrival);
    }
  }
  for (const Arrival arrival : strangers) {
    const Seat& seat = seats_.at(arrival);
    const bool goes_on = verdict == Recall::Verdict::kGoOn;
    const bool is_replaced = goes_on && !seat.worker();
    const bool is_vacant = goes_on && seat.worker() && recall_.is_vacant(seat.rank);
    const Status why =
        is_vacant
            ? went_on_without(seat.text())
            : Status(Code::kDisconnected,
                     seat.text() +
                         (is_replaced
                              ? " was away for too long: another server has its place, and the "
                                "job goes on"
                              : " has a job that this scheduler cannot go on with: " +
                                    recall_.text() + "; start the whole job again"),
                     {.kind = is_replaced ? CauseKind::kReplaced : CauseKind::kStartedAnew,
                      .who = {.role = is_replaced ? Role::kServer : Role::kScheduler}});
    if (seat.peer) refuse(*seat.peer, why, now, out);
    seats_.erase(arrival, now);
  }
  if (verdict == Recall::Verdict::kGoOn) return take_up(now, out);
  recall_.end();
  phase_ = Phase::kGathering;
  try_complete(now, out);
}

// The epoch of the roster that was recalled, whose members have their seats, goes on under this scheduler.
void RosterKeeper::take_up(TimeNs now, Outputs& out) {
  const wire::Roster& roster = recall_.roster();
  job_.incarnation = recall_.incarnation();
  epoch_ = roster.epoch;
  phase_ = Phase::kConfirming;
  gathering_.end();
  stalls_.begin_epoch();
  const auto vacant = static_cast<std::uint32_t>(vacant_ranks(roster).size());
  barriers_.begin_epoch(count_of(roster, Role::kWorker) - vacant, recall_.barriers());
  departures_.begin_epoch();
  for (const auto& [arrival, seat] : seats_.all()) {
    if (seat.plays() && seat.left) departures_.add(seat, false);
  }
  succession_.resume_epoch(roster, recall_.jump());
  recall_.end();
  for (auto& [arrival, seat] : seats_.all()) {
    if (seat.in_roster) catch_up(seat, out);  // servers only, in this phase
  }
  note_epoch(nullptr, epoch_, out);
  try_next_generation(now, out);
}

// Well, because of what `text` says, or not.
void RosterKeeper::end_job(Status why, TimeNs now, Outputs& out, const std::string& text) {
  if (phase_ == Phase::kEnding || ended()) return;
  const bool is_well = why.is_ok();
  Speaker::notice(is_well ? LogLevel::kInfo : LogLevel::kError,
                  is_well ? "the job is over: " + text : "the job has failed: " + why.message(),
                  out);
  phase_ = Phase::kEnding;
  recall_.end();
  succession_.say_farewell(out);
  // Whoever stands still meanwhile wakes up before it would be lost, and is told. But after a loss that took
  // silence_ns() to notice, this process too ends within twice the failure timeout.
  const TimeNs lingers_ns =
      timeout_.failure_ns - (was_waited_for(why) ? 2 * timeout_.heartbeat_ns() : 0);
  ending_.begin(std::move(why), now + lingers_ns, out);
  try_end(now, out);
}

void RosterKeeper::try_end(TimeNs now, Outputs& out) {
  if (phase_ != Phase::kEnding || now < ending_.end_ns()) return;
  phase_ = Phase::kEnded;
  for (auto& [peer, connection] : seats_.connections()) {
    if (!connection.closed) speaker_.close(peer, {Code::kCancelled, "the job has ended"}, out);
  }
}

void RosterKeeper::stop(const Status& why, TimeNs now, Outputs& out) {
  CHECK(!why.is_ok()) << "stopping needs a reason";
  end_job(why, now, out);
  ending_.hurry(now + 2 * timeout_.heartbeat_ns());
}

// ---- time ----

// At the first that it hears of the time.
void RosterKeeper::begin(TimeNs now) {
  if (clock_.started) return;
  clock_.started = true;
  gather(now);
  clock_.next_heartbeat_ns = now + timeout_.heartbeat_ns();
}

void RosterKeeper::tick(TimeNs now, Outputs& out) {
  begin(now);
  if (now > clock_.planned_ns) vigil_.excuse(now - clock_.planned_ns, now);
  if (recall_.is_on()) resume(now, out);
  if (recovers_) answer_leaving(now, out);
  departures_.tell(phase_ == Phase::kRunning, out);
  try_end(now, out);
  if (!ended()) vigil_.drop_strangers(now, out);
  if (phase_ != Phase::kEnding && !ended()) watch(now, out);
  clock_.planned_ns = next_deadline();
}

void RosterKeeper::watch(TimeNs now, Outputs& out) {
  beat(now, out);
  if (succession_.recovers()) succession_.fill(now, out);
  watch_silence(now, out);
  if (phase_ == Phase::kEnding) return;
  watch_start(now, out);
  if (phase_ == Phase::kRunning || phase_ == Phase::kConfirming) vigil_.tell_queue(now, out);
  if (phase_ != Phase::kRunning) return;
  const std::string stall = stalls_.due(now);
  if (!stall.empty()) end_job({Code::kMismatch, stall, {.kind = CauseKind::kStalled}}, now, out);
}

void RosterKeeper::on_worker_ended(WorkerRank rank, const std::string& how, TimeNs now) {
  begin(now);
  if (!losses_.are_borne() || phase_ == Phase::kEnding || ended()) return;
  losses_.note_ended(rank, how, now);
  recall_.note_ended(
      rank.value);  // tick() does what follows: silence is judged when all has been handed in
}

void RosterKeeper::beat(TimeNs now, Outputs& out) {
  if (now < clock_.next_heartbeat_ns || phase_ == Phase::kEnding || ended()) return;
  clock_.next_heartbeat_ns = now + timeout_.heartbeat_ns();
  if (PLANTED(silence_forgiven)) {
    for (auto& [arrival, seat] : seats_.all()) seat.heard_ns = now;
  }
  for (const auto& [arrival, seat] : seats_.all()) {
    if (seat.peer) speaker_.send(*seat.peer, wire::Kind::kHeartbeat, WorkerRank(), {}, out);
  }
}

void RosterKeeper::watch_silence(TimeNs now, Outputs& out) {
  losses_.look(now);
  std::vector<Arrival> gone = losses_.ended_seats();
  const std::size_t ended_count = gone.size();
  for (const Arrival each : vigil_.silent(now, losses_.patience())) gone.push_back(each);
  for (std::size_t i = 0; i < gone.size(); ++i) {
    const Arrival arrival = gone[i];
    if (!seats_.all().contains(arrival)) continue;  // twice among them
    Seat& seat = seats_.at(arrival);
    const std::string text = i < ended_count ? losses_.text_of(seat) : vigil_.text_of(seat, now);
    const bool is_in_epoch = seat.in_roster && phase_ != Phase::kGathering;
    if (is_in_epoch && succession_.recovers() && succession_.replace(arrival, text, now, out)) {
      continue;
    }
    if (is_in_epoch && losses_.bear(arrival, text, now, out)) {
      note_epoch(nullptr, epoch_, out);
      try_next_generation(now, out);
      if (phase_ != Phase::kConfirming && phase_ != Phase::kRunning) return;
      continue;
    }
    if (is_in_epoch) {
      end_job(
          {Code::kDisconnected,
           text + " and the job cannot go on without it; look at its log, or whether its machine "
                  "is down",
           Vigil::cause_of(seat, now)},
          now, out);
      seat.heard_end = true;  // nobody waits for it; when it is back it is told
      return try_end(now, out);
    }
    Speaker::notice(LogLevel::kWarning, text, out);
    if (seat.peer) {
      speaker_.drop(seat, {Code::kTimeout, "silent for " + duration_text(timeout_.silence_ns())},
                    out);
    }
    seats_.erase(arrival, now);
    if (phase_ == Phase::kGathering) gathering_.note_absence(epoch_, seats_, now);
  }
}

void RosterKeeper::watch_start(TimeNs now, Outputs& out) {
  if (phase_ != Phase::kGathering && phase_ != Phase::kConfirming) return;
  const Status missed = losses_.missed_in_gathering(now);
  if (phase_ == Phase::kGathering && !missed.is_ok()) return end_job(missed, now, out);
  if (gathering_.is_idle()) {
    if (now < gathering_.idle_until_ns()) return;
    return end_job(
        Status::ok(), now, out,
        "all workers left, and none came back within " + duration_text(2 * timeout_.failure_ns));
  }
  if (now >= gathering_.give_up_ns()) {
    return end_job({Code::kTimeout,
                    "gave up after " + duration_text(timeout_.start_ns) + ": " + waiting_text(now),
                    waiting_cause(scene_of(job_, seats_, epoch_, phase_))},
                   now, out);
  }
  if (!gathering_.wants_notice(now)) return;
  const std::string text = waiting_text(now);
  Speaker::notice(LogLevel::kWarning, text, out);
  const SharedBytes payload =
      encode_status({Code::kAgain, text, waiting_cause(scene_of(job_, seats_, epoch_, phase_))});
  for (const auto& [arrival, seat] : seats_.all()) {
    if (!seat.peer || seat.left) continue;
    speaker_.send(*seat.peer, wire::Kind::kWaiting, WorkerRank(), payload, out);
  }
}

TimeNs RosterKeeper::next_deadline() const {
  if (!clock_.started) return 0;
  if (ended()) return kNever;
  TimeNs next = vigil_.strangers_deadline();
  if (phase_ == Phase::kEnding) return std::min(next, ending_.end_ns());
  next = std::min({next, clock_.next_heartbeat_ns, vigil_.members_deadline(losses_.patience())});
  if (phase_ == Phase::kRecalling) return std::min(next, recall_.deadline());
  if (phase_ != Phase::kGathering) next = std::min(next, vigil_.queue_deadline());
  if (gathering_.is_idle()) return std::min(next, gathering_.idle_until_ns());
  if (succession_.recovers()) next = std::min(next, succession_.deadline());
  if (phase_ == Phase::kRunning) return std::min(next, stalls_.deadline());
  return std::min({next, gathering_.next_notice_ns(), gathering_.give_up_ns()});
}

// ---- for people ----

std::string RosterKeeper::waiting_text(TimeNs now) const {
  return byteps::waiting_text(scene_of(job_, seats_, epoch_, phase_), gathering_.last_refusal(),
                              now);
}

}  // namespace byteps
