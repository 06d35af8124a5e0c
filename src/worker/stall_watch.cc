#include "worker/stall_watch.h"

#include <utility>

namespace byteps {

StallWatch::Finding StallWatch::look(TimeNs now, std::uint64_t moved, TimeNs failure_ns) {
  if (now < next_look_ns_) return Finding::kNotYet;
  const TimeNs interval_ns = failure_ns / 6;
  stands_since_ns_ += now - next_look_ns_;  // while this process stood still nothing could move
  next_look_ns_ = now + interval_ns;
  if (std::exchange(moved_, moved) != moved) {
    stands_since_ns_ = now;
    return Finding::kMoves;
  }
  const TimeNs stands_ns = now - stands_since_ns_;
  if (patience_ns_ == 0 || stands_ns < patience_ns_) return Finding::kStands;
  // Until then the scheduler says who waits for whom, if all workers wait.
  const TimeNs verdict_ns = failure_ns + 2 * interval_ns;
  return stands_ns < patience_ns_ + verdict_ns ? Finding::kImpatient : Finding::kOver;
}

}  // namespace byteps
