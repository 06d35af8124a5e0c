#include "loop/clock.h"

#include <ctime>

namespace byteps {

TimeNs MonotonicClock::now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<TimeNs>(time.tv_sec) * kSecond + time.tv_nsec;
}

}  // namespace byteps
