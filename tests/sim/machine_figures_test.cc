// What exchanges inside machines take in virtual time (docs/topology.md): by the planner's plan, and by others in the
// same run. 256 MiB; processors are free but for the rate at which a rank adds.
#include <cstdio>
#include <string>
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

// Gbit/s: M in bits by the time.
double rate(const Machine& machine, const Plan& plan, const MachineRunOptions& options = {}) {
  const MachineRunResult result = run_machine(machine, plan, options);
  return static_cast<double>(result.bytes) * 8 / static_cast<double>(result.ns);
}

void note(const char* what, const Machine& machine, const Plan& plan, double reached) {
  testing::Test::RecordProperty(what, std::to_string(reached));
  std::printf("  %-24s %6.1f Gbit/s of %6.1f  %s\n", what, reached, plan.rate_mbps / 1e3,
              describe(machine, plan).c_str());
}

// Leaders in each group are these ranks, alike.
Plan led_by(const Machine& machine, Strategy strategy, const std::vector<std::uint32_t>& ranks) {
  Plan plan = even_of(machine, strategy);
  plan.weights.assign(machine.ranks.size(), 0);
  for (const std::uint32_t rank : ranks) {
    plan.weights[rank] = kWhole / static_cast<std::int64_t>(ranks.size());
  }
  return rated(machine, plan);
}

TEST(MachineFigures, one_gpu_takes_what_its_card_takes) {
  MadeMachine made{.switches = {{.devices = 1}}, .cards = {{.mbps = 100'000}}, .assumed = {}};
  const Machine machine = made.machine();
  const Plan plan = plan_of(machine);
  const double reached = rate(machine, plan);
  note("one GPU", machine, plan, reached);
  EXPECT_GE(reached, 0.95 * 100);

  // One stage after the other: all is copied out, sent and received, and copied in.
  const Machine bare = MadeMachine{.switches = made.switches, .cards = {}, .assumed = {}}.machine();
  topology::Place on_host;
  on_host.card_mbps = 100'000;
  const Machine network = topology::machine_of({on_host});
  const double copied = rate(bare, plan_of(bare));
  const double sent = rate(network, plan_of(network));
  const double blocking = 1 / (2 / copied + 1 / sent);
  note("one stage at a time", machine, plan, blocking);
  EXPECT_NEAR(blocking / 100, 0.34, 0.02);

  made.cards = {{.mbps = 105'000}};
  const Machine equal = made.machine();
  EXPECT_GE(rate(equal, plan_of(equal)), 0.90 * 105);
}

TEST(MachineFigures, two_switches_of_four_mix_cpu_assisted_aggregation_with_copies_of_all) {
  const Machine machine = topology::two_switches_of_four().machine();
  const Plan plan = plan_of(machine);
  const double mixed = rate(machine, plan);
  note("the planner's", machine, plan, mixed);
  EXPECT_GE(mixed, 0.93 * 105 / 1.6);

  const Plan assisted = even_of(machine, Strategy::kSwitches);
  const double without = rate(machine, assisted);
  note("nothing mixed", machine, assisted, without);
  EXPECT_GE(without, 0.95 * 105 / 1.75);

  const Plan ring = even_of(machine, Strategy::kAll);
  const double by_ring = rate(machine, ring);
  note("one ring over all", machine, ring, by_ring);
  EXPECT_LE(by_ring, 80 / 1.75);
  EXPECT_GE(without / by_ring, 1.28);
  EXPECT_GE(mixed / by_ring, 1.28);
}

TEST(MachineFigures, with_nvlink_those_beside_the_card_do_not_lead) {
  const Machine machine = topology::nvlink_of_eight().machine();
  const Plan plan = plan_of(machine);
  const double reached = rate(machine, plan);
  note("the planner's", machine, plan, reached);
  EXPECT_GE(reached, 0.95 * 100);

  const Plan all = even_of(machine, Strategy::kAll);
  const double by_all = rate(machine, all);
  note("all lead", machine, all, by_all);
  EXPECT_NEAR(by_all / 100, 0.84, 0.03);

  const Plan one = led_by(machine, Strategy::kAll, {0});
  const double by_one = rate(machine, one);
  note("rank 0 leads", machine, one, by_one);
  EXPECT_NEAR(by_one / 100, 0.525, 0.02);
}

TEST(MachineFigures, two_cards_carry_twice_as_much) {
  const Machine machine = topology::two_cards().machine();
  const Plan plan = plan_of(machine);
  const double reached = rate(machine, plan);
  note("the planner's", machine, plan, reached);
  EXPECT_GE(reached, 0.93 * 200);

  const Plan one = led_by(machine, Strategy::kAll, {7});
  const double by_one = rate(machine, one);
  note("one leads", machine, one, by_one);
  EXPECT_NEAR(by_one / 200, 0.5, 0.02);
}

TEST(MachineFigures, where_nothing_is_known_all_is_copied_and_added_by_the_cpu) {
  topology::Place card;
  card.card_mbps = 100'000;
  std::vector<topology::Place> ranks(8, card);
  const Machine unknown = topology::machine_of(ranks);
  const Plan of_unknown = plan_of(unknown);
  note("nothing known", unknown, of_unknown, rate(unknown, of_unknown));
  EXPECT_EQ(of_unknown.strategy, Strategy::kHost);
  EXPECT_GE(rate(unknown, of_unknown) * 1000, 0.9 * of_unknown.rate_mbps);

  const Machine machine = topology::two_switches_of_four().machine();
  const Plan host = even_of(machine, Strategy::kHost);
  const double reached = rate(machine, host);
  note("two switches, no groups", machine, host, reached);
  EXPECT_GE(reached * 1000, 0.9 * host.rate_mbps);
}

// The simulated machine counts what it moves, the formula does not know how: they agree on each link.
TEST(MachineRun, what_each_link_carries_is_what_the_formula_says) {
  MachineRunOptions options;
  options.pieces = 1024;
  Prng prng(3);
  for (int i = 0; i < 100; ++i) {
    const Machine machine = topology::drawn_machine(prng).machine();
    for (const Strategy strategy : strategies_of(machine)) {
      const Plan plan = topology::best_of(machine, strategy);
      const std::vector<std::int64_t> loads = loads_of(machine, plan);
      const MachineRunResult result = run_machine(machine, plan, options);
      for (std::size_t link = 0; link < loads.size(); ++link) {
        const double load = static_cast<double>(loads[link]) / kWhole;
        const double carried =
            static_cast<double>(result.carried[link]) / static_cast<double>(result.bytes);
        ASSERT_NEAR(carried, load, 0.02 + 0.01 * load)
            << i << ": " << machine.links[link].name << " by " << describe(machine, plan);
      }
    }
  }
}

TEST(MachineRun, repeats) {
  const Machine machine = topology::two_switches_of_four().machine();
  const Plan plan = plan_of(machine);
  EXPECT_EQ(run_machine(machine, plan).ns, run_machine(machine, plan).ns);
}

}  // namespace
}  // namespace byteps::sim
