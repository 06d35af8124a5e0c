#include "worker/relay_watch.h"

#include <string>
#include <utility>

#include "base/check.h"
#include "base/phrases.h"
#include "base/planted.h"

namespace byteps {

void RelayWatch::begin(const wire::Roster& roster, const Incarnation& incarnation,
                       const TimeoutConfig& timeout, TimeNs now) {
  CHECK(exists());
  has_begun_ = true;
  timeout_ = timeout;
  self_ = WorkerRank(roster.your_rank);
  next_question_ns_ = now;
  post({.kind = RelayCommand::Kind::kBegin,
        .roster = roster,
        .incarnation = incarnation,
        .failure_ns = timeout.failure_ns});
}

void RelayWatch::amend(const wire::Roster& roster) {
  post({.kind = RelayCommand::Kind::kAmend, .roster = roster});
}

void RelayWatch::note_left(WorkerRank worker) {
  if (has_begun_) post({.kind = RelayCommand::Kind::kLeft, .left = worker});
}

void RelayWatch::ask_to_settle() {
  if (!has_begun_ || std::exchange(is_asked_to_settle_, true)) return;
  post({.kind = RelayCommand::Kind::kLeave});
}

void RelayWatch::end(const Status& why) {
  if (!exists()) return;
  next_question_ns_ = kNever;
  post({.kind = RelayCommand::Kind::kEnd, .why = why});
}

Status RelayWatch::look(TimeNs late_ns, TimeNs now) {
  if (!exists()) return Status::ok();
  Status said = take_notices();
  return said.is_ok() ? watch(late_ns, now) : said;
}

Status RelayWatch::take_notices() {
  Status failure;
  port_.notices->drain(notices_);
  for (RelayNotice& notice : notices_) {
    sign_.came();  // whatever it says
    if (notice.kind == RelayNotice::Kind::kReady) is_ready_ = true;
    if (notice.kind == RelayNotice::Kind::kSettled) is_settled_ = true;
    if (notice.kind == RelayNotice::Kind::kFailed) failure = std::move(notice.why);
  }
  return failure;
}

Status RelayWatch::watch(TimeNs late_ns, TimeNs now) {
  const TimeNs owed_for_ns = sign_.owed_for_ns(late_ns, now);
  if (now >= next_question_ns_) {
    next_question_ns_ = now + timeout_.heartbeat_ns();
    if (!sign_.is_owed()) post({.kind = RelayCommand::Kind::kPing});
    sign_.ask(now);
  }
  const bool is_over = next_question_ns_ == kNever || stands_still_;
  if (is_over || owed_for_ns < timeout_.failure_ns || PLANTED(relay_unwatched)) return Status::ok();
  stands_still_ = true;
  return {Code::kTimeout,
          "the relay of worker " + std::to_string(self_.value) + " stands still for " +
              duration_text(owed_for_ns) + ": its thread, byteps-relay, neither sums nor answers",
          {.kind = CauseKind::kStandsStill, .for_ns = owed_for_ns}};
}

void RelayWatch::post(RelayCommand&& command) {
  const Status posted = port_.commands->post(std::move(command));
  CHECK(posted.is_ok() || posted.is(Code::kCancelled)) << posted.text();
}

}  // namespace byteps
