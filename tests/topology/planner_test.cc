#include "topology/planner.h"

#include <algorithm>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/topology/kept_machine.h"
#include "tests/topology/made_machine.h"

namespace byteps::topology {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// In units of M; of the link whose name ends so, the greatest.
double load(const Machine& machine, const Plan& plan, const std::string& end) {
  const std::vector<std::int64_t> loads = loads_of(machine, plan);
  std::int64_t most = 0;
  for (std::size_t i = 0; i < loads.size(); ++i) {
    if (machine.links[i].name.ends_with(end)) most = std::max(most, loads[i]);
  }
  return static_cast<double>(most) / static_cast<double>(kWhole);
}

TEST(Plan, loads_of_cpu_assisted_aggregation_are_those_of_the_paper) {
  for (const std::uint32_t size : {2U, 3U, 4U, 8U}) {
    MadeMachine made = two_switches_of_four();
    for (auto& one : made.switches) one.devices = size;
    const Machine machine = made.machine();
    const Plan plan = even_of(machine, Strategy::kSwitches);
    EXPECT_NEAR(load(machine, plan, "0000:09:00.0 up"), 1, 1e-4);  // the first switch's
    const double of_device = (2.0 * size - 1) / size;
    EXPECT_NEAR(load(machine, plan, " up"), of_device, 1e-4);
    EXPECT_NEAR(load(machine, plan, " down"), of_device, 1e-4);
    EXPECT_NEAR(load(machine, plan, "across, out"), 0, 1e-9);
    const Plan ring = even_of(machine, Strategy::kAll);
    EXPECT_NEAR(load(machine, ring, "across, out"), 2.0 * (2 * size - 1) / (2 * size), 1e-4);
  }
}

// With l devices: max((1 - f)(2l - 1)/l + f, (1 - f) + f l).
TEST(Plan, the_best_mix_is_found) {
  const struct {
    std::uint32_t size;
    double load;
  } cases[] = {{2, 4.0 / 3}, {4, 1.6}, {8, 1.78}};
  for (const auto& [size, expected] : cases) {
    MadeMachine made = two_switches_of_four();
    made.cards = {{.mbps = 1'000'000}};
    made.assumed.sum_mbps = 1'000'000;
    made.assumed.between_nodes = 1'000'000;
    for (auto& one : made.switches) one.devices = size;
    const Plan plan = best_of(made.machine(), Strategy::kSwitches);
    EXPECT_NEAR(105e3 / plan.rate_mbps, expected, 0.01 * expected) << size;
  }
}

TEST(Planner, nvlink_leaves_out_those_beside_the_card) {
  const Plan plan = plan_of(nvlink_of_eight().machine());
  EXPECT_EQ(plan.strategy, Strategy::kAll);
  EXPECT_EQ(plan.direct, 0);
  EXPECT_LT(plan.weights[0] + plan.weights[1], kWhole / 10);
  EXPECT_NEAR(plan.rate_mbps, 100'000, 200);
}

TEST(Planner, a_machine_with_one_gpu_or_none_has_nothing_to_choose) {
  const MadeMachine made{.switches = {{.devices = 1}}, .cards = {{.mbps = 50'000}}, .assumed = {}};
  EXPECT_EQ(plan_of(made.machine()).rate_mbps, 50'000U);
  EXPECT_EQ(plan_of(machine_of({Place()})).strategy, Strategy::kHost);
}

TEST(Planner, two_ranks_on_one_gpu_are_no_group_of_nccl) {
  std::vector<Place> places = two_switches_of_four().places();
  places[1].device = places[0].device;
  EXPECT_EQ(plan_of(machine_of(places)).strategy, Strategy::kHost);
  places[1].device.clear();
  EXPECT_EQ(plan_of(machine_of(places)).strategy, Strategy::kHost);
}

TEST(Planner, of_equally_fast_plans_it_takes_the_one_that_copies_less) {
  MadeMachine made = two_switches_of_four();
  made.cards = {{.mbps = 10'000}};  // the limit, whatever the plan
  const Plan plan = plan_of(made.machine());
  EXPECT_EQ(plan.strategy, Strategy::kAll);
  EXPECT_EQ(plan.direct, 0);
}

TEST(Planner, wishes_are_followed) {
  const Machine pcie = two_switches_of_four().machine();
  const Plan given = plan_of(pcie, {.switch_size = 4, .roots = {}});
  EXPECT_EQ(given.strategy, Strategy::kGiven);
  EXPECT_THAT(given.groups, ElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre(4, 5, 6, 7)));
  EXPECT_EQ(given.direct, 0);
  EXPECT_EQ(plan_of(pcie, {.switch_size = 8, .roots = {}}).strategy, Strategy::kAll);

  const Plan rooted = plan_of(nvlink_of_eight().machine(), {.switch_size = 0, .roots = {2, 3}});
  EXPECT_THAT(rooted.weights, ElementsAre(0, 0, kWhole / 2, kWhole / 2, 0, 0, 0, 0));
  EXPECT_THAT(rooted.remarks, IsEmpty());
}

TEST(Planner, wishes_that_cannot_be_followed_are_named) {
  const Machine pcie = two_switches_of_four().machine();
  const auto remark = [](const Plan& plan) {
    return plan.remarks.empty() ? "" : plan.remarks.front();
  };
  EXPECT_THAT(remark(plan_of(pcie, {.switch_size = 3, .roots = {}})),
              HasSubstr("BYTEPS_PCIE_SWITCH_SIZE=3 has no effect: this machine's 8 ranks"));
  EXPECT_THAT(remark(plan_of(pcie, {.switch_size = 4, .roots = {2, 3}})),
              HasSubstr("BYTEPS_REDUCE_ROOTS has no effect"));
  EXPECT_THAT(remark(plan_of(pcie, {.switch_size = 0, .roots = {8}})),
              HasSubstr("BYTEPS_REDUCE_ROOTS has no effect"));
  EXPECT_THAT(remark(plan_of(machine_of({Place(), Place()}), {.switch_size = 2, .roots = {}})),
              HasSubstr("not each rank has a GPU of its own"));
}

TEST(Planner, says_its_choice_in_a_line) {
  const auto line = [](const MadeMachine& made) {
    const Machine machine = made.machine();
    return describe(machine, plan_of(machine));
  };
  EXPECT_EQ(line(two_switches_of_four()),
            "2 switches x 4 GPUs, card at the root: NCCL behind each switch, the CPU adds, 19 % "
            "straight to the host, all lead; 65 Gbit/s expected (one ring over all, all lead: 46)");
  EXPECT_EQ(line(nvlink_of_eight()),
            "4 switches x 2 GPUs, NVLink, card behind a switch: NCCL over all, ranks 2-7 lead; 100 "
            "Gbit/s expected (one ring over all, all lead: 84)");
  EXPECT_EQ(line(two_cards()),
            "4 switches x 2 GPUs, NVLink, 2 cards at the root: NCCL over all, all lead; 200 Gbit/s "
            "expected");
}

TEST(Planner, plans_for_machines_that_are_public) {
  const auto line = [](const char* name) {
    const KeptMachine kept(name);
    const Machine machine = machine_of(kept.survey().places);
    return describe(machine, plan_of(machine));
  };
  EXPECT_EQ(line("dgx1"),
            "4 switches x 2 GPUs, NVLink, 4 cards behind switches: NCCL over all, all lead; 209 "
            "Gbit/s expected");
  EXPECT_EQ(line("dgx-h100"),
            "8 switches x 1 GPU, NVLink, 8 cards behind switches: NCCL over all, all lead; 1674 "
            "Gbit/s expected");
  EXPECT_EQ(line("pcie-2x4"),
            "2 switches x 4 GPUs, card at the root: NCCL behind each switch, the CPU adds, all "
            "lead; 100 Gbit/s expected (one ring over all, all lead: 71)");
  EXPECT_EQ(line("aws-p4d"),
            "8 GPUs, NVLink, 4 cards at the root: NCCL over all, all lead; 400 Gbit/s expected");
  EXPECT_EQ(line("flat-vm"),
            "4 GPUs, card at the root: NCCL over all, 84 % straight to the host, all lead; 94 "
            "Gbit/s expected (one ring over all, all lead: 53)");
}

// Whatever the machine: weights add up, nothing is negative, and it is never slower than one ring over all.
TEST(Planner, holds_for_drawn_machines) {
  Prng prng(1);
  for (int i = 0; i < 300; ++i) {
    const Machine machine = drawn_machine(prng).machine();
    const Plan plan = plan_of(machine);
    std::int64_t all_groups = 0;
    std::vector<std::uint32_t> seen;
    for (std::size_t group = 0; group < plan.groups.size(); ++group) {
      std::int64_t sum = 0;
      for (const std::uint32_t rank : plan.groups[group]) {
        ASSERT_GE(plan.weights[rank], 0) << i;
        sum += plan.weights[rank];
        seen.push_back(rank);
      }
      ASSERT_EQ(sum, kWhole) << i;
      ASSERT_GE(plan.group_weights[group], 0) << i;
      all_groups += plan.group_weights[group];
    }
    ASSERT_EQ(all_groups, kWhole) << i;
    std::sort(seen.begin(), seen.end());
    std::vector<std::uint32_t> ranks(machine.ranks.size());
    std::iota(ranks.begin(), ranks.end(), 0U);
    ASSERT_EQ(seen, ranks) << i;
    for (const Strategy strategy : strategies_of(machine)) {
      const std::uint32_t other = even_of(machine, strategy).rate_mbps;
      ASSERT_GE(plan.rate_mbps + plan.rate_mbps / 256, other) << i;
    }
  }
}

}  // namespace
}  // namespace byteps::topology
