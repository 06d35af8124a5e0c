// Line: a member's connection with the scheduler, and the attempts at one: when to try, when the line has gone deaf,
// and what to say of it to people. It is the half of a Member that knows no message.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/cause.h"
#include "base/config.h"
#include "base/ids.h"
#include "base/status.h"
#include "base/time.h"
#include "net/transport.h"

namespace byteps {

class Line {
 public:
  // `timeout` is the member's, and may change.
  Line(Endpoint scheduler, const TimeoutConfig& timeout)
      : scheduler_(std::move(scheduler)), timeout_(timeout) {}

  const Endpoint& scheduler() const { return scheduler_; }
  std::string scheduler_text() const { return "scheduler at " + scheduler_.text(); }

  // ---- what happens
  void begin(TimeNs now) { heard_ns_ = next_attempt_ns_ = now; }
  void attempt(TimeNs now);                   // one begins ...
  void attach(PeerId peer) { peer_ = peer; }  // ... under this name
  void up(TimeNs now);
  // It has ended, or did not come about. True: so did all attempts since 2 failure timeouts, because somebody there
  // does not want to talk to us, or one side has no descriptors. That does not pass by itself.
  bool down(const Status& why, TimeNs now);
  void hear(TimeNs now);
  // The member ends: nothing is kept up any more. Returns the connection, or the attempt, to close.
  std::optional<PeerId> let_go();
  // This process stood still for so long: it could not hear, and what came may still wait to be handed in.
  void excuse(TimeNs late_ns, TimeNs now);

  // ---- how it is
  std::optional<PeerId> peer() const { return peer_; }  // the connection, or the attempt at one
  bool is_up() const { return up_; }
  bool is_known() const {
    return known_;
  }  // the scheduler has answered once: it counts us as a member
  // No connection, and time to try again.
  bool wants_attempt(TimeNs now) const { return !peer_ && now >= next_attempt_ns_; }
  // A connection that has gone deaf is tried anew while there is time for that; the next of both.
  bool is_deaf(TimeNs now) const { return peer_ && now >= deaf_ns(); }
  TimeNs next_deadline() const { return peer_ ? deaf_ns() : next_attempt_ns_; }
  TimeNs silent_since_ns() const { return heard_ns_; }

  // ---- what is said of it
  const Status& last_down() const { return last_down_; }
  Status deafness() const;
  std::string unreachable_text(TimeNs now) const;
  Cause unreachable_cause(TimeNs now) const;
  // The job goes on without it, for so long.
  std::string absence_text(TimeNs now, TimeNs for_ns) const;
  // The job cannot go on without the scheduler.
  Status silence(TimeNs now) const;

 private:
  TimeNs deaf_ns() const { return std::max(heard_ns_, attempt_ns_) + timeout_.failure_ns / 2; }
  bool note_refusal(TimeNs now);

  const Endpoint scheduler_;
  const TimeoutConfig& timeout_;
  std::optional<PeerId> peer_;
  bool up_ = false;
  bool known_ = false;
  TimeNs attempt_ns_ = 0;       // when the last attempt began
  TimeNs next_attempt_ns_ = 0;  // not before this, while there is no connection
  TimeNs heard_ns_ = 0;         // last sign of life of the scheduler; before any, the start
  Status last_down_;            // why there is no connection
  std::optional<TimeNs> refused_since_ns_;  // all attempts since then were refused
  TimeNs refusal_pause_ns_ = 0;             // until the attempt after the next refusal
};

}  // namespace byteps
