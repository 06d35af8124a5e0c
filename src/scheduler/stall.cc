#include "scheduler/stall.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "base/phrases.h"

namespace byteps {
namespace {

constexpr std::size_t kListedMax = 8;
constexpr std::size_t kNameBytesMax = 256;

using Ranks = std::set<std::uint32_t>;

// What one or more workers wait for.
struct Wait {
  const wire::Awaited* awaited = nullptr;
  Ranks waiting;
  Ranks missing;
};

std::string text_of(const Ranks& ranks) {
  return workers_text({ranks.begin(), ranks.end()});
}

bool is_end_of_inputs(const wire::Awaited& awaited) {
  return awaited.name.empty() && awaited.key == wire::kInputsKey;
}

// Those that have not said that they have no more.
Ranks with_inputs(std::span<const StalledWorker> workers, const wire::Awaited& end) {
  Ranks ranks;
  for (const auto& [rank, report] : workers) {
    const auto found = std::find(report->awaited.begin(), report->awaited.end(), end);
    if (found == report->awaited.end()) ranks.insert(rank);
  }
  return ranks;
}

std::string describe(const Wait& wait) {
  const wire::Awaited& awaited = *wait.awaited;
  if (is_end_of_inputs(awaited)) {
    return "the end of inputs (join) was reached by " + text_of(wait.waiting) + ", but not by " +
           text_of(wait.missing);
  }
  if (awaited.name.empty()) {
    return "a barrier was reached by " + text_of(wait.waiting) + ", but not by " +
           text_of(wait.missing);
  }
  std::string text = "tensor \"" + printable(awaited.name, kNameBytesMax) + "\" was submitted ";
  const std::uint32_t round = round_in_generation(awaited.round);
  if (round > 0) text += std::to_string(round + 1) + " times ";
  return text + "by " + text_of(wait.waiting) + ", but not by " + text_of(wait.missing);
}

}  // namespace

std::string stall_text(std::span<const StalledWorker> workers,
                       const std::set<std::uint32_t>& arrived, std::uint64_t barrier) {
  std::map<std::pair<Key, std::uint64_t>, Ranks> not_begun;
  Ranks not_arrived;
  for (const auto& [rank, report] : workers) {
    if (report->awaited.empty()) return "";
    if (!arrived.contains(rank)) not_arrived.insert(rank);
    for (const wire::NotBegun& each : report->not_begun) {
      not_begun[{each.key, each.round}].insert(rank);
    }
  }
  std::map<std::tuple<std::string, Key, std::uint64_t>, Wait> waits;
  for (const auto& [rank, report] : workers) {
    for (const wire::Awaited& awaited : report->awaited) {
      Wait& wait = waits[{awaited.name, awaited.key, awaited.round}];
      wait.awaited = &awaited;
      wait.waiting.insert(rank);
      if (is_end_of_inputs(awaited)) {
        wait.missing = with_inputs(workers, awaited);
      } else if (awaited.name.empty()) {
        if (awaited.round == barrier) wait.missing = not_arrived;
      } else if (const auto found = not_begun.find({awaited.key, awaited.round});
                 found != not_begun.end()) {
        wait.missing = found->second;
      }
      if (wait.missing.empty()) return "";  // it may still end
    }
  }
  if (waits.empty()) return "";
  std::string text = "all workers wait, and none can go on: ";
  std::size_t listed = 0;
  for (const auto& [what, wait] : waits) {
    if (listed == kListedMax) {
      text += "; and " + std::to_string(waits.size() - kListedMax) + " more";
      break;
    }
    text += (listed++ > 0 ? "; " : "") + describe(wait);
  }
  return text + ". All ranks must submit the same tensors";
}

}  // namespace byteps
