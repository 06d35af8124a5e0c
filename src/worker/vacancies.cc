#include "worker/vacancies.h"

#include <string>
#include <vector>

#include "base/phrases.h"
#include "base/timeline.h"
#include "member/roster_check.h"

namespace byteps {

void Vacancies::note(const wire::Roster& roster, TimeNs now) {
  const std::vector<WorkerRank> vacant = vacant_ranks(roster);
  if (vacant.empty()) return;
  own_rank_ = roster.your_rank;
  membership_.lost(vacant);
  const bool is_leader = membership_.leader() == own_rank_;  // one says it for all
  const std::size_t left = count_of(roster, Role::kWorker) - vacant.size();
  for (const WorkerRank rank : vacant) {
    if (!known_.insert(rank).second) continue;
    const wire::RosterMember& member = roster.members[rank.value];
    const std::string who =
        "worker " + std::to_string(rank.value) + " (" + printable(member.host, 128) + ")";
    const std::string text = who + " was lost, and its rank is vacant";
    log_.record({.kind = "replaced",
                 .role = name(Role::kWorker),
                 .rank = rank.value,
                 .cause = name(CauseKind::kGone),
                 .epoch = roster.epoch.value,
                 .number = member.vacant_since,
                 .host = member.host,
                 .text = text,
                 .at_ns = now,
                 .stays = true});
    if (log_.timeline() != nullptr) {
      log_.timeline()->mark({.name = "worker " + std::to_string(rank.value) + " lost",
                             .text = text,
                             .number = member.vacant_since,
                             .at_ns = now});
    }
    log_.write(
        is_leader ? LogLevel::kWarning : LogLevel::kInfo,
        who + " was lost, and the job goes on without it: averages are of the " +
            (left == 1 ? "one worker" : std::to_string(left) + " workers") +
            " left; a sum that a script divides by size() itself is too small by what is missing");
  }
  if (vacant.front() == WorkerRank(0) && next_warning_ns_ == kNever) next_warning_ns_ = now;
}

void Vacancies::tick(TimeNs now) {
  if (now < next_warning_ns_) return;
  next_warning_ns_ = now + kWarningEveryNs;
  if (membership_.leader() != own_rank_) return;
  log_.write(
      LogLevel::kWarning,
      "rank 0 is vacant, for its worker was lost: what a script leaves to rank 0, as to save "
      "checkpoints, nobody does; let it ask leader(), which is " +
          std::to_string(own_rank_) + " now");
}

}  // namespace byteps
