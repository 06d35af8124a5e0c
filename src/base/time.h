// Time is an argument: cores receive `now` and never ask. Only src/loop reads a clock.
#pragma once

#include <cstdint>
#include <limits>

namespace byteps {

// Nanoseconds of a clock that never goes back; its zero is arbitrary.
using TimeNs = std::int64_t;

inline constexpr TimeNs kMicrosecond = 1'000;
inline constexpr TimeNs kMillisecond = 1'000'000;
inline constexpr TimeNs kSecond = 1'000'000'000;
inline constexpr TimeNs kNever = std::numeric_limits<TimeNs>::max();

// Reads it, to measure how long something took: that decides nothing. Null: nothing is measured.
using Stopwatch = TimeNs (*)();

}  // namespace byteps
