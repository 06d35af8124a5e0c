#include "member/line.h"

#include <algorithm>

#include "base/phrases.h"
#include "member/connection_end.h"

namespace byteps {
namespace {

constexpr TimeNs kRefusalPauseMaxNs = kSecond;

Participant the_scheduler() {
  return {.role = Role::kScheduler};
}

bool is_of_refusal(CauseKind kind) {
  return kind == CauseKind::kKeysDiffer || kind == CauseKind::kVersionsDiffer;
}

}  // namespace

void Line::attempt(TimeNs now) {
  attempt_ns_ = now;
  next_attempt_ns_ = now + timeout_.reconnect_ns();
}

void Line::up(TimeNs now) {
  up_ = true;
  heard_ns_ = now;
  refused_since_ns_.reset();
}

bool Line::down(const Status& why, TimeNs now) {
  peer_.reset();
  up_ = false;
  next_attempt_ns_ = std::max(now, attempt_ns_ + timeout_.reconnect_ns());
  last_down_ = why;
  if (why.is(Code::kMismatch) || why.is(Code::kSystem)) return note_refusal(now);
  refused_since_ns_.reset();
  return false;
}

// The predecessor of the scheduler, or of whoever is at its address, may still be there for a moment.
bool Line::note_refusal(TimeNs now) {
  if (!refused_since_ns_) {
    refused_since_ns_ = now;
    refusal_pause_ns_ = timeout_.heartbeat_ns();
  }
  next_attempt_ns_ = std::max(now, attempt_ns_ + refusal_pause_ns_);
  refusal_pause_ns_ =
      std::min(2 * refusal_pause_ns_, std::max(kRefusalPauseMaxNs, timeout_.heartbeat_ns()));
  return now >= *refused_since_ns_ + 2 * timeout_.failure_ns;
}

void Line::hear(TimeNs now) {
  heard_ns_ = now;
  known_ = true;
}

std::optional<PeerId> Line::let_go() {
  up_ = false;
  return std::exchange(peer_, std::nullopt);
}

void Line::excuse(TimeNs late_ns, TimeNs now) {
  heard_ns_ = std::min(now, heard_ns_ + late_ns);
  attempt_ns_ = std::min(now, attempt_ns_ + late_ns);
}

Status Line::deafness() const {
  const std::string for_text = " for " + duration_text(timeout_.failure_ns / 2);
  if (!up_) return {Code::kDisconnected, "no answer to connecting" + for_text};
  return {Code::kDisconnected, "silent" + for_text, {.kind = CauseKind::kSilent}};
}

std::string Line::unreachable_text(TimeNs now) const {
  if (refused_since_ns_) {
    const bool other_job = last_down_.is(Code::kMismatch);
    return scheduler_text() + ": every attempt to join was refused for " +
           duration_text(now - *refused_since_ns_) + ": " + last_down_.message() +
           (other_job ? "; or do DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT lead to another job?" : "");
  }
  std::string text = scheduler_text() + " unreachable since " + duration_text(now - heard_ns_);
  if (!last_down_.is_ok()) text += ": " + last_down_.message();
  return text + "; is it started, and are DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT right?";
}

Cause Line::unreachable_cause(TimeNs now) const {
  if (!refused_since_ns_) {
    return cause_of_end(last_down_, CauseKind::kUnreachable, the_scheduler(), now - heard_ns_);
  }
  Cause cause =
      cause_of_end(last_down_, CauseKind::kRefused, the_scheduler(), now - *refused_since_ns_);
  if (cause.kind != CauseKind::kRefused) return cause;
  cause.who = {};  // it is this member that is refused
  if (is_of_refusal(last_down_.cause().kind)) cause.kind = last_down_.cause().kind;
  return cause;
}

std::string Line::absence_text(TimeNs now, TimeNs for_ns) const {
  return scheduler_text() + " is lost since " + duration_text(now - heard_ns_) + " (" +
         last_down_.message() +
         "): the job goes on without it, and waits for one that is started anew at this address; "
         "if none comes within " +
         duration_text(for_ns) + ", it ends";
}

Status Line::silence(TimeNs now) const {
  const TimeNs for_ns = now - heard_ns_;
  std::string text = scheduler_text() +
                     (up_ ? " has said nothing for " : " has been unreachable for ") +
                     duration_text(for_ns);
  if (!up_ && !last_down_.is_ok()) text += " (" + last_down_.message() + ")";
  text += ": the job cannot go on without it; look at its log, or whether its machine is down";
  // Its connection may have been given up because nothing came.
  const bool is_silent = up_ || last_down_.is_because_of(CauseKind::kSilent);
  return {Code::kDisconnected, std::move(text),
          is_silent ? Cause{.kind = CauseKind::kSilent, .who = the_scheduler(), .for_ns = for_ns}
                    : cause_of_end(last_down_, CauseKind::kGone, the_scheduler(), for_ns)};
}

}  // namespace byteps
