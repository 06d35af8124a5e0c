#include "worker/vacancies.h"

#include <string>
#include <utility>
#include <vector>

#include "base/phrases.h"
#include "base/timeline.h"
#include "member/roster_check.h"

namespace byteps {
namespace {

std::string name_of(const wire::RosterMember& member) {
  return "worker " + std::to_string(member.rank) + " (" + printable(member.host, 128) + ")";
}

}  // namespace

void Vacancies::note(const wire::Roster& roster, TimeNs now) {
  const std::vector<WorkerRank> vacant = vacant_ranks(roster);
  if (vacant.empty()) return;
  own_rank_ = roster.your_rank;
  membership_.lost(vacant);
  const std::size_t left = count_of(roster, Role::kWorker) - vacant.size();
  for (const WorkerRank rank : vacant) {
    const wire::RosterMember& member = roster.members[rank.value];
    const bool is_new = known_.insert(rank).second;
    if (is_new) record(roster.epoch, member, now);
    tell(member, left, is_new);
  }
  const bool has_become_leader =
      !std::exchange(is_leader_, membership_.leader() == own_rank_) && is_leader_;
  const bool is_first = next_warning_ns_ == kNever;
  if (vacant.front() == WorkerRank(0) && (is_first || has_become_leader)) next_warning_ns_ = now;
}

// For the recordings.
void Vacancies::record(Epoch epoch, const wire::RosterMember& member, TimeNs now) const {
  const std::string text = name_of(member) + " was lost, and its rank is vacant";
  log_.record({.kind = "replaced",
               .role = name(Role::kWorker),
               .rank = member.rank,
               .cause = name(CauseKind::kGone),
               .epoch = epoch.value,
               .number = member.vacant_since,
               .host = member.host,
               .text = text,
               .at_ns = now,
               .stays = true});
  if (log_.timeline() == nullptr) return;
  log_.timeline()->mark({.name = "worker " + std::to_string(member.rank) + " lost",
                         .text = text,
                         .number = member.vacant_since,
                         .at_ns = now});
}

// One says it for all. Who that was may be lost as well, and may not have come to it: then the next one does.
void Vacancies::tell(const wire::RosterMember& member, std::size_t left, bool is_new) {
  const bool warns = membership_.leader() == own_rank_ && warned_.insert(member.rank).second;
  if (!warns && !is_new) return;
  log_.write(
      warns ? LogLevel::kWarning : LogLevel::kInfo,
      name_of(member) + " was lost, and the job goes on without it: averages are of the " +
          (left == 1 ? "one worker" : std::to_string(left) + " workers") +
          " left; a sum that a script divides by size() itself is too small by what is missing");
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
