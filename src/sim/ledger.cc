#include "sim/ledger.h"

namespace byteps::sim {

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
  }
  return "unknown";
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
