// Vigil: who says nothing for how long.
#pragma once

#include <string>
#include <vector>

#include "base/config.h"
#include "base/time.h"
#include "scheduler/outputs.h"
#include "scheduler/seats.h"

namespace byteps {

class Vigil {
 public:
  // All outlive it.
  Vigil(const TimeoutConfig& timeout, Seats& seats, const Speaker& speaker)
      : timeout_(timeout), seats_(seats), speaker_(speaker) {}

  // How long those of the roster that have lost their connections are waited for.
  struct Patience {
    bool recovers = false;  // servers that are gone may get successors: longer
    TimeNs worker_ns = kNever;
  };

  // While the scheduler stood still for so long it could hear nobody, and what came may still wait to be handed in.
  void excuse(TimeNs late_ns, TimeNs now);
  // Closes connections that do not join.
  void drop_strangers(TimeNs now, KeeperOutputs& out) const;
  // Who has said nothing for too long, or has been gone; and what there is to say about it.
  std::vector<Arrival> silent(TimeNs now, const Patience& patience) const;
  std::string text_of(const Seat& seat, TimeNs now) const;
  static Cause cause_of(const Seat& seat, TimeNs now);
  // Workers that came while an epoch runs are told whose leaving they wait for, again and again.
  void tell_queue(TimeNs now, KeeperOutputs& out);
  TimeNs queue_deadline() const;
  // When to look again: at strangers alone, or at members too.
  TimeNs strangers_deadline() const;
  TimeNs members_deadline(const Patience& patience) const;

 private:
  TimeNs patience_ns(const Seat& seat, const Patience& patience) const;

  const TimeoutConfig& timeout_;
  Seats& seats_;
  const Speaker& speaker_;
};

}  // namespace byteps
