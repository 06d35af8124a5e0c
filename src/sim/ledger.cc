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

const std::vector<std::byte>& Ledger::expected(std::uint32_t generation, std::uint32_t tensor,
                                               std::uint32_t round) {
  const auto [found, is_new] = results_.try_emplace({generation, tensor, round});
  if (is_new) {
    found->second =
        expected_result(plan_.generations[generation].tensors[tensor].facts, round, worker_count());
  }
  return found->second;
}

}  // namespace byteps::sim
