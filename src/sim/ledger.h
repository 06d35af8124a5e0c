// Ledger: what a world found wrong, and what all its workers know together: the right results, and who has begun which
// barrier. The first finding counts; the others are usually its consequences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "sim/plan.h"

namespace byteps::sim {

// What must hold (docs/simulator.md).
enum class Invariant : std::uint8_t {
  kNone,
  kSameBits,       // all ranks are given the same bits
  kExactResult,    // each result is the exact sum, average or root's bytes of its round
  kOneEnd,         // every handle ends exactly once, and as it must
  kMemoryIsFree,   // after its handle has ended nobody has a claim on memory, or writes there
  kLentComesBack,  // every lent payload comes back
  kProgress,       // once the faults stop, everything finishes
  kServerMemory,   // servers hold what they own and no more
  kGoodEnd,        // every process ends well after the workers have left
  kContract,       // no actor spins or breaks the transport's contract
  kFenced,         // whoever knows an epoch finds no shard that does not
  // After a deadly fault:
  kTimelyEnd,   // pending handles end within twice the failure timeout, processes soon after
  kNamedCause,  // every error names who is lost
};
const char* name(Invariant invariant);

// A process that is lost, or may be: dead, stopped or cut off for longer than the failure timeout.
struct Loss {
  std::string what;              // for people
  std::vector<std::string> who;  // those it may be blamed on: "worker 1", "server-0", "scheduler"
  std::string
      sleeper;  // stands still, and may find all others gone when it wakes: it may blame anybody
  TimeNs at = 0;
  TimeNs watched_ns = 0;  // from then on nobody else stands still who would notice; not before `at`
  bool is_sure = false;   // somebody whom every pending handle needs is gone for too long
  TimeNs processes_end_ns = kNever;  // then no process is left
};

class Ledger {
 public:
  explicit Ledger(const WorldPlan& plan) : plan_(plan) {}

  void fail(Invariant invariant, std::string text) {
    if (!ok()) return;
    invariant_ = invariant;
    text_ = std::move(text);
  }
  bool ok() const { return invariant_ == Invariant::kNone; }
  Invariant invariant() const { return invariant_; }
  const std::string& text() const { return text_; }

  // From now on handles may end with errors, but all end, and the errors name somebody of loss.who.
  void lose(Loss loss) { loss_ = std::move(loss); }
  const std::optional<Loss>& loss() const { return loss_; }
  bool has_lost() const { return loss_.has_value(); }
  // An error that `who` was given. `joins`: it has not heard of the present epoch, so it may find that a scheduler of
  // a failed job has gone.
  void check_cause(const std::string& who, const Status& error, bool joins = false);
  // By when a handle that began then must have ended; kNever when nothing surely lost is in the way.
  TimeNs handle_end_ns(TimeNs begun_ns) const;

  const WorldPlan& plan() const { return plan_; }
  std::uint32_t worker_count() const { return plan_.config.job.worker_count; }

  // From now on sums may be without this worker: it died, or the scheduler has given it up.
  void lose_worker(std::uint32_t rank) { lost_.insert(rank); }
  bool is_lost(std::uint32_t rank) const { return lost_.contains(rank); }
  // Somebody is lost because of whom the job may end for this worker, or this one, without which it goes on.
  bool may_fail(std::uint32_t rank) const { return has_lost() || is_lost(rank); }
  std::uint32_t lost_count() const { return static_cast<std::uint32_t>(lost_.size()); }

  // A rank was given this for a round of a tensor; none: its operation has ended, and it gets nothing. `whose`: for
  // people.
  struct Sum {
    std::uint32_t generation = 0;
    std::uint32_t tensor = 0;
    std::uint32_t round = 0;
    auto operator<=>(const Sum&) const = default;
  };
  void check_result(std::uint32_t rank, const std::string& whose, const Sum& sum,
                    const std::optional<std::span<const std::byte>>& result);

  // A worker begins barrier `number` of its generation; returns how many have.
  std::uint32_t begin_barrier(std::uint32_t generation, std::uint32_t number) {
    return ++barriers_[{generation, number}];
  }
  std::uint32_t begun_barriers(std::uint32_t generation, std::uint32_t number) {
    return barriers_[{generation, number}];
  }

  // A worker of this generation has no more inputs.
  void finish_inputs(std::uint32_t generation, std::uint32_t rank) {
    finished_[generation].ranks.insert(rank);
  }
  // Whether all have that are not lost, and all were told of the same last one.
  bool all_finished(std::uint32_t generation, std::uint32_t rank, std::uint32_t last) {
    if (is_lost(rank)) return true;  // what it heard counts nowhere
    Finished& finished = finished_[generation];
    finished.last[rank] = last;
    for (std::uint32_t each = 0; each < worker_count(); ++each) {
      if (is_lost(each)) continue;
      const auto told = finished.last.find(each);
      if (!finished.ranks.contains(each) || (told != finished.last.end() && told->second != last))
        return false;
    }
    return true;
  }

 private:
  struct Finished {
    std::set<std::uint32_t> ranks;
    std::map<std::uint32_t, std::uint32_t> last;  // by rank, as that was told
  };
  bool may_be_without_lost(const TensorFacts& facts, std::uint32_t round,
                           std::span<const std::byte> result) const;

  const WorldPlan& plan_;
  Invariant invariant_ = Invariant::kNone;
  std::string text_;
  std::optional<Loss> loss_;
  std::set<std::uint32_t> lost_;  // ranks
  struct Result {
    std::vector<std::byte> bytes;      // that must be, or that the first was given
    std::set<std::uint32_t> given_to;  // ranks
  };
  std::map<Sum, Result> results_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> barriers_;
  std::map<std::uint32_t, Finished> finished_;  // by generation
};

}  // namespace byteps::sim
