// The planner, judged by machines in virtual time: its plan against all strategies, a grid of mixes and a grid of
// leaders' weights, each of which is played event by event.
//
// What need not be played: a plan whose slowest link, at its full rate all the time, is not faster than kAllowed times
// what the chosen one reached, or than the best one so far. That is no matter of the formula's: no link moves more than
// its rate.
#include <algorithm>
#include <cstdio>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "sim/machine_run.h"
#include "tests/topology/made_machine.h"
#include "topology/planner.h"

namespace byteps::sim {
namespace {

using topology::even_of;
using topology::kWhole;
using topology::Machine;
using topology::MadeMachine;
using topology::Plan;
using topology::plan_of;
using topology::rated;
using topology::Strategy;

constexpr double kAllowed = 1.02;

MachineRunOptions options() {
  MachineRunOptions options;
  options.bytes = std::uint64_t{2} << 30;
  options.pieces = 2048;
  return options;
}

double gbits(const Machine& machine, const Plan& plan) {
  const MachineRunResult result = run_machine(machine, plan, options());
  return static_cast<double>(result.bytes) * 8 / static_cast<double>(result.ns);
}

// The weights of a grid: of the ranks behind each wire alike, 0 to 2 in all combinations, and those of groups likewise.
class Grid {
 public:
  Grid(const Machine& machine, const Plan& plan) : machine_(machine), plan_(plan) {
    std::set<std::uint64_t> keys;
    for (std::size_t group = 0; group < plan.groups.size(); ++group) {
      for (const std::uint32_t rank : plan.groups[group]) keys.insert(key_of(group, rank));
    }
    keys_.assign(keys.begin(), keys.end());
    if (plan.groups.size() > 1) group_count_ = plan.groups.size();
    levels_.assign(keys_.size() + group_count_, 1);
  }

  bool is_small() const { return levels_.size() <= 6; }
  // The next plan; false: there is none.
  bool next(Plan& plan) {
    for (std::uint32_t& level : levels_) {
      level = (level + 1) % 3;
      if (level != 1) return make(plan) || next(plan);
    }
    return false;
  }

 private:
  std::uint64_t key_of(std::size_t group, std::uint32_t rank) const {
    const auto& up = machine_.ranks[rank].up;
    return group * 1'000'000 + (up.empty() ? 0 : up.back());
  }

  bool make(Plan& plan) const {
    plan = plan_;
    std::int64_t of_groups = 0;
    for (std::size_t group = 0; group < plan.groups.size(); ++group) {
      std::int64_t sum = 0;
      for (const std::uint32_t rank : plan.groups[group]) {
        const auto key = std::lower_bound(keys_.begin(), keys_.end(), key_of(group, rank));
        plan.weights[rank] = levels_[static_cast<std::size_t>(key - keys_.begin())];
        sum += plan.weights[rank];
      }
      if (sum == 0) return false;
      for (const std::uint32_t rank : plan.groups[group]) {
        plan.weights[rank] = plan.weights[rank] * kWhole / sum;
      }
      if (group_count_ > 0) plan.group_weights[group] = levels_[keys_.size() + group];
      of_groups += plan.group_weights[group];
    }
    if (of_groups == 0) return false;
    for (std::int64_t& weight : plan.group_weights) weight = weight * kWhole / of_groups;
    return true;
  }

  const Machine& machine_;
  const Plan plan_;
  std::vector<std::uint64_t> keys_;
  std::size_t group_count_ = 0;
  std::vector<std::uint32_t> levels_;
};

struct Judged {
  double chosen = 0;
  double best = 0;
  Plan plan;
  Plan best_plan;
  int played = 0;
  double ratio() const { return best / chosen; }
};

void try_all(const Machine& machine, Plan plan, Judged& judged) {
  constexpr int kMixes = 16;
  for (int mix = 0; mix <= kMixes; ++mix) {
    plan.direct = kWhole * mix / kMixes;
    const Plan one = rated(machine, plan);
    if (one.rate_mbps <= std::max(judged.best, kAllowed * judged.chosen) * 1000) continue;
    const double reached = gbits(machine, one);
    ++judged.played;
    if (reached <= judged.best) continue;
    judged.best = reached;
    judged.best_plan = one;
  }
}

Judged judge(const Machine& machine) {
  Judged judged;
  judged.plan = judged.best_plan = plan_of(machine);
  judged.chosen = judged.best = gbits(machine, judged.plan);
  for (const Strategy strategy : strategies_of(machine)) {
    try_all(machine, topology::best_of(machine, strategy), judged);
    Plan plan = even_of(machine, strategy);
    try_all(machine, plan, judged);
    Grid grid(machine, plan);
    while (grid.is_small() && grid.next(plan)) try_all(machine, plan, judged);
  }
  return judged;
}

std::string text_of(const Machine& machine, const Plan& plan, double reached) {
  return std::to_string(reached) + " Gbit/s: " + describe(machine, plan) + "; " + plan.slowest;
}

// A quarter of them each, so that they may run beside each other.
class PlannerFigures : public testing::TestWithParam<std::uint64_t> {};

TEST_P(PlannerFigures, of_1000_machines_the_choice_is_the_best_or_nearly) {
  Prng prng(22 + GetParam());
  double worst = 1;
  int played = 0;
  for (int i = 0; i < 250; ++i) {
    const Machine machine = topology::drawn_machine(prng).machine();
    const Judged judged = judge(machine);
    played += judged.played;
    worst = std::max(worst, judged.ratio());
    EXPECT_LE(judged.ratio(), kAllowed)
        << "machine " << i << ": " << text_of(machine, judged.plan, judged.chosen) << "\n  best "
        << text_of(machine, judged.best_plan, judged.best);
  }
  std::printf("  250 machines, %d other plans had to be played; the worst choice: 1/%.4f\n", played,
              worst);
  RecordProperty("worst", std::to_string(worst));
}

INSTANTIATE_TEST_SUITE_P(quarters, PlannerFigures, testing::Range<std::uint64_t>(0, 4));

// ---- where the formula errs

// How much faster it says the plan is than it is.
double too_fast(const Machine& machine, const Plan& plan) {
  return plan.rate_mbps / 1e3 / gbits(machine, plan);
}

MadeMachine without_switches(std::uint32_t devices, std::uint32_t mbps,
                             const topology::MadeCard& card, std::uint32_t sum_mbps) {
  MadeMachine made;
  for (const std::int16_t node : {std::int16_t{0}, std::int16_t{1}}) {
    made.switches.push_back(
        {.devices = devices, .node = node, .wire_mbps = mbps, .device_mbps = mbps});
  }
  made.cards = {card};
  made.has_switches = false;
  made.assumed.sum_mbps = sum_mbps;
  return made;
}

// A long ring through both nodes, and a third of the bytes straight to the host, to leaders at one node: its pieces
// have nine hops before they are copied, the others none, and all meet in one link between the nodes. It says 4 % too
// much.
TEST(PlannerErrs, where_a_long_ring_and_copies_of_all_meet_between_two_nodes) {
  const Machine machine =
      without_switches(5, 105'000, {.node = 1, .mbps = 400'000}, 40'000).machine();
  const Judged judged = judge(machine);
  EXPECT_GT(too_fast(machine, judged.plan), 1.03);
  EXPECT_LE(judged.ratio(), kAllowed) << text_of(machine, judged.best_plan, judged.best);
}

// The same with slow wires, two more ranks, and a card that is not much faster than they are.
TEST(PlannerErrs, where_twelve_slow_wires_share_a_card) {
  const Machine machine =
      without_switches(6, 52'000, {.node = 1, .mbps = 50'000}, 80'000).machine();
  const Judged judged = judge(machine);
  EXPECT_GT(too_fast(machine, judged.plan), 1.03);
  EXPECT_LE(judged.ratio(), kAllowed) << text_of(machine, judged.best_plan, judged.best);
}

// To it a mix over one ring and groups without one are equally fast, for the card is the limit of both. But pieces that
// go two ways are in each other's way. The planner therefore mixes only for more than that.
TEST(PlannerErrs, where_a_mix_costs_nothing_by_the_formula) {
  MadeMachine made;
  for (int i = 0; i < 4; ++i) {
    made.switches.push_back({.devices = 2, .node = 0, .wire_mbps = 52'000, .device_mbps = 52'000});
  }
  made.cards = {{.mbps = 25'000}};
  made.assumed.sum_mbps = 40'000;
  const Machine machine = made.machine();
  Plan mixed = even_of(machine, Strategy::kAll);
  mixed.direct = kWhole * 3 / 32;
  mixed = rated(machine, mixed);
  const Judged judged = judge(machine);
  EXPECT_NEAR(mixed.rate_mbps, judged.plan.rate_mbps, judged.plan.rate_mbps / 100.0);
  EXPECT_GT(judged.chosen / gbits(machine, mixed), 1.01);
  EXPECT_EQ(judged.plan.direct, 0);
  EXPECT_LE(judged.ratio(), kAllowed) << text_of(machine, judged.best_plan, judged.best);
}

}  // namespace
}  // namespace byteps::sim
