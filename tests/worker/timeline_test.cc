// Here each look at the clock takes a microsecond, so the times say in which order it was looked at.
#include "worker/timeline.h"

#include <memory>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace byteps {
namespace {

using At = TimelineRecord::At;

class WorkerTimelineTest : public testing::Test {
 protected:
  WorkerTimelineTest() {
    tensor_.key = key_of("w");
    tensor_.name = "w";
    tensor_.spec.total_bytes = 640;
    tensor_.round = Round(5);
    tensor_.parts.resize(2);
    tensor_.parts[1].shard = ShardIndex(3);
  }
  void start() {
    for (PartState& part : tensor_.parts) {
      part.begin_round();
    }
    recorder_.on_started(0, tensor_, 700);
  }
  void send(std::uint32_t part, bool last) {
    if (last) tensor_.parts[part].next_frame = tensor_.parts[part].frame_count;
    recorder_.on_sent(0, tensor_, part);
  }
  void answer(std::uint32_t part, bool last) {
    ++tensor_.parts[part].answered_frames;
    recorder_.on_answered(0, tensor_, part);
    if (last) recorder_.on_part_done(0, tensor_, part);
  }

  TimeNs now_ = 0;
  Timeline timeline_{Round(5), Round(6), [this] { return now_ += kMicrosecond; }};
  TimelineLane& lane_ = timeline_.open_lane();
  WorkerTimeline recorder_{lane_};
  Tensor tensor_;
};

TEST_F(WorkerTimelineTest, a_part_has_the_times_of_its_first_and_last_frames) {
  tensor_.parts[1].frame_count = 3;
  start();
  send(1, false);
  send(1, false);  // the clock is not asked
  answer(1, false);
  send(1, true);
  answer(1, false);
  answer(1, true);
  ASSERT_EQ(lane_.records().size(), 1U);
  const TimelineRecord& record = lane_.records()[0];
  EXPECT_EQ(record.kind, TimelineRecord::Kind::kPart);
  EXPECT_EQ(record.key, key_of("w").value);
  EXPECT_EQ(record.part, 1U);
  EXPECT_EQ(record.round, 5U);
  EXPECT_EQ(record.shard, 3U);
  EXPECT_THAT(record.at_ns, testing::ElementsAre(700, 1000, 3000, 2000, 4000));
  EXPECT_EQ(timeline_.facts().names.at(tensor_.key), "w");
}

TEST_F(WorkerTimelineTest, a_part_of_one_frame_looks_at_the_clock_twice) {
  start();
  send(0, true);
  answer(0, true);
  EXPECT_THAT(lane_.records()[0].at_ns, testing::ElementsAre(700, 1000, 1000, 2000, 2000));
}

TEST_F(WorkerTimelineTest, a_part_that_is_sent_again_keeps_its_first_times) {
  tensor_.parts[0].frame_count = 2;
  start();
  send(0, false);
  send(0, true);
  answer(0, false);
  tensor_.parts[0].next_frame = 0;  // the connection was lost
  send(0, false);
  send(0, true);
  answer(0, true);
  EXPECT_THAT(lane_.records()[0].at_ns, testing::ElementsAre(700, 1000, 4000, 3000, 5000));
}

TEST_F(WorkerTimelineTest,
       a_relays_part_is_queued_when_it_has_a_frame_and_sent_when_it_has_no_more) {
  TimelineLane& lane = timeline_.open_lane(Recorder::kRelay);
  WorkerTimeline recorder(lane);
  tensor_.parts[0].frame_count = 2;
  recorder.on_started(0, tensor_, 700);
  now_ += kMillisecond;  // it waits for its workers
  recorder.on_queued(0, tensor_, 0);
  for (const std::uint32_t sent_frames : {1U, 2U}) {
    tensor_.parts[0].next_frame =
        sent_frames;  // each is sent as it comes: none waits at the gate then
    recorder.on_sent(0, tensor_, 0);
    recorder.on_queued(0, tensor_, 0);  // again, after a connection was lost: the first time counts
  }
  tensor_.parts[0].answered_frames = 2;
  recorder.on_answered(0, tensor_, 0);
  recorder.on_part_done(0, tensor_, 0);
  constexpr TimeNs kReady = kMillisecond + kMicrosecond;
  EXPECT_THAT(lane.records()[0].at_ns, testing::ElementsAre(kReady, kReady + 1000, kReady + 2000,
                                                            kReady + 3000, kReady + 3000));
}

TEST_F(WorkerTimelineTest, a_workers_part_is_queued_when_its_round_begins) {
  start();
  recorder_.on_queued(0, tensor_, 0);
  EXPECT_EQ(now_, 0) << "no look at the clock";
  send(0, true);
  answer(0, true);
  EXPECT_EQ(lane_.records()[0].at_ns[At::kQueued], 700);
}

TEST_F(WorkerTimelineTest, the_operation_lasts_from_its_submission_to_its_end) {
  start();
  send(0, true);
  answer(0, true);
  recorder_.on_done(0, tensor_, 500);
  const TimelineRecord& record = lane_.records()[1];
  EXPECT_EQ(record.kind, TimelineRecord::Kind::kOperation);
  EXPECT_EQ(record.bytes, 640U);
  EXPECT_EQ(record.at_ns[At::kSubmitted], 500);
  EXPECT_EQ(record.at_ns[At::kStarted], 700);
  EXPECT_EQ(record.at_ns[At::kDone], 2000);
}

TEST_F(WorkerTimelineTest, other_rounds_cost_no_look_at_the_clock) {
  for (const std::uint32_t round : {4U, 7U}) {
    tensor_.round = Round(round);
    start();
    send(0, true);
    answer(0, true);
    recorder_.on_done(0, tensor_, 500);
  }
  EXPECT_EQ(now_, 0);
  EXPECT_TRUE(lane_.records().empty());
}

TEST_F(WorkerTimelineTest, a_round_forgets_the_times_of_the_one_before) {
  start();
  send(0, true);
  answer(0, true);
  tensor_.round = Round(6);
  start();
  send(0, true);
  answer(0, true);
  EXPECT_THAT(lane_.records()[1].at_ns, testing::ElementsAre(2000, 3000, 3000, 4000, 4000));
}

TEST_F(WorkerTimelineTest, a_coded_part_says_when_its_frames_were_coded_and_for_how_long) {
  tensor_.codes = std::make_unique<Codes>(
      Codes{.kernels = coding_kernels_for(Format::kInt8, Codec(), best_kernels()), .frames = {}});
  start();
  recorder_.on_encoded(0, tensor_, 1, 300);
  recorder_.on_encoded(0, tensor_, 1, 0);  // sent again: coded before
  recorder_.on_encoded(0, tensor_, 1, 200);
  send(1, true);
  recorder_.on_decoded(0, tensor_, 1, 100);
  answer(1, true);
  ASSERT_EQ(lane_.records().size(), 2U);
  const TimelineRecord& record = lane_.records()[1];
  EXPECT_EQ(record.kind, TimelineRecord::Kind::kCoding);
  EXPECT_EQ(record.part, 1U);
  EXPECT_EQ(record.busy_ns, 500);
  EXPECT_THAT(record.at_ns, testing::ElementsAre(700, 2000, 3900, 4000, 100));
}

TEST_F(WorkerTimelineTest, a_part_that_is_not_coded_says_nothing_of_coding) {
  start();
  recorder_.on_decoded(0, tensor_, 0, 0);
  send(0, true);
  answer(0, true);
  EXPECT_EQ(lane_.records().size(), 1U);
  EXPECT_EQ(now_, 2000) << "no further look at the clock";
}

}  // namespace
}  // namespace byteps
