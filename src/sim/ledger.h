// Ledger: what a world found wrong, and what all its workers know together: the right results, and who has begun which
// barrier. The first finding counts; the others are usually its consequences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "sim/plan.h"

namespace byteps::sim {

// What must hold (docs/simulator.md).
enum class Invariant : std::uint8_t {
  kNone,
  kExactResult,    // each result is the exact sum, average or root's bytes of its round
  kOneEnd,         // every handle ends exactly once, and as it must
  kMemoryIsFree,   // after its handle has ended nobody has a claim on memory, or writes there
  kLentComesBack,  // every lent payload comes back
  kProgress,       // once the faults stop, everything finishes
  kServerMemory,   // servers hold what they own and no more
  kGoodEnd,        // every process ends well after the workers have left
  kContract,       // no actor spins or breaks the transport's contract
};
const char* name(Invariant invariant);

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

  // A process died, so the job must fail: handles may end with errors, but must end.
  void lose(std::string who) { lost_ = std::move(who); }
  const std::string& lost() const { return lost_; }  // empty: none
  bool has_lost() const { return !lost_.empty(); }

  const WorldPlan& plan() const { return plan_; }
  std::uint32_t worker_count() const { return plan_.config.job.worker_count; }

  // The bytes of a round's result, computed once.
  const std::vector<std::byte>& expected(std::uint32_t generation, std::uint32_t tensor,
                                         std::uint32_t round);

  // A worker begins barrier `number` of its generation; returns how many have.
  std::uint32_t begin_barrier(std::uint32_t generation, std::uint32_t number) {
    return ++barriers_[{generation, number}];
  }
  std::uint32_t begun_barriers(std::uint32_t generation, std::uint32_t number) {
    return barriers_[{generation, number}];
  }

 private:
  const WorldPlan& plan_;
  Invariant invariant_ = Invariant::kNone;
  std::string text_;
  std::string lost_;
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, std::vector<std::byte>>
      results_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> barriers_;
};

}  // namespace byteps::sim
