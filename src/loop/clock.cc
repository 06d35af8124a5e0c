#include "loop/clock.h"

#include <ctime>

namespace byteps {
namespace {

TimeNs read_clock(clockid_t id) {
  timespec time{};
  clock_gettime(id, &time);
  return static_cast<TimeNs>(time.tv_sec) * kSecond + time.tv_nsec;
}

}  // namespace

TimeNs MonotonicClock::now() {
  return monotonic_now();
}

TimeNs monotonic_now() {
  return read_clock(CLOCK_MONOTONIC);
}

TimeNs wall_clock_now() {
  return read_clock(CLOCK_REALTIME);
}

}  // namespace byteps
