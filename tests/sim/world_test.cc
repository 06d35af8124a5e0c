// Worlds: the protocol's invariants under many seeds; the same seed gives the same run; and a broken network is found,
// so a green run means something.
#include "sim/world.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "net/wire.h"
#include "tests/worker/delay_stage.h"

namespace byteps::sim {
namespace {

WorldOptions of_seed(std::uint64_t seed) {
  WorldOptions options;
  options.seed = seed;
  return options;
}

// Runs it, and once more in words if it failed.
void expect_well(WorldOptions options) {
  WorldResult result = run_world(options);
  if (result.ok()) return;
  options.trace_events = 60;
  result = run_world(options);
  ADD_FAILURE() << report(options, result);
}

wire::Kind kind_of(std::span<const std::byte> header) {
  const Result<wire::Header> decoded = wire::decode_header(header);
  return decoded.is_ok() ? decoded.value().kind : wire::Kind::kHeartbeat;
}

TEST(World, all_invariants_hold_for_200_seeds) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) expect_well(of_seed(seed));
}

TEST(World, all_invariants_hold_for_100_seeds_of_coded_tensors) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    WorldOptions options = of_seed(seed);
    options.plan.has_formats = true;
    expect_well(options);
  }
}

TEST(World,
     all_invariants_hold_for_100_seeds_when_parts_are_kept_before_they_are_pushed_and_after) {
  std::size_t passed = 0;
  const auto run = [&](WorldOptions options) {
    std::vector<std::unique_ptr<DelayStage>> stages;
    options.road_ends = [&] {
      RoadEnds ends;
      for (auto* const rows : {&ends.before_push, &ends.after_pull}) {
        stages.push_back(
            std::make_unique<DelayStage>(options.seed * 100 + stages.size(), kMillisecond));
        rows->push_back({"delay", "its time", stages.back().get()});
      }
      return ends;
    };
    expect_well(options);
    for (const auto& stage : stages) passed += stage->passed();
  };
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    WorldOptions options = of_seed(seed);
    options.plan.gpus = Gpus::kNone;
    run(options);
    // A job that a GPU ends may be over before such a stage gives back what it has.
    options.plan.gpus = Gpus::kSome;
    options.plan.faults.emplace().add(Fault::kCut);
    run(options);
  }
  EXPECT_GT(passed, 1000U);
}

// As tests/sim/seeds.txt has them: "shared servers=1 lost-worker,cut]".
WorldOptions of_options(std::uint64_t seed, const std::string& text) {
  WorldOptions options = of_seed(seed);
  std::istringstream words(text.substr(0, text.find(']')));
  const auto count = [](const std::string& word) {
    return static_cast<std::uint32_t>(std::stoul(word.substr(word.find('=') + 1)));
  };
  for (std::string word; words >> word;) {
    if (word == "shared") {
      options.plan.hosts = Hosts::kShared;
    } else if (word == "apart") {
      options.plan.hosts = Hosts::kApart;
    } else if (word == "gpus") {
      options.plan.gpus = Gpus::kSome;
    } else if (word == "formats") {
      options.plan.has_formats = true;
    } else if (word.starts_with("workers=")) {
      options.plan.worker_count = count(word);
    } else if (word.starts_with("servers=")) {
      options.plan.server_count = count(word);
    } else {
      options.plan.faults = faults_named(word);
      EXPECT_TRUE(options.plan.faults) << "seed " << seed << ": there is no fault " << word;
    }
  }
  return options;
}

TEST(World, seeds_that_failed_once_hold_now) {
  std::ifstream file("tests/sim/seeds.txt");  // ctest runs tests in the source folder
  ASSERT_TRUE(file) << "tests/sim/seeds.txt cannot be read: run this in the source folder";
  std::uint32_t count = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::uint64_t seed = 0;
    if (line.starts_with('#') || !(words >> seed)) continue;
    ++count;
    if (words >> std::ws; words.peek() == '[') {
      expect_well(of_options(seed, line.substr(line.find('[') + 1)));
      continue;
    }
    const struct {
      Hosts hosts;
      Gpus gpus;
    } kinds[] = {
        {Hosts::kApart, Gpus::kNone}, {Hosts::kBySeed, Gpus::kNone}, {Hosts::kBySeed, Gpus::kSome}};
    for (const auto& [hosts, gpus] : kinds) {
      WorldOptions options = of_seed(seed);
      options.plan.hosts = hosts;
      options.plan.gpus = gpus;
      expect_well(options);
    }
  }
  EXPECT_GT(count, 0U);
}

// Each world has this kind of fault; in how many it really happened.
std::uint32_t worlds_with(Fault fault, std::uint64_t seeds, std::set<std::string>* lost = nullptr) {
  std::uint32_t count = 0;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    WorldOptions options = of_seed(seed);
    options.plan.faults.emplace().add(fault);
    const WorldResult result = run_world(options);
    if (!result.ok()) expect_well(options);
    count += result.happened.has(fault) ? 1 : 0;
    if (lost != nullptr) lost->insert(result.lost.substr(0, result.lost.find(" died")));
  }
  return count;
}

TEST(World, when_a_process_dies_all_that_waits_ends_in_time_and_names_it_in_100_seeds) {
  std::set<std::string> lost;
  EXPECT_GT(worlds_with(Fault::kKill, 100, &lost), 80U);
  EXPECT_TRUE(lost.contains("the scheduler"));
  EXPECT_TRUE(lost.contains("server 0"));
  EXPECT_TRUE(lost.contains("worker 0"));
}

TEST(World, when_a_process_stands_still_for_too_long_all_that_waits_ends_in_time_and_names_it) {
  EXPECT_GT(worlds_with(Fault::kLongPause, 60), 45U);
}

TEST(World, when_hosts_are_cut_off_for_too_long_all_that_waits_ends_in_time_and_names_one) {
  EXPECT_GT(worlds_with(Fault::kLongPartition, 60), 45U);
}

TEST(World, short_partitions_pauses_slowness_and_corruption_are_borne) {
  for (const Fault fault : {Fault::kPartition, Fault::kPause, Fault::kSlow, Fault::kCorrupt}) {
    EXPECT_GT(worlds_with(fault, 40), 15U) << name(fault);
  }
}

TEST(World, the_same_seed_gives_the_same_run) {
  for (std::uint64_t seed = 1000; seed < 1020; ++seed) {
    const WorldResult first = run_world(of_seed(seed));
    WorldOptions in_words = of_seed(seed);
    in_words.trace_events = 5;
    const WorldResult second = run_world(in_words);
    EXPECT_EQ(first.trace_hash, second.trace_hash) << "seed " << seed;
    EXPECT_EQ(first.virtual_ns, second.virtual_ns) << "seed " << seed;
    EXPECT_EQ(first.turns, second.turns) << "seed " << seed;
    EXPECT_FALSE(second.trace.empty());
  }
}

TEST(World, payloads_enter_the_hash_when_asked_for_and_change_nothing_else) {
  const auto run = [](bool trace_payloads) {
    WorldOptions options = of_seed(7);
    options.trace_payloads = trace_payloads;
    return run_world(options);
  };
  EXPECT_EQ(run(true).trace_hash, run(true).trace_hash);
  EXPECT_NE(run(true).trace_hash, run(false).trace_hash);
  EXPECT_EQ(run(true).virtual_ns, run(false).virtual_ns);
}

TEST(World, seeds_differ_and_faults_hit_connections_at_work) {
  std::set<std::uint64_t> hashes;
  std::uint64_t faults = 0;
  std::uint64_t reconnects = 0;
  std::uint64_t calm_worlds = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    const WorldResult result = run_world(of_seed(seed));
    hashes.insert(result.trace_hash);
    faults += result.faults;
    reconnects += result.reconnects;
    calm_worlds += result.faults == 0 ? 1 : 0;
  }
  EXPECT_EQ(hashes.size(), 60U);
  EXPECT_GT(faults, 300U);
  EXPECT_GT(reconnects, 100U);
  EXPECT_GT(calm_worlds, 5U);
}

TEST(World, sizes_can_be_chosen) {
  WorldOptions options = of_seed(5);
  options.plan.worker_count = 7;
  options.plan.server_count = 4;
  const WorldResult result = run_world(options);
  EXPECT_TRUE(result.ok()) << report(options, result);
  EXPECT_NE(result.size.find("7 workers"), std::string::npos) << result.size;
}

// ---- workers that share hosts

WorldPlan plan_of(std::uint64_t seed, Hosts hosts) {
  PlanOptions options;
  options.hosts = hosts;
  return make_plan(options, Prng(seed));
}

// How many workers each host has.
std::map<HostIndex, std::uint32_t> counts_of(const WorldPlan& plan) {
  std::map<HostIndex, std::uint32_t> counts;
  for (const HostIndex host : plan.worker_hosts) ++counts[host];
  return counts;
}

TEST(World, workers_of_a_host_say_that_they_share_a_machine_and_others_do_not) {
  std::uint32_t mixed = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    const WorldPlan plan = plan_of(seed, Hosts::kShared);
    const std::vector<HostIndex>& hosts = plan.worker_hosts;
    ASSERT_EQ(hosts.size(), plan.config.job.worker_count);
    std::uint32_t most = 0;
    for (const auto& [host, count] : counts_of(plan)) most = std::max(most, count);
    ASSERT_LE(most, 4U);
    ASSERT_GE(most, std::min<std::size_t>(2, hosts.size())) << "seed " << seed;
    mixed += most > 1 && counts_of(plan).size() > 1 ? 1 : 0;
    for (std::uint32_t a = 0; a < hosts.size(); ++a) {
      JobConfig job_a;
      plan.introduce(a, job_a);
      EXPECT_EQ(job_a.rank, a);
      for (std::uint32_t b = 0; b < a; ++b) {
        JobConfig job_b;
        plan.introduce(b, job_b);
        const bool say_so = job_a.machine != 0 && job_a.machine == job_b.machine;
        EXPECT_EQ(say_so, hosts[a] == hosts[b]) << "seed " << seed;
        EXPECT_EQ(say_so, job_a.card.number != 0 && job_a.card == job_b.card) << "seed " << seed;
      }
    }
  }
  EXPECT_GT(mixed, 60U);
}

TEST(World, by_seed_workers_of_one_world_in_four_share_hosts_and_nothing_else_changes) {
  std::uint32_t shared = 0;
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    const WorldPlan apart = plan_of(seed, Hosts::kApart);
    const WorldPlan by_seed = plan_of(seed, Hosts::kBySeed);
    ASSERT_EQ(counts_of(apart).size(), apart.config.job.worker_count);
    shared += counts_of(by_seed).size() < by_seed.config.job.worker_count ? 1 : 0;
    ASSERT_EQ(by_seed.config.job.incarnation, apart.config.job.incarnation) << "seed " << seed;
    ASSERT_EQ(by_seed.faults.until_ns, apart.faults.until_ns) << "seed " << seed;
    const TensorPlan& tensor = apart.generations.back().tensors.back();
    ASSERT_EQ(by_seed.generations.back().tensors.back().facts.value_seed, tensor.facts.value_seed);
  }
  EXPECT_NEAR(shared, 100, 25);
}

TEST(World, all_invariants_hold_for_100_seeds_when_workers_share_hosts) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    WorldOptions options = of_seed(seed);
    options.plan.hosts = Hosts::kShared;
    expect_well(options);
  }
}

// ---- workers with GPUs

WorldPlan plan_of(std::uint64_t seed, Gpus gpus) {
  PlanOptions options;
  options.gpus = gpus;
  return make_plan(options, Prng(seed));
}

std::size_t count_gpus(const WorldPlan& plan) {
  const std::vector<WorkerPlan>& workers = plan.generations[0].workers;
  return static_cast<std::size_t>(std::count_if(
      workers.begin(), workers.end(), [](const WorkerPlan& each) { return each.gpu.has_value(); }));
}

TEST(World, by_seed_workers_of_one_world_in_four_have_gpus_and_nothing_else_changes) {
  std::uint32_t with_gpus = 0;
  std::uint32_t mixed = 0;
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    const WorldPlan without = plan_of(seed, Gpus::kNone);
    const WorldPlan by_seed = plan_of(seed, Gpus::kBySeed);
    const WorldPlan some = plan_of(seed, Gpus::kSome);
    ASSERT_EQ(count_gpus(without), 0U);
    ASSERT_GT(count_gpus(some), 0U);
    with_gpus += count_gpus(by_seed) > 0 ? 1 : 0;
    mixed += count_gpus(some) < some.config.job.worker_count ? 1 : 0;
    ASSERT_EQ(some.config.job.incarnation, without.config.job.incarnation) << "seed " << seed;
    ASSERT_EQ(some.worker_hosts, without.worker_hosts) << "seed " << seed;
    ASSERT_EQ(some.faults.until_ns, without.faults.until_ns) << "seed " << seed;
    const TensorPlan& tensor = without.generations.back().tensors.back();
    ASSERT_EQ(some.generations.back().tensors.back().facts.value_seed, tensor.facts.value_seed);
  }
  EXPECT_NEAR(with_gpus, 100, 25);
  EXPECT_GT(mixed, 100U);
}

TEST(World, all_invariants_hold_for_200_seeds_when_workers_have_gpus) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    WorldOptions options = of_seed(seed);
    options.plan.gpus = Gpus::kSome;
    options.plan.hosts = seed % 2 == 0 ? Hosts::kShared : Hosts::kBySeed;
    expect_well(options);
  }
}

TEST(World, a_gpu_that_stands_still_or_is_slow_is_borne_and_one_that_fails_ends_the_job_by_name) {
  for (const Fault fault : {Fault::kSlowDevice, Fault::kBrokenDevice}) {
    std::uint32_t happened = 0;
    for (std::uint64_t seed = 1; seed <= 100; ++seed) {
      WorldOptions options = of_seed(seed);
      options.plan.gpus = Gpus::kSome;
      options.plan.faults.emplace().add(fault);
      expect_well(options);
      happened += run_world(options).happened.has(fault) ? 1 : 0;
    }
    EXPECT_GT(happened, 30U) << name(fault);
  }
}

// ---- broken networks are found

// How many worlds end with this invariant broken, and which others any of them broke.
struct Findings {
  std::uint32_t found = 0;
  std::set<std::string> others;
};

template <typename MakeTamper>
Findings break_worlds(std::uint64_t worlds, Invariant expected, const MakeTamper& make_tamper,
                      const PlanOptions& plan = {}) {
  Findings findings;
  for (std::uint64_t seed = 1; seed <= worlds; ++seed) {
    WorldOptions options = of_seed(seed);
    options.plan = plan;
    options.tamper = make_tamper();
    const WorldResult result = run_world(options);
    if (result.broken == expected) {
      ++findings.found;
      EXPECT_NE(report(options, result).find("seed " + std::to_string(seed)), std::string::npos);
    } else if (!result.ok()) {
      findings.others.insert(name(result.broken));
    }
  }
  return findings;
}

TEST(World, a_payload_changed_on_the_way_breaks_a_result) {
  const Findings findings = break_worlds(40, Invariant::kExactResult, [] {
    return [count = 0](const Event& event, std::span<std::byte> payload,
                       std::span<std::byte>) mutable {
      if (kind_of(event.header) == wire::Kind::kAnswer && !payload.empty() && ++count == 3) {
        payload.back() ^= std::byte{1};
      }
      return true;
    };
  });
  EXPECT_GT(findings.found, 25U);
  EXPECT_EQ(findings.others, std::set<std::string>{});
}

TEST(World, an_answer_that_never_comes_stops_progress) {
  const Findings findings = break_worlds(10, Invariant::kProgress, [] {
    // The connection stays up, which no transport may do (T3), so nobody asks again.
    return [count = 0](const Event& event, std::span<std::byte>, std::span<std::byte>) mutable {
      return kind_of(event.header) != wire::Kind::kAnswer || ++count % 10 != 0;
    };
  });
  EXPECT_GT(findings.found, 4U);
}

TEST(World, a_write_into_memory_that_was_given_back_is_found) {
  // Memory that was lent for a push is written to long after it was given back. Here all of it is the trainers', which
  // keep theirs until the world ends.
  PlanOptions plan;
  plan.hosts = Hosts::kApart;
  plan.gpus = Gpus::kNone;
  plan.faults = Faults();
  const auto make_tamper = [] {
    return [pushed = std::vector<std::span<std::byte>>()](const Event& event, std::span<std::byte>,
                                                          std::span<std::byte> lent) mutable {
      if (kind_of(event.header) != wire::Kind::kPush || lent.empty()) return true;
      pushed.push_back(lent);
      if (pushed.size() > 30) pushed[pushed.size() - 30].front() ^= std::byte{0x10};
      return true;
    };
  };
  const Findings findings = break_worlds(100, Invariant::kMemoryIsFree, make_tamper, plan);
  EXPECT_GT(findings.found, 3U);
}

TEST(World, a_tensor_nobody_else_submits_is_named_by_who_waits) {
  WorldOptions options = of_seed(3);
  options.plan.faults =
      Faults();  // a connection that is cut again and again without an answer is given up
  options.tamper = [](const Event& event, std::span<std::byte>, std::span<std::byte>) {
    return kind_of(event.header) != wire::Kind::kAnswer;
  };
  options.trace_events = 10;
  const WorldResult result = run_world(options);
  EXPECT_EQ(result.broken, Invariant::kProgress);
  EXPECT_NE(result.text.find("waits for tensor."), std::string::npos) << result.text;
}

}  // namespace
}  // namespace byteps::sim
