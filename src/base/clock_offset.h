// ClockOffset: how far another process's clock is ahead of ours, from questions and answers that carry times (as NTP
// does, RFC 5905 section 8, with an answer that is sent as soon as the question is read).
//
//   we ask at `asked`, they read it at `theirs`, we have the answer at `answered`
//   offset = theirs - (asked + answered) / 2;   it is wrong by at most (answered - asked) / 2
//
// The sample with the smallest possible error counts. Clocks drift apart, so that error grows with the sample's age,
// by kDriftPerSecond: a worse but younger sample takes its place in the end.
#pragma once

#include <optional>

#include "base/time.h"

namespace byteps {

class ClockOffset {
 public:
  static constexpr TimeNs kDriftPerSecond = 50 * kMicrosecond;

  struct Estimate {
    TimeNs offset_ns = 0;  // add it to our time to get theirs
    TimeNs error_ns = 0;   // at most so far from the truth, when it was measured
    TimeNs measured_ns = 0;
  };

  // Nonsense (answered before asked) is ignored.
  void sample(TimeNs asked_ns, TimeNs theirs_ns, TimeNs answered_ns);
  const std::optional<Estimate>& best() const { return best_; }

 private:
  std::optional<Estimate> best_;
};

}  // namespace byteps
