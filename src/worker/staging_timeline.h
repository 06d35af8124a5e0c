// StagingTimeline: when a part of a tensor on a device had its stream, its slab and its copies, for the rounds that are
// recorded (base/timeline.h). The clock is read here, and only for such rounds.
#pragma once

#include <cstdint>

#include "base/ids.h"
#include "base/time.h"
#include "base/timeline.h"

namespace byteps {

class StagingTimeline {
 public:
  // What a part has seen; 0: not yet.
  struct Times {
    TimeNs entered_ns = 0;
    TimeNs ready_ns = 0;
    TimeNs lent_ns = 0;
    TimeNs first_out_ns = 0;
    TimeNs first_in_ns = 0;
  };
  struct Whose {
    Key key;
    Round round;
    std::uint32_t part = 0;
    std::uint64_t bytes = 0;
  };

  StagingTimeline() = default;  // nothing is recorded
  explicit StagingTimeline(TimelineLane* lane) : lane_(lane) {}

  // It is now, if the round is recorded; the first time counts.
  void mark(Round round, TimeNs& time) const {
    if (traces(round) && time == 0) time = lane_->timeline().now();
  }
  // The part's last chunk is in host memory, or, when it gives nothing, it has its slab.
  void on_out(const Whose& whose, const Times& times) const;
  // The part's last chunk is on the device.
  void on_in(const Whose& whose, const Times& times) const;

 private:
  bool traces(Round round) const { return lane_ != nullptr && lane_->timeline().traces(round); }

  TimelineLane* lane_ = nullptr;
};

}  // namespace byteps
