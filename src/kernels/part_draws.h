// The random numbers of a part: what randomk chooses its places with, and dithering whether it rounds up. They follow
// from where and when they are drawn, so nothing of them is kept: whoever codes or decodes a round anew draws the same.
//
// With a seed: xorshift128+ (Vigna 2014) with the shifts 23, 17 and 26, from the state {seed, seed}, which runs on from
// round to round: where so many were drawn before, its state is found by a jump (part_draws.cc). From the seed 0 it
// yields zeros only, as the original's does.
//
// Without one: splitmix64 from a hash of key, part, round and rank, so that the number of an element follows from these
// and its index. randomk leaves out the rank: all ranks choose the same places.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/ids.h"
#include "base/prng.h"

namespace byteps {

// Where and when. The streams of two parts, and of two ranks, have nothing in common.
struct PartPlace {
  Key key;
  PartIndex part;
  Round round;
  std::uint32_t rank = kNoRank;  // of the worker; kNoRank: a server
};

struct Xorshift {
  std::uint64_t first = 0;
  std::uint64_t second = 0;
  void step() {
    std::uint64_t mixed = first;
    first = second;
    mixed ^= mixed << 23;
    mixed ^= mixed >> 17;
    second = (mixed ^ first) ^ (first >> 26);
  }
};

class PartDraws {
 public:
  PartDraws() = default;
  // So many were drawn before. It takes some microseconds.
  static PartDraws seeded(std::uint64_t seed, std::uint64_t drawn);
  static PartDraws counted(const PartPlace& place) {
    std::uint64_t mixed = stable_mix(place.key.value + kStep);
    mixed = stable_mix(mixed ^ (std::uint64_t{place.part.value} << 32 | place.round.value));
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
    Xorshift state = {first_, second_};  // in registers
    for (std::uint64_t& each : numbers) {
      state.step();
      each = state.second + state.first;
    }
    first_ = state.first;
    second_ = state.second;
  }

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
