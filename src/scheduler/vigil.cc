#include "scheduler/vigil.h"

#include <algorithm>

#include "base/phrases.h"
#include "member/connection_end.h"
#include "scheduler/sayings.h"

namespace byteps {

void Vigil::excuse(TimeNs late_ns, TimeNs now) {
  for (auto& [arrival, seat] : seats_.all()) {
    seat.heard_ns = std::min(now, seat.heard_ns + late_ns);
  }
  for (auto& [peer, connection] : seats_.connections()) {
    connection.since_ns = std::min(now, connection.since_ns + late_ns);
  }
}

void Vigil::drop_strangers(TimeNs now, KeeperOutputs& out) const {
  for (auto& [peer, connection] : seats_.connections()) {
    if (connection.seat || connection.closed) continue;
    if (now < connection.since_ns + timeout_.failure_ns) continue;
    speaker_.close(
        peer, {Code::kTimeout, "did not join within " + duration_text(timeout_.failure_ns)}, out);
  }
}

// Who is connected may have stood still for the failure timeout since its last heartbeat.
TimeNs Vigil::patience_ns(const Seat& seat, const Patience& patience) const {
  if (seat.peer) return timeout_.silence_ns();
  if (!seat.in_roster) return timeout_.failure_ns;
  if (seat.worker()) return patience.worker_ns;
  return patience.recovers ? timeout_.recovery_ns : timeout_.failure_ns;
}

std::vector<Arrival> Vigil::silent(TimeNs now, const Patience& patience) const {
  std::vector<Arrival> gone;
  for (const auto& [arrival, seat] : seats_.all()) {
    const bool is_missed =
        !seat.left && (!seat.leaving.final || seat.peer);  // who leaves may have gone
    if (is_missed && now >= seat.heard_ns + patience_ns(seat, patience)) gone.push_back(arrival);
  }
  return gone;
}

std::string Vigil::text_of(const Seat& seat, TimeNs now) const {
  const std::string text = seat.text() +
                           (seat.peer ? " has said nothing for " : " has been gone for ") +
                           duration_text(now - seat.heard_ns);
  return seat.peer ? text : text + " (" + seat.lost_why.message() + ")";
}

Cause Vigil::cause_of(const Seat& seat, TimeNs now) {
  const TimeNs for_ns = now - seat.heard_ns;
  if (seat.peer) {
    return {.kind = CauseKind::kSilent, .who = seat.participant(), .for_ns = for_ns};
  }
  return cause_of_end(seat.lost_why, CauseKind::kGone, seat.participant(), for_ns);
}

TimeNs Vigil::strangers_deadline() const {
  TimeNs next = kNever;
  for (const auto& [peer, connection] : seats_.connections()) {
    if (connection.seat || connection.closed) continue;
    next = std::min(next, connection.since_ns + timeout_.failure_ns);
  }
  return next;
}

TimeNs Vigil::members_deadline(const Patience& patience) const {
  TimeNs next = kNever;
  for (const auto& [arrival, seat] : seats_.all()) {
    if (seat.left || (seat.leaving.final && !seat.peer)) continue;
    next = std::min(next, seat.heard_ns + patience_ns(seat, patience));
  }
  return next;
}

void Vigil::tell_queue(TimeNs now, KeeperOutputs& out) {
  for (auto& [arrival, seat] : seats_.all()) {
    if (!seat.worker() || seat.in_roster || now < seat.next_notice_ns) continue;
    seat.next_notice_ns = now + timeout_.notice_every_ns;
    if (!seat.peer) continue;
    const Status waits(Code::kAgain, running_text(seats_, now));
    speaker_.send(*seat.peer, wire::Kind::kWaiting, WorkerRank(), encode_status(waits), out);
  }
}

TimeNs Vigil::queue_deadline() const {
  TimeNs next = kNever;
  for (const auto& [arrival, seat] : seats_.all()) {
    if (seat.worker() && !seat.in_roster) next = std::min(next, seat.next_notice_ns);
  }
  return next;
}

}  // namespace byteps
