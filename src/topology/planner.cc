#include "topology/planner.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <tuple>
#include <utility>

namespace byteps::topology {
namespace {

// Times are alike that differ by less than one part of so many.
constexpr std::int64_t kAlike = 256;
// Pieces that go two ways are in each other's way: one part of so many is lost (docs/topology.md).
constexpr int kMixLoss = 50;

// ---- which plan is better

// The times of all links, the longest first: the plan is better whose longest is shorter, of equal ones whose second
// is, and so on. So water goes on flowing where one link that it does not reach is the slowest.
using Cost = std::vector<std::int64_t>;

Cost cost_of(const Machine& machine, const Plan& plan) {
  Cost cost = loads_of(machine, plan);
  for (std::size_t i = 0; i < cost.size(); ++i) {
    cost[i] = time_of(cost[i], machine.links[i].rate_mbps);
  }
  std::sort(cost.begin(), cost.end(), std::greater<>());
  return cost;
}

std::int64_t longest_of(const Machine& machine, const Plan& plan) {
  return cost_of(machine, plan).front();
}

// ---- leaders' weights

// Water-filling: what lies in one vessel is moved to another as long as that shortens the longest time, in ever smaller
// amounts. Vessels are ranks that have the same way to the host, and fill alike; and groups.
class Filling {
 public:
  Filling(const Machine& machine, Plan& plan, const std::vector<std::uint32_t>& roots)
      : machine_(machine), plan_(plan) {
    for (const auto& group : plan.groups) {
      std::map<Kind, std::vector<std::uint32_t>> kinds;
      for (std::size_t place = 0; place < group.size(); ++place) {
        const std::uint32_t rank = group[place];
        const bool may_lead =
            roots.empty() || std::find(roots.begin(), roots.end(), rank) != roots.end();
        if (may_lead) kinds[kind_of(group, place)].push_back(rank);
      }
      vessels_.emplace_back();
      for (auto& [kind, ranks] : kinds) vessels_.back().push_back(std::move(ranks));
    }
  }

  // All that may lead, alike.
  void level() {
    plan_.weights.assign(machine_.ranks.size(), 0);
    plan_.group_weights.assign(plan_.groups.size(), 0);
    level_groups();
    for (const auto& vessels : vessels_) {
      for (const auto& vessel : vessels) {
        for (const std::uint32_t rank : vessel) plan_.weights[rank] = 1;
      }
    }
    level_leaders();
  }

  void fill() {
    pour_all();
    // Weights that make no difference are told apart by nobody.
    const Plan filled = plan_;
    const std::int64_t longest = longest_of(machine_, plan_);
    level_leaders();
    if (is_worse_than(longest)) plan_.weights = filled.weights;
    level_groups();
    if (is_worse_than(longest)) plan_.group_weights = filled.group_weights;
  }

 private:
  using Kind =
      std::tuple<Route, std::uint32_t, std::int16_t, std::uint32_t, std::size_t, std::size_t>;

  void level_groups() {
    for (std::size_t group = 0; group < vessels_.size(); ++group) {
      plan_.group_weights[group] = share_of(kWhole, vessels_.size(), group);
    }
  }

  // Those of a group that lead at all.
  void level_leaders() {
    for (const auto& vessels : vessels_) {
      std::vector<std::uint32_t> leaders;
      for (const auto& vessel : vessels) {
        for (const std::uint32_t rank : vessel) {
          if (plan_.weights[rank] > 0) leaders.push_back(rank);
        }
      }
      for (std::size_t i = 0; i < leaders.size(); ++i) {
        plan_.weights[leaders[i]] = share_of(kWhole, leaders.size(), i);
      }
    }
  }

  bool is_worse_than(std::int64_t longest) const {
    return longest_of(machine_, plan_) > longest + longest / kAlike;
  }

  void pour_all() {
    cost_ = cost_of(machine_, plan_);
    for (std::int64_t amount = kWhole / 2; amount >= kWhole / 512; amount /= 2) {
      while (move_groups(amount) || move_vessels(amount)) {
      }
    }
  }

  // Who leads sends less to its neighbours in the ring: it matters how far these are.
  Kind kind_of(const std::vector<std::uint32_t>& ring, std::size_t place) const {
    const Machine::Rank& rank = machine_.ranks[ring[place]];
    const Route above(rank.up.begin() + (rank.up.empty() ? 0 : 1), rank.up.end());
    const std::uint32_t own = rank.up.empty() ? 0 : machine_.links[rank.up.front()].rate_mbps;
    const auto hops = [&](std::size_t from) {
      const std::size_t to = (from + 1) % ring.size();
      return ring.size() < 2
                 ? 0
                 : machine_.between(ring[from % ring.size()], ring[to % ring.size()]).size();
    };
    return {
        above,      own, rank.node, rank.card.value_or(0xffffffff), hops(place + ring.size() - 1),
        hops(place)};
  }

  static std::int64_t share_of(std::int64_t all, std::size_t count, std::size_t index) {
    const auto of = static_cast<std::int64_t>(count);
    const auto at = static_cast<std::int64_t>(index);
    return all * (at + 1) / of - all * at / of;
  }

  bool is_better() {
    Cost cost = cost_of(machine_, plan_);
    if (!(cost < cost_)) return false;
    cost_ = std::move(cost);
    return true;
  }

  bool move_groups(std::int64_t amount) {
    bool any = false;
    for (std::size_t from = 0; from < plan_.groups.size(); ++from) {
      for (std::size_t to = 0; to < plan_.groups.size(); ++to) {
        if (from == to || plan_.group_weights[from] < amount) continue;
        plan_.group_weights[from] -= amount;
        plan_.group_weights[to] += amount;
        if (is_better()) {
          any = true;
          continue;
        }
        plan_.group_weights[from] += amount;
        plan_.group_weights[to] -= amount;
      }
    }
    return any;
  }

  bool move_vessels(std::int64_t amount) {
    bool any = false;
    for (const auto& vessels : vessels_) {
      for (const auto& from : vessels) {
        for (const auto& to : vessels) {
          if (&from == &to) continue;
          const std::vector<std::int64_t> before = plan_.weights;
          any = (pour(from, to, amount) && is_better()) || (plan_.weights = before, any);
        }
      }
    }
    return any;
  }

  bool pour(const std::vector<std::uint32_t>& from, const std::vector<std::uint32_t>& to,
            std::int64_t amount) {
    for (std::size_t i = 0; i < from.size(); ++i) {
      std::int64_t& weight = plan_.weights[from[i]];
      weight -= share_of(amount, from.size(), i);
      if (weight < 0) return false;
    }
    for (std::size_t i = 0; i < to.size(); ++i)
      plan_.weights[to[i]] += share_of(amount, to.size(), i);
    return true;
  }

  const Machine& machine_;
  Plan& plan_;
  std::vector<std::vector<std::vector<std::uint32_t>>> vessels_;  // by group
  Cost cost_;
};

// ---- candidates

using Groups = std::vector<std::vector<std::uint32_t>>;

// Ranks in an order in which those behind one switch are neighbours: a ring then leaves each switch once.
std::vector<std::uint32_t> by_wires(const Machine& machine) {
  std::vector<std::uint32_t> ranks(machine.ranks.size());
  for (std::uint32_t i = 0; i < ranks.size(); ++i) ranks[i] = i;
  const auto path = [&](std::uint32_t rank) {
    const Route& up = machine.ranks[rank].up;
    return std::pair(machine.ranks[rank].node, Route(up.rbegin(), up.rend()));
  };
  std::stable_sort(ranks.begin(), ranks.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return path(a) < path(b); });
  return ranks;
}

Groups groups_of(const Machine& machine, Strategy strategy) {
  const std::vector<std::uint32_t> ranks = by_wires(machine);
  Groups groups;
  if (strategy == Strategy::kAll) {
    const bool is_island =
        machine.islands.size() == 1 && machine.islands.front().size() == ranks.size();
    return {is_island ? machine.islands.front() : ranks};
  }
  if (strategy == Strategy::kIslands) groups = machine.islands;
  std::map<LinkIndex, std::size_t> behind;
  for (const std::uint32_t rank : ranks) {
    const Machine::Rank& one = machine.ranks[rank];
    if (strategy == Strategy::kIslands && one.island) continue;
    if (strategy == Strategy::kSwitches && one.shared) {
      const auto [known, is_new] = behind.emplace(*one.shared, groups.size());
      if (!is_new) {
        groups[known->second].push_back(rank);
        continue;
      }
    }
    groups.push_back({rank});
  }
  return groups;
}

// Of a plan's longest time, with what mixing loses.
std::int64_t counted(const Machine& machine, const Plan& plan) {
  const std::int64_t longest = longest_of(machine, plan);
  return plan.direct > 0 ? longest + longest / kMixLoss : longest;
}

Plan filled(const Machine& machine, Plan plan, const std::vector<std::uint32_t>& roots,
            bool may_mix) {
  Filling(machine, plan, roots).level();
  const Plan level = plan;
  std::int64_t least = 0;
  const auto try_direct = [&](const Plan& from, std::int64_t direct) {
    Plan other = from;
    other.direct = direct;
    Filling(machine, other, roots).fill();
    const std::int64_t time = counted(machine, other);
    if (least > 0 && time >= least - least / (8 * kAlike)) return;
    least = time;
    plan = std::move(other);
  };
  try_direct(level, 0);
  if (!may_mix) return rated(machine, std::move(plan));
  constexpr std::int64_t kEighth = kWhole / 8;
  for (std::int64_t direct = kEighth; direct <= kWhole; direct += kEighth)
    try_direct(level, direct);
  for (std::int64_t step = kEighth / 2; step >= kWhole / 64; step /= 2) {
    const Plan middle = plan;
    for (const std::int64_t direct : {middle.direct - step, middle.direct + step}) {
      if (direct < 0 || direct > kWhole) continue;
      try_direct(level, direct);
      try_direct(middle, direct);
    }
  }
  return rated(machine, std::move(plan));
}

// Of plans that are about as fast, the one that copies less, and of those the faster.
bool is_preferred(const Plan& one, const Plan& other) {
  const auto rate = [](const Plan& plan) {
    return std::uint64_t{plan.rate_mbps} * (plan.direct > 0 ? kMixLoss - 1 : kMixLoss);
  };
  const std::uint64_t a = rate(one);
  const std::uint64_t b = rate(other);
  if (std::max(a, b) - std::min(a, b) > std::max(a, b) / kAlike) return a > b;
  return std::pair(one.copies(), b) < std::pair(other.copies(), a);
}

bool can_lead(const Plan& plan, const std::vector<std::uint32_t>& roots) {
  const auto has_root = [&](const std::vector<std::uint32_t>& group) {
    return std::find_first_of(group.begin(), group.end(), roots.begin(), roots.end()) !=
           group.end();
  };
  return roots.empty() || std::all_of(plan.groups.begin(), plan.groups.end(), has_root);
}

// Groups of so many ranks each, as the original makes them.
void add_given(const Machine& machine, const Wishes& wishes, std::vector<Plan>& plans,
               std::vector<std::string>& remarks) {
  const auto size = static_cast<std::size_t>(wishes.switch_size);
  const std::size_t rank_count = machine.ranks.size();
  const std::string name = "BYTEPS_PCIE_SWITCH_SIZE=" + std::to_string(size) + " has no effect: ";
  if (!machine.can_group) {
    remarks.push_back(name + "not each rank has a GPU of its own");
    return;
  }
  if (size < rank_count && rank_count % size != 0) {
    remarks.push_back(name + "this machine's " + std::to_string(rank_count) +
                      " ranks are no multiple of it");
    return;
  }
  Plan plan;
  plan.strategy = size >= rank_count ? Strategy::kAll : Strategy::kGiven;
  if (plan.strategy == Strategy::kAll) plan.groups = groups_of(machine, Strategy::kAll);
  for (std::uint32_t rank = 0; plan.strategy == Strategy::kGiven && rank < rank_count; ++rank) {
    if (rank % size == 0) plan.groups.emplace_back();
    plan.groups.back().push_back(rank);
  }
  plans.push_back(std::move(plan));
}

}  // namespace

std::vector<Strategy> strategies_of(const Machine& machine) {
  std::vector<Strategy> strategies = {Strategy::kHost};
  if (!machine.can_group || machine.ranks.size() < 2) return strategies;
  strategies.push_back(Strategy::kAll);
  const auto count = [&](Strategy strategy) { return groups_of(machine, strategy).size(); };
  const auto is_one = [&](std::size_t groups) {
    return groups > 1 && groups < machine.ranks.size();
  };
  if (is_one(count(Strategy::kSwitches))) strategies.push_back(Strategy::kSwitches);
  if (is_one(count(Strategy::kIslands))) strategies.push_back(Strategy::kIslands);
  return strategies;
}

Plan best_of(const Machine& machine, Strategy strategy) {
  Plan plan;
  plan.strategy = strategy;
  plan.groups = groups_of(machine, strategy);
  return filled(machine, std::move(plan), {}, strategy != Strategy::kHost);
}

Plan even_of(const Machine& machine, Strategy strategy) {
  Plan plan;
  plan.strategy = strategy;
  plan.groups = groups_of(machine, strategy);
  Filling(machine, plan, {}).level();
  return rated(machine, std::move(plan));
}

Plan plan_of(const Machine& machine, const Wishes& wishes) {
  std::vector<std::string> remarks;
  std::vector<Plan> plans;
  if (wishes.switch_size > 0) add_given(machine, wishes, plans, remarks);
  const bool is_given = !plans.empty();
  for (const Strategy strategy : is_given ? std::vector<Strategy>() : strategies_of(machine)) {
    Plan plan;
    plan.strategy = strategy;
    plan.groups = groups_of(machine, strategy);
    plans.push_back(std::move(plan));
  }
  const bool any_rooted = std::any_of(
      plans.begin(), plans.end(), [&](const Plan& plan) { return can_lead(plan, wishes.roots); });
  if (!any_rooted) {
    remarks.push_back(
        "BYTEPS_REDUCE_ROOTS has no effect: it leaves a group of ranks without a leader");
  }
  const std::vector<std::uint32_t> roots = any_rooted ? wishes.roots : std::vector<std::uint32_t>();
  Plan best;
  for (Plan& plan : plans) {
    if (!can_lead(plan, roots)) continue;
    const bool may_mix = roots.empty() && !is_given && plan.strategy != Strategy::kHost;
    Plan one = filled(machine, std::move(plan), roots, may_mix);
    if (best.groups.empty() || is_preferred(one, best)) best = std::move(one);
  }
  best.remarks = std::move(remarks);
  return best;
}

}  // namespace byteps::topology
