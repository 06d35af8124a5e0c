// Shelves of two levels: the workers of a machine sum at a relay first, and what they have together goes to a server.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <span>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/prng.h"
#include "kernels/half.h"
#include "tests/server/shelf_world.h"

namespace byteps {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

constexpr auto kF32 = DType::kFloat32;
constexpr std::uint64_t kPartitionBytes = 256;
constexpr std::uint64_t kFrameBytes = 64;

// A relay at each worker, and one server. Messages arrive at once, unless they are held back.
struct Tree {
  explicit Tree(const std::vector<std::uint64_t>& machines, ShelfSettings settings = {})
      : groups(std::make_shared<const Groups>(machines)),
        worker_count(static_cast<std::uint32_t>(machines.size())),
        server({Epoch(7), worker_count, placed(kPartitionBytes, kFrameBytes), groups, std::nullopt},
               settings) {
    for (WorkerRank rank(0); rank.value < worker_count; ++rank.value) {
      relays.push_back(std::make_unique<ShelfWorld>(
          ShelfEpoch{Epoch(7), worker_count, placed(kPartitionBytes, kFrameBytes), groups, rank,
                     true},
          settings));
    }
  }

  std::uint32_t leader(std::uint32_t rank, const wire::Declare& tensor, std::uint32_t part) const {
    const Crew crew = groups->crew_of(groups->group_of(WorkerRank(rank)), tensor.members);
    return leader_of(crew, key_of(tensor.name), part, 1).value;
  }

  // One frame of what this worker has; where it has nothing, none of it.
  void push(std::uint32_t rank, const wire::Declare& tensor, std::uint32_t round, Place place,
            const Bytes& payload) {
    const std::uint32_t to = leader(rank, tensor, place.part);
    ShelfWorld& relay = *relays[to];
    relay.declare(rank, tensor);
    const bool gives = tensor.gives(WorkerRank(rank));
    relay.push(rank, tensor.name, round, gives ? payload : Bytes(), place,
               gives ? 0 : wire::kNoPayload);
    up(to, tensor);
  }
  // What a relay forwards goes to the server.
  void up(std::uint32_t relay, const wire::Declare& tensor) {
    for (const ShelfOutput::Forward& each : relays[relay]->out.forwards) {
      server.declare(relay, tensor);
      wire::Header header = each.header;
      header.worker = WorkerRank(relay);
      server.step(relay, header, each.payload());
    }
    relays[relay]->out.forwards.clear();
    down();
  }
  // And its answers to the relays.
  void down() {
    ASSERT_THAT(server.out.violations, IsEmpty()) << server.out.violations[0].text;
    for (const ShelfOutput::Answer& answer : server.out.answers) {
      ShelfWorld& relay = *relays[answer.header.worker.value];
      ShelfOutputs outputs;
      relay.shelf.answered(answer.header, answer.payload(), outputs);
      relay.out.add(std::move(outputs));
    }
    server.out.answers.clear();
  }

  // A whole round, one worker after the other in this order; the result by worker.
  std::map<std::uint32_t, Bytes> sum(const wire::Declare& tensor, std::uint32_t round,
                                     const std::map<std::uint32_t, Bytes>& inputs) {
    for (std::uint64_t start = 0; start < tensor.total_bytes; start += kFrameBytes) {
      const Place place{static_cast<std::uint32_t>(start / kPartitionBytes),
                        start % kPartitionBytes};
      const std::uint64_t end = std::min(start + kFrameBytes, tensor.total_bytes);
      for (const auto& [rank, input] : inputs) {
        const Bytes frame(input.begin() + static_cast<std::ptrdiff_t>(start),
                          input.begin() + static_cast<std::ptrdiff_t>(end));
        push(rank, tensor, round, place, frame);
      }
    }
    return results(tensor);
  }
  std::map<std::uint32_t, Bytes> results(const wire::Declare& tensor) {
    std::map<std::uint32_t, Bytes> results;
    for (const auto& relay : relays) {
      const Told told = relay->take();
      EXPECT_THAT(told.violations, IsEmpty());
      EXPECT_THAT(told.spoiled, IsEmpty());
      for (const ShelfOutput::Answer& answer : told.answers) {
        Bytes& result = results[answer.header.worker.value];
        if ((answer.header.flags & wire::kNoPayload) != 0) continue;
        result.resize(tensor.total_bytes);
        const Bytes payload = bytes_of(answer.payload());
        std::copy(payload.begin(), payload.end(),
                  result.begin() + place_of(answer, *relay->facts.placement, tensor));
      }
    }
    return results;
  }

  std::shared_ptr<const Groups> groups;
  std::uint32_t worker_count;
  ShelfWorld server;
  std::vector<std::unique_ptr<ShelfWorld>> relays;
};

std::map<std::uint32_t, Bytes> inputs_of(const std::vector<Bytes>& inputs) {
  std::map<std::uint32_t, Bytes> by_rank;
  for (std::uint32_t rank = 0; rank < inputs.size(); ++rank) by_rank[rank] = inputs[rank];
  return by_rank;
}

TEST(ShelfRelay, one_copy_of_a_machines_sum_goes_up_and_all_of_it_get_the_sum_of_all) {
  Tree tree({1, 1, 1, 2, 2});
  const wire::Declare x = declaration("x", kF32, 8);
  std::uint32_t forwards = 0;
  for (std::uint32_t rank = 0; rank < 5; ++rank) {
    ShelfWorld& relay = *tree.relays[tree.leader(rank, x, 0)];
    relay.declare(rank, x);
    relay.push(rank, "x", 0, floats({1.0F + static_cast<float>(rank), 10}));
    forwards += static_cast<std::uint32_t>(relay.out.forwards.size());
    tree.up(tree.leader(rank, x, 0), x);
  }
  EXPECT_EQ(forwards, 2U);
  const auto results = tree.results(x);
  ASSERT_EQ(results.size(), 5U);
  for (const auto& [rank, result] : results) EXPECT_EQ(result, floats({15, 50})) << rank;
}

TEST(ShelfRelay, an_average_divides_once_by_the_ranks) {
  Tree tree({1, 1, 1, 2});
  const wire::Declare x = declaration("x", kF32, 4, Operation::kAverage);
  const auto results =
      tree.sum(x, 0, inputs_of({floats({1}), floats({2}), floats({3}), floats({6})}));
  for (const auto& [rank, result] : results) EXPECT_EQ(result, floats({3})) << rank;
}

TEST(ShelfRelay, rounds_follow_each_other_and_a_tensor_at_rest_has_no_memory_at_the_relays) {
  Tree tree({1, 1, 2, 2});
  const wire::Declare x = declaration("x", kF32, 3 * kPartitionBytes + 100);
  for (std::uint32_t round = 0; round < 3; ++round) {
    const Bytes ones(x.total_bytes, std::byte{0});
    const auto results = tree.sum(x, round, inputs_of({ones, ones, ones, ones}));
    ASSERT_EQ(results.size(), 4U);
    for (const auto& [rank, result] : results) EXPECT_EQ(result, ones);
  }
  for (const auto& relay : tree.relays) {
    EXPECT_EQ(relay->pool.lent_bytes(), 0U);
    EXPECT_EQ(relay->shelf.inventory().incomplete_frame_count(), 0U);
    EXPECT_EQ(relay->shelf.next_deadline(), kNever);
  }
}

TEST(ShelfRelay, a_sum_of_halves_on_one_machine_does_not_overflow_where_the_mean_of_all_does_not) {
  for (const std::uint32_t size : {2U, 3U, 8U}) {
    std::vector<std::uint64_t> machines(size, 1);
    machines.push_back(2);
    Tree tree(machines);
    const wire::Declare h = declaration("h", DType::kFloat16, 4, Operation::kAverage);
    std::map<std::uint32_t, Bytes> inputs;
    for (std::uint32_t rank = 0; rank <= size; ++rank) {
      inputs[rank] = elements(DType::kFloat16, {60000, -60000});
    }
    for (const auto& [rank, result] : tree.sum(h, 0, inputs)) {
      EXPECT_EQ(result, elements(DType::kFloat16, {60000, -60000})) << size << " on one machine";
    }
  }
}

TEST(ShelfRelay, sums_of_halves_that_are_halves_are_exact_subnormal_ones_too) {
  Tree tree({1, 1, 1, 1, 2});
  const wire::Declare h = declaration("h", DType::kFloat16, 6);
  const auto one = [](float a, float b, float c) {
    Bytes bytes;
    for (const float number : {a, b, c}) append_element(bytes, half_of_float(number));
    return bytes;
  };
  // Multiples of the headroom (4) times the smallest subnormal half survive.
  const float least = 0x1p-24F;
  const auto results =
      tree.sum(h, 0,
               inputs_of({one(1024, 0.25F, 4 * least), one(512, 0.25F, 8 * least),
                          one(256, 0.25F, 0), one(128, 0.25F, 4 * least), one(64, 1, 4 * least)}));
  for (const auto& [rank, result] : results) {
    EXPECT_EQ(result, one(1984, 2, 20 * least)) << rank;
  }
}

TEST(ShelfRelay, a_broadcast_comes_from_a_root_that_leads_nothing_and_goes_to_all_others) {
  for (std::uint32_t root = 0; root < 5; ++root) {
    Tree tree({1, 1, 2, 2, 0});
    const wire::Declare b =
        declaration("b", kF32, 2 * kPartitionBytes, Operation::kBroadcast, root);
    std::map<std::uint32_t, Bytes> inputs;
    for (std::uint32_t rank = 0; rank < 5; ++rank) {
      inputs[rank] = filled(b.total_bytes, static_cast<int>(rank + 1));
    }
    const auto results = tree.sum(b, 0, inputs);
    ASSERT_EQ(results.size(), 5U);
    for (const auto& [rank, result] : results) {
      if (rank == root) {
        EXPECT_THAT(result, IsEmpty());
      } else {
        EXPECT_EQ(result, inputs[root]) << rank << " of root " << root;
      }
    }
  }
}

TEST(ShelfRelay, what_a_root_alone_gets_nobody_else_is_sent) {
  for (std::uint32_t root = 0; root < 4; ++root) {
    Tree tree({1, 1, 2, 2});
    wire::Declare r = declaration("r", kF32, 4);
    r.root_only = true;
    r.root = WorkerRank(root);
    const auto results =
        tree.sum(r, 0, inputs_of({floats({1}), floats({2}), floats({4}), floats({8})}));
    ASSERT_EQ(results.size(), 4U);
    for (const auto& [rank, result] : results) {
      EXPECT_EQ(result, rank == root ? floats({15}) : Bytes()) << rank << " of root " << root;
    }
  }
}

TEST(ShelfRelay, of_some_members_those_of_each_machine_sum_first) {
  Tree tree({1, 1, 2, 2, 3});
  wire::Declare x = declaration("x", kF32, 4, Operation::kAverage);
  const std::vector<std::uint32_t> members = {0, 2, 3};
  x.members = Members(members);
  const auto results = tree.sum(x, 0, {{0, floats({1})}, {2, floats({3})}, {3, floats({5})}});
  ASSERT_EQ(results.size(), 3U);
  for (const auto& [rank, result] : results) EXPECT_EQ(result, floats({3})) << rank;
}

TEST(ShelfRelay, whatever_a_worker_of_another_machine_says_breaks_the_protocol) {
  Tree tree({1, 1, 2});
  wire::Declare x = declaration("x", kF32, 4);
  const std::vector<std::uint32_t> members = {2};
  x.members = Members(members);
  ShelfWorld& relay = *tree.relays[0];
  relay.declare(2, x);
  relay.push(2, "x", 0, floats({1}));
  ASSERT_EQ(relay.out.violations.size(), 2U);
  EXPECT_THAT(relay.out.violations[0].text, HasSubstr("the relay of another machine"));
  EXPECT_EQ(relay.shelf.inventory().tensors().size(), 0U);
}

// Rank `who` of the machine of this relay, which says it to the server, has declared that.
void declare_for(Tree& tree, std::uint32_t relay, std::uint32_t who, const wire::Declare& tensor) {
  wire::Header header;
  header.kind = wire::Kind::kDeclare;
  header.epoch = Epoch(7);
  header.key = key_of(tensor.name);
  header.worker = WorkerRank(relay);
  header.part = PartIndex(who + 1);
  tree.server.step(relay, header, wire::encode(tensor));
}

TEST(ShelfRelay, what_machines_disagree_about_names_who_declared_it_and_not_who_leads_it) {
  for (const bool odd_comes_first : {false, true}) {
    Tree tree({1, 2, 2});
    const wire::Declare x = declaration("x", kF32, 4);
    const wire::Declare odd = declaration("x", DType::kInt32, 4);
    if (odd_comes_first) declare_for(tree, 1, 2, odd);
    declare_for(tree, 0, 0, x);
    if (!odd_comes_first) declare_for(tree, 1, 2, odd);
    ASSERT_EQ(tree.server.out.spoiled.size(), 1U);
    EXPECT_THAT(tree.server.out.spoiled[0].text, HasSubstr("worker 0 (float32"));
    EXPECT_THAT(tree.server.out.spoiled[0].text, HasSubstr("worker 2 (int32"));
  }
}

TEST(ShelfRelay, who_declares_for_a_worker_of_another_machine_or_for_none_breaks_the_protocol) {
  for (const std::uint32_t who : {0U, 3U, 0xFFFFFFFEU}) {
    Tree tree({1, 2, 2});
    declare_for(tree, 1, who, declaration("x", kF32, 4));
    ASSERT_EQ(tree.server.out.violations.size(), 1U);
    EXPECT_THAT(tree.server.out.violations[0].text, HasSubstr("of another machine"));
    EXPECT_EQ(tree.server.shelf.inventory().tensors().size(), 0U);
  }
}

TEST(ShelfRelay, who_pushes_a_part_to_a_relay_that_does_not_lead_it_breaks_the_protocol) {
  Tree tree({1, 1});
  const wire::Declare x = declaration("x", kF32, 4);
  ShelfWorld& relay = *tree.relays[1 - tree.leader(0, x, 0)];
  relay.declare(0, x);
  relay.push(0, "x", 0, floats({1}));
  ASSERT_EQ(relay.out.violations.size(), 1U);
  EXPECT_THAT(relay.out.violations[0].text, HasSubstr("a relay that does not lead its part"));
}

TEST(ShelfRelay,
     who_has_no_more_inputs_is_not_waited_for_and_its_own_worker_only_when_it_is_heard) {
  Tree tree({1, 1});
  const wire::Declare x = declaration("x", kF32, 4);
  const std::uint32_t leader = tree.leader(0, x, 0);
  const std::uint32_t other = 1 - leader;
  ShelfWorld& relay = *tree.relays[leader];
  relay.declare(other, x);
  relay.push(other, "x", 0, floats({1}));
  relay.no_more_inputs(leader);
  EXPECT_EQ(relay.out.inputs_ends, 1);
  EXPECT_THAT(relay.out.forwards, IsEmpty());
  EXPECT_THAT(relay.out.inputs_done, IsEmpty());
  ShelfOutputs heard;
  relay.shelf.inputs_are_heard(0, heard);
  relay.out.add(std::move(heard));
  EXPECT_EQ(relay.out.forwards.size(), 1U);
  ASSERT_EQ(relay.out.inputs_done.size(), 1U);
  EXPECT_EQ(relay.out.inputs_done[0].worker, WorkerRank(leader));
}

TEST(ShelfRelay, all_without_inputs_wait_for_the_word_of_the_servers) {
  Tree tree({1, 1});
  ShelfWorld& relay = *tree.relays[0];
  relay.no_more_inputs(1);
  ShelfOutputs heard;
  relay.shelf.inputs_are_heard(0, heard);
  relay.out.add(std::move(heard));
  EXPECT_EQ(relay.out.inputs_done.size(), 2U) << "each that it was heard";
  relay.out.clear();
  ShelfOutputs begun;
  relay.shelf.begin_inputs(1, WorkerRank(1), begun);
  relay.out.add(std::move(begun));
  ASSERT_EQ(relay.out.inputs_done.size(), 1U);
  EXPECT_EQ(relay.out.inputs_done[0].worker, WorkerRank(0)) << "the one beside it";
  EXPECT_EQ(relay.out.inputs_done[0].generation, 1U);
  EXPECT_EQ(relay.out.inputs_done[0].last, WorkerRank(1));
}

TEST(ShelfRelay, a_name_that_all_here_have_forgotten_is_to_be_forgotten_by_the_servers) {
  Tree tree({1, 1});
  const wire::Declare x = declaration("x", kF32, 4);
  ShelfWorld& relay = *tree.relays[tree.leader(0, x, 0)];
  tree.sum(x, 0, inputs_of({floats({1}), floats({2})}));
  relay.forget(0, "x");
  EXPECT_THAT(relay.out.forgotten, IsEmpty());
  relay.forget(1, "x");
  EXPECT_THAT(relay.out.forgotten, testing::ElementsAre(key_of("x")));
  EXPECT_EQ(relay.shelf.inventory().tensors().size(), 0U);
}

TEST(ShelfRelay, who_repeats_what_was_answered_breaks_the_protocol) {
  Tree tree({1, 1});
  const wire::Declare x = declaration("x", kF32, 4);
  tree.sum(x, 0, inputs_of({floats({1}), floats({2})}));
  ShelfWorld& relay = *tree.relays[tree.leader(0, x, 0)];
  relay.push(0, "x", 0, floats({1}));
  EXPECT_EQ(relay.out.violations.size(), 1U);
  EXPECT_THAT(relay.out.answers, IsEmpty());
}

TEST(ShelfRelay, a_late_push_of_inputs_that_are_over_is_ignored) {
  Tree tree({1, 1});
  const wire::Declare x = declaration("x", kF32, 4);
  ShelfWorld& relay = *tree.relays[tree.leader(0, x, 0)];
  relay.declare(0, x);
  ShelfOutputs outputs;
  relay.shelf.begin_inputs(1, WorkerRank(1), outputs);
  relay.push(0, "x", 0, floats({1}));
  EXPECT_THAT(relay.out.violations, IsEmpty());
  EXPECT_THAT(relay.out.answers, IsEmpty());
}

TEST(ShelfRelay, the_answer_to_a_frame_has_the_room_that_the_frame_had) {
  ShelfSettings settings;
  settings.memory_bytes_max = 4096 + 4000;  // one frame, and the records
  const auto groups = std::make_shared<const Groups>(std::vector<std::uint64_t>{1, 1});
  ShelfWorld relay({Epoch(7), 2, placed(4096, 4096), groups, WorkerRank(0), true}, settings);
  wire::Declare x = declaration("x", kF32, 4096);
  while (leader_of({WorkerRank(0), WorkerRank(1)}, key_of(x.name), 0, 1) != WorkerRank(0)) {
    x.name += "x";
  }
  for (const std::uint32_t worker : {0, 1}) {
    relay.declare(worker, x);
    relay.push(worker, x.name, 0, filled(4096, 0));
  }
  ASSERT_EQ(relay.out.forwards.size(), 1U);
  const wire::Header header = relay.out.forwards[0].header;
  relay.out.forwards.clear();  // a batch lets go of it first
  ShelfOutputs outputs;
  relay.shelf.answered(header, filled(4096, 0), outputs);
  relay.out.add(std::move(outputs));
  EXPECT_THAT(relay.out.spoiled, IsEmpty());
  EXPECT_EQ(relay.out.answers.size(), 2U);
}

TEST(ShelfRelay, what_others_want_is_asked_of_those_who_have_not_contributed) {
  Tree tree({1, 1, 1, 2});
  const wire::Declare x = declaration("x", kF32, 4);
  ShelfWorld& relay = *tree.relays[tree.leader(0, x, 0)];
  const auto wanted = [&](Key key, std::uint32_t part) {
    ShelfOutputs outputs;
    relay.shelf.want(key, PartIndex(part), Round(0), 0, outputs);
    relay.out.add(std::move(outputs));
    return relay.wanted_workers();
  };
  EXPECT_THAT(wanted(key_of("x"), 0), ElementsAre(0, 1, 2)) << "nobody knows it here yet";
  relay.declare(1, x);
  EXPECT_THAT(wanted(key_of("x"), 1), IsEmpty()) << "it has no such part";
  EXPECT_THAT(wanted(key_of("x"), 0), ElementsAre(0, 1, 2));
  relay.push(1, "x", 0, floats({1}));
  EXPECT_THAT(wanted(key_of("x"), 0), ElementsAre(0, 2));
}

TEST(ShelfRelay, what_is_forwarded_is_not_asked_for_and_nobody_is_said_to_miss) {
  Tree tree({1, 1, 2});
  const wire::Declare x = declaration("x", kF32, 4);
  for (std::uint32_t rank = 0; rank < 2; ++rank) tree.push(rank, x, 0, {}, floats({1}));
  for (const auto& relay : tree.relays) {
    relay->tick(10 * kSecond);
    EXPECT_TRUE(relay->out.empty());
  }
  tree.push(2, x, 0, {}, floats({1}));
  EXPECT_EQ(tree.results(x).size(), 3U);
}

TEST(ShelfRelay, an_answer_that_nobody_waits_for_is_ignored) {
  Tree tree({1, 1, 2});
  const wire::Declare x = declaration("x", kF32, 4);
  tree.push(0, x, 0, {}, floats({1}));
  ShelfWorld& relay = *tree.relays[tree.leader(0, x, 0)];
  wire::Header header = relay.about(0, "x");
  header.kind = wire::Kind::kAnswer;
  ShelfOutputs outputs;
  relay.shelf.answered(header, floats({9}), outputs);  // nothing was forwarded
  header.round = Round(3);
  relay.shelf.answered(header, floats({9}), outputs);
  header.round = Round(0);
  header.part = PartIndex(7);
  relay.shelf.answered(header, floats({9}), outputs);
  header.part = PartIndex(0);
  header.offset_bytes = 640;
  relay.shelf.answered(header, floats({9}), outputs);
  EXPECT_TRUE(outputs.empty());
}

TEST(ShelfRelay,
     whatever_the_machines_kind_and_operation_sums_that_are_exact_are_those_of_one_level) {
  Prng prng(5);
  for (int world = 0; world < 300; ++world) {
    const auto worker_count = static_cast<std::uint32_t>(1 + prng.below(7));
    std::vector<std::uint64_t> machines;
    for (std::uint32_t rank = 0; rank < worker_count; ++rank) machines.push_back(prng.below(4));
    ShelfSettings settings;
    settings.deterministic = prng.chance(0.3);
    Tree tree(machines, settings);
    ShelfWorld flat(worker_count, kPartitionBytes, kFrameBytes, settings);
    const auto dtype = static_cast<DType>(prng.below(kDTypeCount));
    auto operation = static_cast<Operation>(prng.below(kOperationCount));
    if (dtype == DType::kBool && operation == Operation::kAverage) operation = Operation::kSum;
    wire::Declare tensor =
        declaration("t", dtype, element_bytes(dtype) * (1 + prng.below(200)), operation,
                    static_cast<std::uint32_t>(prng.below(worker_count)));
    std::map<std::uint32_t, Bytes> inputs;
    for (std::uint32_t rank = 0; rank < worker_count; ++rank) {
      for (std::uint64_t i = 0; i < tensor.element_count(); ++i) {
        append_number(inputs[rank], dtype, static_cast<double>(prng.below(3)));
      }
    }
    const auto results = tree.sum(tensor, 0, inputs);
    flat.declare_all(tensor);
    for (std::uint64_t start = 0; start < tensor.total_bytes; start += kFrameBytes) {
      const Place place{static_cast<std::uint32_t>(start / kPartitionBytes),
                        start % kPartitionBytes};
      const std::uint64_t end = std::min(start + kFrameBytes, tensor.total_bytes);
      for (const auto& [rank, input] : inputs) {
        const bool gives = tensor.gives(WorkerRank(rank));
        flat.push(rank, "t", 0,
                  gives ? Bytes(input.begin() + static_cast<std::ptrdiff_t>(start),
                                input.begin() + static_cast<std::ptrdiff_t>(end))
                        : Bytes(),
                  place, gives ? 0 : wire::kNoPayload);
      }
    }
    std::map<std::uint32_t, Bytes> expected;
    for (const ShelfOutput::Answer& answer : flat.take().answers) {
      Bytes& result = expected[answer.header.worker.value];
      if ((answer.header.flags & wire::kNoPayload) != 0) continue;
      result.resize(tensor.total_bytes);
      const Bytes payload = bytes_of(answer.payload());
      std::copy(payload.begin(), payload.end(),
                result.begin() + place_of(answer, *flat.facts.placement, tensor));
    }
    ASSERT_EQ(results, expected) << "world " << world << ": " << tensor.text();
  }
}

// ---- workers that are lost

TEST(RelayTree, an_average_and_the_record_are_of_those_that_are_in_as_relays_say) {
  Tree tree({1, 1, 2});
  wire::Declare tensor = declaration("mean", kF32, 64);
  tensor.operation = Operation::kAverage;
  const std::uint32_t leader = tree.leader(0, tensor, 0);
  tree.server.declare(leader, tensor);
  tree.server.declare(2, tensor);
  wire::Header header;
  header.kind = wire::Kind::kPush;
  header.epoch = Epoch(7);
  header.key = key_of(tensor.name);
  header.worker = WorkerRank(leader);
  header.lost = 0b10;  // worker 1
  const std::vector<float> six(16, 6.0F);
  tree.server.step(leader, header, std::as_bytes(std::span(six)));
  header.lost = 0b01;  // a relay that stands in repeats it: that is not taken, nor what it says
  tree.server.step(leader, header, std::as_bytes(std::span(six)));
  header.worker = WorkerRank(2);
  header.lost = 0;
  tree.server.step(2, header, std::as_bytes(std::span(six)));
  const Told told = tree.server.take();
  ASSERT_THAT(told.violations, IsEmpty());
  ASSERT_EQ(told.answers.size(), 2U);
  float first = 0;
  std::memcpy(&first, told.answers[0].payload().data(), sizeof first);
  EXPECT_EQ(first, 6.0F) << "12 of two workers, and not of three";
  ASSERT_EQ(told.absences.size(), 1U);
  EXPECT_EQ(told.absences[0].worker, WorkerRank(1));
  EXPECT_EQ(told.absences[0].since, Round(0));
}

TEST(RelayTree, a_relay_that_says_that_all_of_its_crew_are_lost_or_more_breaks_the_protocol) {
  Tree tree({1, 1, 2});
  const wire::Declare tensor = declaration("x", kF32, 64);
  const std::uint32_t leader = tree.leader(0, tensor, 0);
  tree.server.declare(leader, tensor);
  wire::Header header;
  header.kind = wire::Kind::kPush;
  header.epoch = Epoch(7);
  header.key = key_of(tensor.name);
  header.worker = WorkerRank(leader);
  for (const auto lost : {std::uint16_t{0b11}, std::uint16_t{0b100}}) {
    header.lost = lost;
    tree.server.step(leader, header, filled(64, 0));
    EXPECT_EQ(tree.server.take().violations.size(), 1U);
  }
}

}  // namespace
}  // namespace byteps
