// One round at a relay: which frames can go on.
#include "relay/batch.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace byteps {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr std::uint64_t kFrameBytes = 64;

class BatchTest : public testing::Test, protected Batch::Listener {
 protected:
  // A frame whose bytes are all this number.
  void put(std::uint32_t part, std::uint32_t frame, int number, std::size_t bytes = kFrameBytes) {
    BufferRef buffer;
    if (bytes > 0) {
      buffer = pool_.take(bytes);
      std::ranges::fill(buffer.span(), static_cast<std::byte>(number));
    }
    batch_.put(PartIndex(part), frame * kFrameBytes, std::move(buffer), bytes);
  }
  std::size_t bytes_of(std::uint32_t part, std::uint32_t frame) const {
    return batch_.frame(part, frame).size();
  }
  void answer(std::uint32_t part, std::uint64_t frame) {
    wire::Header header;
    header.part = PartIndex(part);
    header.offset_bytes = frame * kFrameBytes;
    batch_.answered(header, std::vector<std::byte>(3));
  }
  void answered(const wire::Header& header, std::span<const std::byte> payload) override {
    answers_.push_back(header.part.value);
    EXPECT_EQ(payload.size(), 3U);
  }

  BufferPool pool_;
  const Placement placement_{4 * kFrameBytes, kFrameBytes, {1, 1}};
  const Crew crew_{WorkerRank(0), WorkerRank(2), WorkerRank(3)};
  const Key key_ = key_of("t");
  // Three parts of four frames.
  Batch batch_{*this,
               placement_,
               {.key = key_, .extent = 12 * kFrameBytes, .crew = crew_, .self = crew_[1]},
               Round(5)};
  std::vector<std::uint32_t> answers_;
};

TEST_F(BatchTest, frames_are_ready_from_the_first_on_without_a_gap) {
  EXPECT_EQ(batch_.ready_frames(0), 0U);
  put(0, 1, 11);
  put(0, 3, 13);
  EXPECT_EQ(batch_.ready_frames(0), 0U);
  EXPECT_FALSE(batch_.has_ready_frames());
  put(0, 0, 10);
  EXPECT_EQ(batch_.ready_frames(0), 2U);
  EXPECT_TRUE(batch_.has_ready_frames());
  put(0, 2, 12);
  EXPECT_EQ(batch_.ready_frames(0), 4U);
  EXPECT_EQ(batch_.ready_frames(1), 0U) << "parts are by themselves";
  for (std::uint32_t frame = 0; frame < 4; ++frame) {
    ASSERT_EQ(bytes_of(0, frame), kFrameBytes);
    EXPECT_EQ(batch_.frame(0, frame)[0], static_cast<std::byte>(10 + frame));
  }
}

TEST_F(BatchTest, a_frame_has_the_bytes_that_it_came_with_also_none) {
  put(2, 1, 1, 8);
  put(2, 0, 1, 0);
  EXPECT_EQ(batch_.ready_frames(2), 2U);
  EXPECT_EQ(bytes_of(2, 0), 0U) << "nobody here has something to give";
  EXPECT_EQ(bytes_of(2, 1), 8U);
}

TEST_F(BatchTest, of_each_part_one_relay_of_the_crew_leads) {
  int led = 0;
  for (std::uint32_t part = 0; part < 30; ++part) {
    EXPECT_EQ(batch_.leads(part), leader_of(crew_, key_, part, 2) == crew_[1]);
    led += batch_.leads(part) ? 1 : 0;
  }
  EXPECT_EQ(led, 10);
}

TEST_F(BatchTest, hands_answers_on_and_gives_the_memory_of_a_frame_back) {
  for (std::uint32_t frame = 0; frame < 3; ++frame) put(1, frame, 1);
  answer(1, 1);
  EXPECT_THAT(answers_, ElementsAre(1));
  EXPECT_EQ(pool_.lent_bytes(), 2 * kFrameBytes);
  EXPECT_EQ(bytes_of(1, 0), kFrameBytes) << "it may have to be sent again";
  EXPECT_EQ(batch_.ready_frames(1), 3U);
}

TEST_F(BatchTest, keeps_what_a_transport_may_read_still) {
  put(0, 0, 1);
  put(0, 1, 1);
  put(1, 0, 1);
  batch_.on_lent(0);
  batch_.on_lent(0);
  answer(0, 0);
  answer(1, 0);
  EXPECT_EQ(pool_.lent_bytes(), 2 * kFrameBytes) << "it has nothing of the other part";
  batch_.on_given_back(0);
  EXPECT_EQ(pool_.lent_bytes(), 2 * kFrameBytes) << "which of both is not known";
  batch_.on_given_back(0);
  EXPECT_EQ(pool_.lent_bytes(), kFrameBytes) << "that is not answered";
  answer(0, 1);
  EXPECT_EQ(pool_.lent_bytes(), 0U);
}

}  // namespace
}  // namespace byteps
