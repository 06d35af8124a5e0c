// Prng: the only source of randomness. It is passed in, so that a seed replays a run exactly.
#pragma once

#include <cstdint>

#include "base/ids.h"

namespace byteps {

// splitmix64 (Steele, Lea, Flood 2014): 64 bits a step, any seed is good.
class Prng {
 public:
  explicit Prng(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() { return stable_mix(state_ += 0x9e3779b97f4a7c15ULL); }
  // Uniform in [0, bound); bound must be above 0. The bias is below bound / 2^64.
  std::uint64_t below(std::uint64_t bound) {
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::uint64_t>((static_cast<Wide>(next()) * bound) >> 64);
  }
  // True with this probability.
  bool chance(double probability) {
    return static_cast<double>(next() >> 11) * 0x1.0p-53 < probability;
  }
  // A generator of its own for a part of the run, so that parts do not disturb each other.
  Prng split() { return Prng(next()); }

 private:
  std::uint64_t state_;
};

}  // namespace byteps
