// What a plan is, for people.
#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "topology/planner.h"

namespace byteps::topology {
namespace {

std::string plural(std::size_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : what.ends_with("h") ? "es" : "s");
}

std::string text_of_devices(const Machine& machine) {
  const auto has_device = [](const Machine::Rank& rank) { return rank.has_device; };
  const auto count = static_cast<std::size_t>(
      std::count_if(machine.ranks.begin(), machine.ranks.end(), has_device));
  if (count == 0) return plural(machine.ranks.size(), "rank") + " without a GPU";
  std::map<LinkIndex, std::size_t> behind;
  std::size_t shared = 0;
  for (const Machine::Rank& rank : machine.ranks) {
    if (!rank.shared) continue;
    ++behind[*rank.shared];
    ++shared;
  }
  std::set<std::size_t> sizes;
  for (const auto& [link, size] : behind) sizes.insert(size);
  std::string text = plural(count, "GPU");
  if (shared == count && sizes.size() == 1) {
    text = plural(behind.size(), "switch") + " x " + plural(*sizes.begin(), "GPU");
  } else if (shared > 0) {
    text += ", " + plural(behind.size(), "switch");
  }
  if (!machine.islands.empty()) text += ", NVLink";
  return text;
}

std::string text_of_cards(const Machine& machine) {
  if (machine.cards.empty()) return "no card known";
  const auto is_beside_devices = [&](const Machine::Card& card) {
    return card.shared && std::any_of(machine.ranks.begin(), machine.ranks.end(),
                                      [&](const auto& rank) { return rank.shared == card.shared; });
  };
  const auto beside = static_cast<std::size_t>(
      std::count_if(machine.cards.begin(), machine.cards.end(), is_beside_devices));
  const std::size_t count = machine.cards.size();
  const std::string cards = count == 1 ? "card" : plural(count, "card");
  if (beside == 0) return cards + " at the root";
  if (beside == count) return cards + (count == 1 ? " behind a switch" : " behind switches");
  return cards + ", " + std::to_string(beside) + " behind switches";
}

std::string text_of_strategy(const Plan& plan) {
  const bool is_one = plan.groups.size() == 1;
  switch (plan.strategy) {
    case Strategy::kAll:
      return "NCCL over all";
    case Strategy::kSwitches:
      return "NCCL behind each switch, the CPU adds";
    case Strategy::kIslands:
      return "NCCL on each island of NVLink, the CPU adds";
    case Strategy::kGiven:
      return "NCCL in groups of " + std::to_string(plan.groups.front().size()) + ", the CPU adds";
    case Strategy::kHost:
      return is_one ? "copied to the host" : "all copied to the host, the CPU adds";
  }
  return "";
}

// "all lead", "ranks 2-7 lead", or all weights in percent of the greatest.
std::string text_of_leaders(const Machine& machine, const Plan& plan) {
  std::vector<std::int64_t> leads(machine.ranks.size(), 0);
  for (std::size_t group = 0; group < plan.groups.size(); ++group) {
    for (const std::uint32_t rank : plan.groups[group]) leads[rank] = plan.lead(group, rank);
  }
  const std::int64_t most =
      std::max<std::int64_t>(1, *std::max_element(leads.begin(), leads.end()));
  std::vector<std::size_t> leaders;
  bool is_even = true;
  std::string weights;
  for (std::size_t rank = 0; rank < leads.size(); ++rank) {
    weights += (rank > 0 ? ":" : "") + std::to_string((100 * leads[rank] + most / 2) / most);
    if (leads[rank] * 50 < most) continue;
    leaders.push_back(rank);
    is_even = is_even && leads[rank] * 50 > most * 49;
  }
  if (!is_even) return "ranks lead as " + weights;
  if (leaders.size() == leads.size()) return leads.size() == 1 ? "" : "all lead";
  const bool is_run = leaders.back() - leaders.front() + 1 == leaders.size();
  if (leaders.size() == 1) return "rank " + std::to_string(leaders.front()) + " leads";
  if (is_run) {
    return "ranks " + std::to_string(leaders.front()) + "-" + std::to_string(leaders.back()) +
           " lead";
  }
  std::string text = "ranks";
  for (const std::size_t rank : leaders) {
    text += (rank == leaders.front() ? " " : ",") + std::to_string(rank);
  }
  return text + " lead";
}

std::string gbits(std::uint32_t mbps) {
  return mbps >= 10'000 ? std::to_string((mbps + 500) / 1000)
                        : std::to_string(mbps / 1000) + "." + std::to_string(mbps % 1000 / 100);
}

}  // namespace

std::string describe(const Machine& machine, const Plan& plan) {
  std::string text = text_of_devices(machine) + ", " + text_of_cards(machine) + ": ";
  text += text_of_strategy(plan);
  if (plan.direct > 0) {
    const std::int64_t percent = (plan.direct * 100 + kWhole / 2) / kWhole;
    text += ", " + std::to_string(percent) + " % straight to the host";
  }
  const std::string leaders = text_of_leaders(machine, plan);
  if (!leaders.empty()) text += ", " + leaders;
  text += "; " + gbits(plan.rate_mbps) + " Gbit/s expected";
  if (machine.ranks.size() < 2) return text;
  const bool can_ring = machine.can_group;
  const Plan other = even_of(machine, can_ring ? Strategy::kAll : Strategy::kHost);
  if (other.rate_mbps * 100ULL >= plan.rate_mbps * 99ULL) return text;
  return text + " (" + (can_ring ? "one ring over all, all lead: " : "all lead alike: ") +
         gbits(other.rate_mbps) + ")";
}

}  // namespace byteps::topology
