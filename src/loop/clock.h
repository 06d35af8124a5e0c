// Clock: the only place where time is read. Cores receive `now` as an argument.
#pragma once

#include "base/time.h"

namespace byteps {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimeNs now() = 0;  // any thread
};

// CLOCK_MONOTONIC.
class MonotonicClock final : public Clock {
 public:
  TimeNs now() override;
};

// The same, as a stopwatch.
TimeNs monotonic_now();

// Nanoseconds since 1970, for people and for comparing machines; it may jump.
TimeNs wall_clock_now();

}  // namespace byteps
