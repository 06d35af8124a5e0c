// Stalls: when it is proven that no worker can go on, and has been for the failure timeout (docs/protocol.md, Stalls).
#pragma once

#include <string>

#include "base/config.h"
#include "base/time.h"
#include "scheduler/barriers.h"
#include "scheduler/seats.h"

namespace byteps {

class Stalls {
 public:
  // All outlive it.
  Stalls(const TimeoutConfig& timeout, const Seats& seats, const Barriers& barriers)
      : timeout_(timeout), seats_(seats), barriers_(barriers) {}

  void begin_epoch() { until_ns_ = kNever; }
  // A worker has said what it waits for, or that it does no more.
  void on_report(TimeNs now);
  // One has left, which may change everything.
  void on_left(TimeNs now) {
    if (until_ns_ != kNever) until_ns_ = now + timeout_.failure_ns;
  }
  // Why the job has to end now; empty: it has not.
  std::string due(TimeNs now);
  TimeNs deadline() const { return until_ns_; }

 private:
  std::string text() const;

  const TimeoutConfig& timeout_;
  const Seats& seats_;
  const Barriers& barriers_;
  TimeNs until_ns_ = kNever;  // none can go on; the job ends then
};

}  // namespace byteps
