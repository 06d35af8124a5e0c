#include "sim/ledger.h"

#include <algorithm>
#include <cctype>

namespace byteps::sim {
namespace {

// "worker 1" is in "worker 1 (worker-1:2) has ...", and not in "worker 12 has ...".
bool names(const std::string& text, const std::string& who) {
  for (std::size_t at = text.find(who); at != std::string::npos; at = text.find(who, at + 1)) {
    const std::size_t end = at + who.size();
    if (end == text.size() || std::isdigit(static_cast<unsigned char>(text[end])) == 0) return true;
  }
  return false;
}

}  // namespace

const char* name(Invariant invariant) {
  switch (invariant) {
    case Invariant::kNone:
      return "none";
    case Invariant::kSameBits:
      return "all ranks are given the same bits";
    case Invariant::kExactResult:
      return "each result is exact";
    case Invariant::kOneEnd:
      return "every handle ends once, as it must";
    case Invariant::kMemoryIsFree:
      return "memory is free after its handle has ended";
    case Invariant::kLentComesBack:
      return "every lent payload comes back";
    case Invariant::kProgress:
      return "everything finishes";
    case Invariant::kServerMemory:
      return "servers hold what they own";
    case Invariant::kGoodEnd:
      return "every process ends well";
    case Invariant::kContract:
      return "contracts are kept";
    case Invariant::kFenced:
      return "whoever knows an epoch finds no shard that does not";
    case Invariant::kTimelyEnd:
      return "everything that waits for a lost process ends within twice the failure timeout";
    case Invariant::kNamedCause:
      return "errors name who is lost";
  }
  return "unknown";
}

void Ledger::check_cause(const std::string& who, const Status& error, bool joins) {
  if (!loss_ || error.is_ok()) return;
  const std::string& text = error.message();
  if (joins && names(text, "scheduler")) return;
  if (!loss_->sleeper.empty() && names(who, loss_->sleeper)) return;
  const auto blamed = [&](const std::string& name) { return names(text, name); };
  if (std::any_of(loss_->who.begin(), loss_->who.end(), blamed)) return;
  // Who never came has no name yet; the list of those that are missing has it by rank.
  if (error.is_because_of(CauseKind::kIncomplete)) return;
  fail(Invariant::kNamedCause,
       who + " was not told who is lost (" + loss_->what + "), but: " + error.text());
}

TimeNs Ledger::handle_end_ns(TimeNs begun_ns) const {
  if (!loss_ || !loss_->is_sure) return kNever;
  return std::max(loss_->watched_ns, begun_ns) + 2 * plan_.config.timeout.failure_ns;
}

void Ledger::check_result(const std::string& whose, const Sum& sum,
                          const std::optional<std::span<const std::byte>>& result) {
  if (!result) return;
  const TensorFacts& facts = plan_.generations[sum.generation].tensors[sum.tensor].facts;
  if (facts.is_inexact && !may_be_result(facts, sum.round, worker_count(), *result)) {
    return fail(Invariant::kExactResult, whose + " is wrong");
  }
  const auto [found, is_new] = results_.try_emplace(sum);
  if (is_new && facts.is_inexact) {
    found->second.assign(result->begin(), result->end());
  } else if (is_new) {
    found->second = expected_result(facts, sum.round, worker_count());
  }
  const std::vector<std::byte>& right = found->second;
  if (std::equal(result->begin(), result->end(), right.begin(), right.end())) return;
  const auto wrong = std::mismatch(result->begin(), result->end(), right.begin()).first;
  fail(facts.is_inexact ? Invariant::kSameBits : Invariant::kExactResult,
       whose +
           (facts.is_inexact ? " is another sum than others have, from byte "
                             : " is wrong from byte ") +
           std::to_string(wrong - result->begin()) + " of " + std::to_string(result->size()));
}

}  // namespace byteps::sim
