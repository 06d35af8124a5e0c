// Ending: the last word of a job. Everyone is told that it has ended, well or not, and the scheduler stays until all
// have heard it, for a while.
#pragma once

#include <utility>

#include "base/config.h"
#include "base/status.h"
#include "base/time.h"
#include "scheduler/outputs.h"
#include "scheduler/seats.h"

namespace byteps {

class Ending {
 public:
  // All outlive it.
  Ending(const TimeoutConfig& timeout, Seats& seats, const Speaker& speaker)
      : timeout_(timeout), seats_(seats), speaker_(speaker) {}

  const Status& outcome() const { return outcome_; }  // Ok until it has ended badly

  // The job has ended, well or not: all members are told, and the scheduler stays at most until `until_ns`.
  void begin(Status outcome, TimeNs until_ns, KeeperOutputs& out);
  // Another scheduler has the job: nobody is told anything, and this one does not stay.
  void resign(Status why, TimeNs now) {
    outcome_ = std::move(why);
    until_ns_ = now;
  }
  // It stays no longer than this.
  void hurry(TimeNs until_ns) { until_ns_ = std::min(until_ns_, until_ns); }
  // Tells this member; again when it is back on a new connection, for the word may have been lost.
  void tell(Seat& seat, KeeperOutputs& out) const;
  // When nobody need be waited for any more.
  TimeNs end_ns() const;

 private:
  const TimeoutConfig& timeout_;
  Seats& seats_;
  const Speaker& speaker_;
  Status outcome_;
  TimeNs until_ns_ = kNever;
};

}  // namespace byteps
