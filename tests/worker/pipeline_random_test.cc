// Pipelines in the dull cluster under random steps. Each worker submits its tensors in an order of its own; steps
// happen in any order; connections end at random points; answers come twice; credit may be as small as one frame. Then
// everything is let run, and must hold:
//   each handle has ended exactly once and well, each result is the exact sum of its round (or the root's bytes), no
//   payload is lent, all credit is back.
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/worker/model_cluster.h"

namespace byteps {
namespace {

using model::Cluster;
using Numbers = std::vector<std::uint64_t>;

struct Variant {
  Cluster::Settings cluster;
  int repeat_percent = 0;
  int lost_connections = 0;
};

class World {
 public:
  World(const Variant& variant, std::uint64_t seed)
      : variant_(variant), prng_(seed), cluster_(variant.cluster, seed + 1) {
    cluster_.repeat_percent = variant.repeat_percent;
    const std::size_t tensor_count = 1 + prng_.below(12);
    for (std::size_t t = 0; t < tensor_count; ++t) {
      Tensor tensor;
      tensor.name = "tensor " + std::to_string(t);
      tensor.count = prng_.below(4) == 0 ? prng_.below(3) : prng_.below(300);
      tensor.broadcast = prng_.below(4) == 0;
      tensor.root = static_cast<std::uint32_t>(prng_.below(variant.cluster.workers));
      tensor.root_only = !tensor.broadcast && prng_.below(5) == 0;
      if (prng_.below(3) == 0) choose_members(tensor);
      tensors_.push_back(tensor);
    }
    for (std::uint32_t rank = 0; rank < variant.cluster.workers; ++rank) {
      for (std::size_t t = 0; t < tensor_count; ++t) {
        if (tensors_[t].members.has(WorkerRank(rank))) plan(rank, t);
      }
    }
    cluster_.on_complete = [this](std::uint32_t rank, HandleId handle, const Status& status) {
      check(rank, static_cast<std::size_t>(handle.value - 1), status);
    };
  }

  void run() {
    int losses_left = variant_.lost_connections;
    for (int step = 0; step < 3000; ++step) {
      const std::uint64_t dice = prng_.below(100);
      const auto rank = static_cast<std::uint32_t>(prng_.below(variant_.cluster.workers));
      const auto shard = static_cast<std::uint32_t>(prng_.below(variant_.cluster.shards));
      if (dice < 3) {
        submit_next(rank);
      } else if (dice < 10) {
        if (!cluster_.is_up(rank, shard)) cluster_.up(rank, shard);
      } else if (dice < 12 && losses_left > 0) {
        if (cluster_.is_up(rank, shard)) {
          cluster_.down(rank, shard);
          --losses_left;
        }
      } else {
        cluster_.random_step();
      }
    }
    cluster_.all_up();
    for (std::uint32_t rank = 0; rank < variant_.cluster.workers; ++rank) {
      while (submit_next(rank)) {
      }
    }
    cluster_.run_to_the_end();
    for (std::uint32_t rank = 0; rank < variant_.cluster.workers; ++rank) {
      EXPECT_EQ(cluster_.results(rank).size(), plans_of(rank)) << "rank " << rank;
      EXPECT_EQ(cluster_.worker(rank).pending_operations(), 0u);
      for (std::uint32_t shard = 0; shard < variant_.cluster.shards; ++shard) {
        EXPECT_EQ(cluster_.worker(rank).gate(ShardIndex(shard)).unanswered_bytes(), 0u);
      }
    }
    EXPECT_EQ(cluster_.delayed_parts() > 0, variant_.cluster.delay_ns > 0);
    EXPECT_EQ(cluster_.lent_count(), 0u);
    if (variant_.cluster.pool_bytes > 0) check_devices();
  }

  std::size_t copies = 0;
  std::uint64_t unpinned = 0;

 private:
  void check_devices() {
    for (std::uint32_t rank = 0; rank < variant_.cluster.workers; ++rank) {
      EXPECT_TRUE(cluster_.device(rank).is_idle());
      EXPECT_TRUE(cluster_.device(rank).staging().slabs().all_is_free());
      copies += cluster_.device(rank).copies();
      unpinned += cluster_.device(rank).staging().counters().unpinned_parts;
    }
  }

  static constexpr std::size_t kRounds = 3;
  struct Tensor {
    std::string name;
    std::size_t count = 0;
    bool broadcast = false;
    std::uint32_t root = 0;
    bool root_only = false;
    Members members{};
  };
  struct Plan {
    std::uint32_t rank = 0;
    std::size_t tensor = 0;
    std::size_t round = 0;
    bool in_place = false;
    Numbers input;
    Numbers output;
  };

  // The root, and each other one by chance.
  void choose_members(Tensor& tensor) {
    std::vector<std::uint32_t> members;
    for (std::uint32_t rank = 0; rank < variant_.cluster.workers; ++rank) {
      if (rank == tensor.root || prng_.below(2) == 0) members.push_back(rank);
    }
    if (members.size() < variant_.cluster.workers) tensor.members = Members(members);
  }

  static std::uint64_t value(std::size_t tensor, std::size_t round, std::uint32_t rank,
                             std::size_t i) {
    return stable_mix(tensor * 1'000'003 + round * 10'007 + rank * 101 + i * 7 + 1);
  }

  void plan(std::uint32_t rank, std::size_t t) {
    for (std::size_t round = 0; round < kRounds; ++round) {
      Plan one;
      one.rank = rank;
      one.tensor = t;
      one.round = round;
      one.in_place = prng_.below(2) == 0;
      plans_.push_back(one);
    }
  }

  std::size_t plans_of(std::uint32_t rank) const {
    return static_cast<std::size_t>(std::count_if(
        plans_.begin(), plans_.end(), [&](const Plan& plan) { return plan.rank == rank; }));
  }

  // The worker's next operation: of a tensor drawn at random, its next round.
  bool submit_next(std::uint32_t rank) {
    std::vector<std::size_t> open;
    for (std::size_t i = 0; i < plans_.size(); ++i) {
      const bool submitted = submitted_.contains(i);
      const bool first = i == 0 || plans_[i].round == 0 || submitted_.contains(i - 1);
      if (plans_[i].rank == rank && !submitted && first) open.push_back(i);
    }
    if (open.empty()) return false;
    const std::size_t index = open[prng_.below(open.size())];
    submitted_.insert(index);
    Plan& plan = plans_[index];
    const Tensor& tensor = tensors_[plan.tensor];
    const bool pushes = !tensor.broadcast || tensor.root == rank;
    const bool gets = !tensor.root_only || tensor.root == rank;
    if (gets) plan.output.assign(tensor.count, 0xdead);
    Numbers& input = plan.in_place && gets ? plan.output : plan.input;
    input.resize(tensor.count);
    const auto fill = [&plan, &input, pushes, rank] {
      for (std::size_t i = 0; i < input.size(); ++i) {
        if (pushes) input[i] = value(plan.tensor, plan.round, rank, i);
      }
    };
    PipelineCall call;
    call.handle = HandleId(static_cast<std::int64_t>(index) + 1);
    call.name = tensor.name;
    call.spec = {.dtype = DType::kInt64,
                 .operation = tensor.broadcast ? Operation::kBroadcast : Operation::kSum,
                 .total_bytes = tensor.count * 8,
                 .root = WorkerRank(tensor.broadcast || tensor.root_only ? tensor.root : 0),
                 .root_only = tensor.root_only,
                 .members = tensor.members};
    if (pushes) call.input = std::as_bytes(std::span(input));
    call.output = std::as_writable_bytes(std::span(plan.output));
    call.priority = static_cast<std::int32_t>(prng_.below(3));
    if (variant_.cluster.pool_bytes > 0 && prng_.below(4) > 0) {
      cluster_.device(rank).take(call, fill);
    } else {
      fill();
    }
    cluster_.worker(rank).submit(std::move(call));
    cluster_.apply(rank);
    return true;
  }

  // The memory is the caller's: the result is right now, and what we do to it afterwards disturbs nobody.
  void check(std::uint32_t rank, std::size_t index, const Status& status) {
    Plan& plan = plans_[index];
    const Tensor& tensor = tensors_[plan.tensor];
    ASSERT_EQ(plan.rank, rank);
    ASSERT_TRUE(status.is_ok()) << status.text();
    for (std::size_t i = 0; i < plan.output.size(); ++i) {
      std::uint64_t expected = 0;
      for (std::uint32_t each = 0; each < variant_.cluster.workers; ++each) {
        if (tensor.broadcast && each != tensor.root) continue;
        if (!tensor.members.has(WorkerRank(each))) continue;
        expected += value(plan.tensor, plan.round, each, i);
      }
      ASSERT_EQ(plan.output[i], expected)
          << tensor.name << " round " << plan.round << " rank " << rank << " element " << i;
    }
    Numbers().swap(plan.input);
    Numbers().swap(plan.output);
  }

  const Variant variant_;
  Prng prng_;
  Cluster cluster_;
  std::vector<Tensor> tensors_;
  std::vector<Plan> plans_;
  std::set<std::size_t> submitted_;
};

void run_seeds(const Variant& variant, std::uint64_t count) {
  for (std::uint64_t seed = 1; seed <= count; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    World(variant, seed * 1000).run();
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(PipelineRandom, sums_are_exact_for_2_workers_on_steady_connections) {
  run_seeds({.cluster = {.workers = 2, .shards = 3}}, 20);
}

TEST(PipelineRandom, no_deadlock_for_3_workers_with_credit_of_one_frame) {
  run_seeds({.cluster = {.workers = 3, .shards = 2, .credit_bytes = 1, .credit_frames_min = 1}},
            30);
}

TEST(PipelineRandom, no_deadlock_without_priority_scheduling) {
  run_seeds({.cluster = {.workers = 3,
                         .shards = 2,
                         .credit_bytes = 1,
                         .credit_frames_min = 1,
                         .priority_scheduling = false}},
            20);
}

TEST(PipelineRandom, sums_are_exact_when_connections_end_at_random_points) {
  run_seeds({.cluster = {.workers = 3, .shards = 2}, .lost_connections = 40}, 40);
}

TEST(PipelineRandom, sums_are_exact_when_answers_come_twice_and_connections_end) {
  run_seeds({.cluster = {.workers = 2, .shards = 3, .credit_bytes = 1, .credit_frames_min = 2},
             .repeat_percent = 30,
             .lost_connections = 40},
            40);
}

// Other stages before and after the network's: a row each, in which parts overtake each other.
TEST(PipelineRandom, sums_are_exact_when_parts_are_kept_before_they_are_pushed_and_after) {
  run_seeds(
      {.cluster = {.workers = 3, .shards = 2, .delay_ns = kMillisecond}, .lost_connections = 40},
      40);
}

// How many parts found no pinned memory.
std::uint64_t run_device_seeds(const Variant& variant, std::uint64_t count) {
  std::uint64_t copies = 0;
  std::uint64_t unpinned = 0;
  for (std::uint64_t seed = 1; seed <= count; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    World world(variant, seed * 1000);
    world.run();
    copies += world.copies;
    unpinned += world.unpinned;
    if (::testing::Test::HasFailure()) break;
  }
  EXPECT_GT(copies, 0U);
  return unpinned;
}

// Three of four tensors are on devices.
TEST(PipelineRandom, sums_are_exact_for_tensors_on_devices_and_in_host_memory) {
  run_device_seeds({.cluster = {.workers = 3, .shards = 2, .pool_bytes = 1 << 20}}, 40);
}

TEST(PipelineRandom, tensors_on_devices_survive_lost_connections_and_repeated_answers) {
  run_device_seeds({.cluster = {.workers = 3, .shards = 2, .pool_bytes = 1 << 20},
                    .repeat_percent = 30,
                    .lost_connections = 40},
                   40);
}

// A slab takes a page at least, so that two parts at a time have one: what others wait for goes beyond.
TEST(PipelineRandom, no_deadlock_with_a_pool_of_two_parts_and_credit_of_one_frame) {
  const std::uint64_t unpinned = run_device_seeds({.cluster = {.workers = 3,
                                                               .shards = 2,
                                                               .credit_bytes = 1,
                                                               .credit_frames_min = 1,
                                                               .pool_bytes = 2 * 4096}},
                                                  60);
  EXPECT_GT(unpinned, 0U);
}

TEST(PipelineRandom, one_worker_and_one_shard_are_enough) {
  run_seeds({.cluster = {.workers = 1, .shards = 1}, .lost_connections = 10}, 10);
}

}  // namespace
}  // namespace byteps
