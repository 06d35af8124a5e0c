// The random numbers of a part: what randomk chooses its places with, and dithering whether it rounds up.
//
// With a seed: xorshift128+ (Vigna 2014) with the shifts 23, 17 and 26, from the state {seed, seed}. It runs on from
// round to round. From the seed 0 it yields zeros only, as the original's does.
//
// Without one: splitmix64 from a hash of key, part, round and rank, so that the number of an element follows from these
// and its index. randomk leaves out the rank: all ranks choose the same places.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/ids.h"
#include "base/prng.h"

namespace byteps {

// Whose numbers: the streams of two parts, and of two ranks, have nothing in common.
struct PartPlace {
  Key key;
  PartIndex part;
  std::uint32_t rank = 0;  // of the worker; a server takes kNoRank
};

class PartDraws {
 public:
  PartDraws() = default;
  static PartDraws seeded(std::uint64_t seed) { return PartDraws(seed, seed, true); }
  static PartDraws counted(const PartPlace& place, Round round) {
    std::uint64_t mixed = stable_mix(place.key.value + kStep);
    mixed = stable_mix(mixed ^ (std::uint64_t{place.part.value} << 32 | round.value));
    return PartDraws(stable_mix(mixed + kStep * place.rank), 0, false);
  }

  // The next ones, in their order.
  void fill(std::span<std::uint64_t> numbers) {
    if (!runs_on_) {
      Prng prng(first_);
      for (std::uint64_t& each : numbers) each = prng.next();
      first_ += kStep * numbers.size();
      return;
    }
    std::uint64_t first = first_;
    std::uint64_t second = second_;
    for (std::uint64_t& each : numbers) {
      std::uint64_t mixed = first;
      first = second;
      mixed ^= mixed << 23;
      mixed ^= mixed >> 17;
      second = (mixed ^ first) ^ (first >> 26);
      each = second + first;
    }
    first_ = first;
    second_ = second;
  }

  // Where those of a seed are, to go on from there. Without a seed there is nothing to keep.
  using Saved = std::array<std::uint64_t, 2>;
  Saved saved() const { return {first_, second_}; }
  static PartDraws restored(const Saved& saved) { return PartDraws(saved[0], saved[1], true); }

  bool operator==(const PartDraws&) const = default;

 private:
  static constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15ULL;  // of splitmix64

  PartDraws(std::uint64_t first, std::uint64_t second, bool runs_on)
      : first_(first), second_(second), runs_on_(runs_on) {}

  std::uint64_t first_ = 0;  // of xorshift128+; or the state of splitmix64
  std::uint64_t second_ = 0;
  bool runs_on_ = false;
};

}  // namespace byteps
