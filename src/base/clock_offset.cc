#include "base/clock_offset.h"

namespace byteps {

void ClockOffset::sample(TimeNs asked_ns, TimeNs theirs_ns, TimeNs answered_ns) {
  if (answered_ns < asked_ns) return;
  const TimeNs error_ns = (answered_ns - asked_ns) / 2;
  if (best_) {
    const TimeNs age_ns = answered_ns - best_->measured_ns;
    const TimeNs aged_error_ns = best_->error_ns + age_ns / (kSecond / kDriftPerSecond);
    if (error_ns > aged_error_ns) return;
  }
  best_ = Estimate{theirs_ns - (asked_ns + error_ns), error_ns, answered_ns};
}

}  // namespace byteps
