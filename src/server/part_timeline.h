// PartTimeline: when a part of the shelf got its contributions and was summed, in the rounds that are recorded
// (base/timeline.h). Made with the part's record when there is a timeline; the clock is read here.
//
// A part's workers are told apart by its first frame: each sends it first. Summing is measured for every
// kMeasuredEvery-th frame, because reading the clock twice for each would cost more than 1 % of it.
#pragma once

#include <cstdint>

#include "base/ids.h"
#include "base/time.h"
#include "base/timeline.h"

namespace byteps {

class PartTimeline {
 public:
  static constexpr std::uint32_t kMeasuredEvery = 8;

  PartTimeline(TimelineLane& lane, Key key, PartIndex part, std::uint64_t bytes,
               std::uint32_t frame_count)
      : lane_(lane), key_(key), part_(part), bytes_(bytes), frame_count_(frame_count) {}

  // Before a contribution is added: what on_added() wants to have back.
  TimeNs begin(Round round, std::uint32_t frame) const {
    const bool measured = frame % kMeasuredEvery == 0 && lane_.timeline().traces(round);
    return measured ? lane_.timeline().now() : 0;
  }
  void on_added(WorkerRank from, std::uint32_t frame, TimeNs begun_ns);
  // The last contribution to a frame is in; its answers are given, or, at a relay before servers, it is handed on to
  // them. After the part's last frame the record is complete.
  void on_frame_summed(Round round);
  // At such a relay: the answer to a frame came from its server; its answers to the workers here are given. After the
  // part's last frame there is a second record.
  void on_frame_returned(Round round);
  void on_frame_spread(Round round);

 private:
  // constant
  TimelineLane& lane_;
  const Key key_;
  const PartIndex part_;
  const std::uint64_t bytes_;
  const std::uint32_t frame_count_;

  // the round being summed
  TimelineRecord record_{};
  TimeNs added_ns_ = 0;  // when the last measured frame was; 0: other frames came after it
  std::uint32_t summed_frames_ = 0;
  TimeNs first_returned_ns_ = 0;
  std::uint32_t spread_frames_ = 0;
};

}  // namespace byteps
