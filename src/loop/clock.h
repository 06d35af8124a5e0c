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

}  // namespace byteps
