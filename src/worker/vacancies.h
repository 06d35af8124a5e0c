// Vacancies: which ranks are vacant, because their workers were lost and the job goes on without them
// (docs/recovery.md), and what a worker says about that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>

#include "base/ids.h"
#include "base/log.h"
#include "base/time.h"
#include "net/wire.h"
#include "worker/membership.h"

namespace byteps {

class Vacancies {
 public:
  // Both outlive it.
  Vacancies(Membership& membership, const Log& log) : membership_(membership), log_(log) {}

  // Those of the newest roster.
  void note(const wire::Roster& roster, TimeNs now);
  // Says again and again that rank 0 is vacant: scripts that leave something to it find nobody to do it.
  void tick(TimeNs now);
  TimeNs next_deadline() const { return next_warning_ns_; }

  static constexpr TimeNs kWarningEveryNs = 60 * kSecond;

 private:
  void record(Epoch epoch, const wire::RosterMember& member, TimeNs now) const;
  void tell(const wire::RosterMember& member, std::size_t left, bool is_new);

  Membership& membership_;
  const Log& log_;
  std::uint32_t own_rank_ = 0;
  std::set<WorkerRank> known_;
  std::set<std::uint32_t> warned_;  // of these, as the leader
  bool is_leader_ = false;
  TimeNs next_warning_ns_ = kNever;
};

}  // namespace byteps
