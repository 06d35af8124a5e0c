// When it is proven that no worker can go on, and what people are told.
#include "scheduler/stall.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/scheduler/table.h"

namespace byteps {
namespace {

using ::testing::HasSubstr;
using Kind = wire::Kind;

wire::Awaited tensor(const std::string& name, std::uint64_t round = 0) {
  return {name, key_of(name), round};
}
wire::Awaited barrier(std::uint64_t number) {
  return {"", Key(), number};
}
wire::NotBegun missing(const std::string& name, std::uint64_t round = 0) {
  return {key_of(name), round};
}

std::string text(const std::vector<wire::Stalled>& reports,
                 const std::set<std::uint32_t>& arrived = {}, std::uint64_t number = 0) {
  std::vector<StalledWorker> workers;
  for (const wire::Stalled& report : reports) {
    workers.push_back({static_cast<std::uint32_t>(workers.size()), &report});
  }
  return stall_text(workers, arrived, number);
}

TEST(Stall, is_proven_when_each_waits_for_what_another_has_not_begun) {
  EXPECT_EQ(text({{{tensor("A")}, {missing("B")}}, {{tensor("B")}, {missing("A")}}}),
            "all workers wait, and none can go on: tensor \"A\" was submitted by worker 0, but not "
            "by worker 1; tensor \"B\" was submitted by worker 1, but not by worker 0. All ranks "
            "must submit the same tensors");
}

TEST(Stall, is_not_proven_while_one_waits_for_nothing_or_for_what_all_have_begun) {
  EXPECT_EQ(text({{{tensor("A")}, {}}, {{}, {missing("A")}}}), "");
  EXPECT_EQ(text({{{tensor("A")}, {missing("B")}}, {{tensor("B"), tensor("C")}, {missing("A")}}}),
            "")
      << "C may still end";
  EXPECT_EQ(text({{{tensor("A", 1)}, {}}, {{tensor("B")}, {missing("A", 0)}}}), "")
      << "another round of A";
  EXPECT_EQ(text({}), "");
}

TEST(Stall, counts_the_uses_of_a_name_and_names_all_ranks) {
  const std::string said = text({{{tensor("A", 2)}, {missing("B")}},
                                 {{tensor("B")}, {missing("A", 2)}},
                                 {{tensor("A", 2)}, {missing("B")}}});
  EXPECT_THAT(said, HasSubstr("tensor \"A\" was submitted 3 times by workers 0 and 2, but not by "
                              "worker 1"));
  EXPECT_THAT(said,
              HasSubstr("tensor \"B\" was submitted by worker 1, but not by workers 0 and 2"));
}

TEST(Stall, knows_who_has_come_to_the_barrier) {
  const std::vector<wire::Stalled> reports = {{{tensor("A")}, {}}, {{barrier(4)}, {missing("A")}}};
  EXPECT_THAT(text(reports, {1}, 4),
              HasSubstr("a barrier was reached by worker 1, but not by worker 0"));
  EXPECT_EQ(text(reports, {0, 1}, 4), "") << "all are there";
  EXPECT_EQ(text(reports, {1}, 5), "") << "that one is over";
}

TEST(Stall, knows_who_still_has_inputs) {
  const wire::Awaited end{"", wire::kInputsKey, 3};
  EXPECT_EQ(text({{{end}, {}}, {{barrier(4)}, {}}, {{end}, {}}}, {1}, 4),
            "all workers wait, and none can go on: a barrier was reached by worker 1, but not by "
            "workers 0 and 2; the end of inputs (join) was reached by workers 0 and 2, but not by "
            "worker 1. All ranks must submit the same tensors");
  EXPECT_EQ(text({{{end}, {}}, {{end}, {}}}), "") << "all have said so";
  EXPECT_EQ(text({{{end}, {}}, {{tensor("A")}, {}}}), "") << "A does not need worker 0";
}

TEST(Stall, lists_few_of_many_and_makes_names_fit_for_a_terminal) {
  wire::Stalled zero, one;
  for (int i = 0; i < 20; ++i) {
    zero.awaited.push_back(tensor("t\x1b" + std::to_string(i)));
    one.not_begun.push_back(missing("t\x1b" + std::to_string(i)));
  }
  one.awaited = {tensor("u")};
  zero.not_begun = {missing("u")};
  const std::string said = text({zero, one});
  EXPECT_THAT(said, HasSubstr("tensor \"t?0\""));
  EXPECT_THAT(said, HasSubstr("; and 13 more"));
}

class StallTest : public ::testing::Test {
 protected:
  void say(PeerId worker, const wire::Stalled& report, std::uint32_t epoch = 1) {
    job.table.say(worker, Kind::kStalled, wire::encode(report), Epoch(epoch));
  }
  RunningJob job;
  const wire::Stalled zero = {{tensor("A")}, {missing("B")}};
  const wire::Stalled one = {{tensor("B")}, {missing("A")}};
};

TEST_F(StallTest, ends_the_job_when_it_has_lasted_for_the_failure_timeout) {
  say(job.worker0, zero);
  job.table.pass(10 * kSecond, job.all(), 1);
  say(job.worker1, one);
  EXPECT_EQ(job.table.keeper().next_deadline(), job.table.now() + 500 * kMillisecond);
  job.table.pass(2900 * kMillisecond, job.all(), 1);
  EXPECT_EQ(job.table.keeper().phase(), RosterKeeper::Phase::kRunning);
  job.table.pass(100 * kMillisecond, job.all(), 1);
  for (const PeerId peer : job.all()) {
    EXPECT_EQ(job.table.code_to(peer), Code::kMismatch);
    EXPECT_THAT(job.table.text_to(peer, Kind::kFail), HasSubstr("tensor \"A\" was submitted by"));
  }
}

TEST_F(StallTest, that_ends_in_time_is_forgotten) {
  say(job.worker0, zero);
  say(job.worker1, one);
  job.table.pass(2 * kSecond, job.all(), 1);
  say(job.worker1, {});
  job.table.pass(10 * kSecond, job.all(), 1);
  EXPECT_EQ(job.table.keeper().phase(), RosterKeeper::Phase::kRunning);
}

TEST_F(StallTest, begins_anew_with_each_report) {
  say(job.worker0, zero);
  say(job.worker1, one);
  job.table.pass(2 * kSecond, job.all(), 1);
  say(job.worker1, {{tensor("B"), tensor("C")}, {missing("A")}});
  say(job.worker0, {{tensor("A")}, {missing("B"), missing("C")}});
  job.table.pass(2 * kSecond, job.all(), 1);
  EXPECT_EQ(job.table.keeper().phase(), RosterKeeper::Phase::kRunning);
}

TEST_F(StallTest, ends_without_a_word_when_the_barrier_is_reached_meanwhile) {
  job.table.barrier(job.worker1, 0);
  say(job.worker0, {{tensor("A")}, {}});
  say(job.worker1, {{barrier(0)}, {missing("A")}});
  job.table.pass(2 * kSecond, job.all(), 1);
  job.table.barrier(job.worker0, 0);
  job.table.pass(2 * kSecond, job.all(), 1);
  EXPECT_EQ(job.table.keeper().phase(), RosterKeeper::Phase::kRunning);
}

TEST_F(StallTest, does_not_count_those_who_have_left_or_another_epoch) {
  say(job.worker0, zero, 0);
  say(job.worker1, one);
  job.table.leave(job.worker0, 0, true);
  job.table.pass(4 * kSecond, job.all(), 1);
  EXPECT_EQ(job.table.keeper().phase(), RosterKeeper::Phase::kRunning)
      << "what misses a worker that left ends at the workers";
}

TEST_F(StallTest, is_for_workers_to_report) {
  say(job.server, zero);
  EXPECT_TRUE(job.table.closed(job.server));
  job.table.say(job.worker0, Kind::kStalled, {std::byte{1}}, Epoch(1));
  EXPECT_TRUE(job.table.closed(job.worker0));
}

}  // namespace
}  // namespace byteps
