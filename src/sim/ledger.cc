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

// Each element is the sum of all members, but for some that are lost. (Each frame of a tensor has its own.)
bool Ledger::may_be_without_lost(const TensorFacts& facts, std::uint32_t round,
                                 std::span<const std::byte> result) const {
  std::vector<std::uint32_t> lost;
  for (const std::uint32_t rank : lost_) {
    if (facts.has_member(rank)) lost.push_back(rank);
  }
  std::vector<Absent> candidates;
  std::vector<std::vector<std::byte>> right;
  for (std::uint32_t set = 0; set < 1U << lost.size(); ++set) {
    Absent& absent = candidates.emplace_back();
    for (std::size_t i = 0; i < lost.size(); ++i) {
      if ((set >> i & 1) != 0) absent.insert(lost[i]);
    }
    right.push_back(facts.is_inexact ? std::vector<std::byte>()
                                     : expected_result(facts, round, worker_count(), absent));
  }
  const std::size_t step = element_bytes(facts.dtype);
  for (std::uint64_t i = 0; i < facts.element_count; ++i) {
    const auto is_it = [&](std::size_t which) {
      if (facts.is_inexact) {
        return may_be_result(facts, round, worker_count(), result, candidates[which], i, i + 1);
      }
      const auto given = result.subspan(i * step, step);
      return std::equal(given.begin(), given.end(),
                        right[which].begin() + static_cast<std::ptrdiff_t>(i * step));
    };
    bool any = false;
    for (std::size_t which = 0; which < candidates.size() && !any; ++which) any = is_it(which);
    if (!any) return false;
  }
  return true;
}

// Those who are left must have the same. Who is lost may have had a sum that nobody else has, and that is made anew
// without it.
void Ledger::check_result(std::uint32_t rank, const std::string& whose, const Sum& sum,
                          const std::optional<std::span<const std::byte>>& result) {
  if (!result) return;
  const TensorFacts& facts = plan_.generations[sum.generation].tensors[sum.tensor].facts;
  const bool is_free =
      facts.is_inexact || !lost_.empty();  // which of several is for the first to say
  const bool fits = !lost_.empty()     ? may_be_without_lost(facts, sum.round, *result)
                    : facts.is_inexact ? may_be_result(facts, sum.round, worker_count(), *result)
                                       : true;
  if (!fits) return fail(Invariant::kExactResult, whose + " is wrong");
  Result& known = results_[sum];
  const bool is_free_again = std::all_of(known.given_to.begin(), known.given_to.end(),
                                         [this](std::uint32_t each) { return is_lost(each); });
  if (is_free && is_free_again) {
    known.bytes.assign(result->begin(), result->end());
    known.given_to.clear();
  } else if (known.given_to.empty()) {
    known.bytes = expected_result(facts, sum.round, worker_count());
  }
  const std::vector<std::byte>& right = known.bytes;
  if (std::equal(result->begin(), result->end(), right.begin(), right.end())) {
    known.given_to.insert(rank);
    return;
  }
  if (is_lost(rank)) return;
  const auto wrong = std::mismatch(result->begin(), result->end(), right.begin()).first;
  fail(is_free ? Invariant::kSameBits : Invariant::kExactResult,
       whose + (is_free ? " is another sum than others have, from byte " : " is wrong from byte ") +
           std::to_string(wrong - result->begin()) + " of " + std::to_string(result->size()));
}

}  // namespace byteps::sim
