// Losses: workers that are lost while a job runs that goes on without them (BYTEPS_ON_WORKER_LOSS=continue), and
// whether it can (docs/recovery.md, "A worker is lost"); and in any job that recovers, whether it is the scheduler that
// is cut off.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/time.h"
#include "scheduler/barriers.h"
#include "scheduler/joining.h"
#include "scheduler/outputs.h"
#include "scheduler/seats.h"
#include "scheduler/stalls.h"
#include "scheduler/succession.h"
#include "scheduler/vigil.h"

namespace byteps {

class Losses {
 public:
  // What a loss concerns. All outlive this.
  struct Concerned {
    Seats& seats;
    const Speaker& speaker;
    Joining& joining;
    Barriers& barriers;
    Stalls& stalls;
    Succession& succession;
  };
  Losses(bool continues, const TimeoutConfig& timeout, const Concerned& concerned)
      : continues_(continues), timeout_(timeout), all_(concerned) {}

  // The job goes on without a worker that is lost.
  bool are_borne() const { return continues_; }
  // How long those that have lost their connections are waited for.
  Vigil::Patience patience() const;

  // Whoever has started the process of this rank has seen its end, and how that was. Nobody waits for it.
  void note_ended(WorkerRank rank, const std::string& how, TimeNs now);
  // Another process has come under this rank.
  void note_new(std::uint32_t rank) { ended_.erase(rank); }
  // Of the running epoch, those whose processes have ended, and what there is to say of one.
  std::vector<Arrival> ended_seats() const;
  std::string text_of(const Seat& ended) const;
  // One that has ended for a failure timeout, although the job is not complete; ok: none. (A scheduler that was
  // begun anew is told of them before it hears of a job that goes on without them.)
  Status missed_in_gathering(TimeNs now) const;

  // When it is looked at: whether more than half of those that should be here are away, or silent. Then rather this
  // scheduler is cut off than that all of them are lost; and when some are back, the others may be as soon.
  void look(TimeNs now);
  // This member of the running epoch is lost: if it is a worker, the job goes on without it, and its rank is vacant; or
  // it is waited for, where the scheduler may be cut off. False: neither.
  bool bear(Arrival lost, const std::string& why, TimeNs now, KeeperOutputs& out);

 private:
  bool is_cut_off() const { return looked_ns_ < cut_off_until_ns_; }
  bool may_be_out_of_reach(const Seat& seat, TimeNs now) const;
  bool is_last(const Seat& lost) const;
  void vacate(Arrival lost, const std::string& why, TimeNs now, KeeperOutputs& out);

  struct Ended {
    std::string how;
    TimeNs at_ns = 0;
  };
  const bool continues_;
  const TimeoutConfig& timeout_;
  const Concerned all_;
  std::map<std::uint32_t, Ended> ended_;  // by rank
  TimeNs looked_ns_ = 0;
  TimeNs cut_off_until_ns_ = 0;
};

}  // namespace byteps
