// A jump of xorshift128+. Its step M is linear over GF(2), so there is a polynomial p of degree 128 with p(M) = 0, and
// M^n is x^n modulo p, of M: the state after n steps is a sum of the first 128 states (Haramoto et al. 2008).
#include "kernels/part_draws.h"

#include <bit>

namespace byteps {
namespace {

constexpr std::uint64_t kTop = std::uint64_t{1} << 63;

// A polynomial over GF(2) modulo p: bit i is the coefficient of x^i.
struct Residue {
  std::uint64_t low = 1;
  std::uint64_t high = 0;

  void times_x() {
    const bool is_beyond = (high & kTop) != 0;
    high = high << 1 | low >> 63;
    low <<= 1;
    if (!is_beyond) return;
    low ^= 0xbd82fd40e01730f9;  // p without x^128
    high ^= 0x01f9f801f6fd0098;
  }
  // Its square has the coefficients of even powers: by Horner's rule from the highest one down.
  void square() {
    Residue squared = {0, 0};
    for (int i = 127; i >= 0; --i) {
      squared.times_x();
      squared.times_x();
      squared.low ^= (i < 64 ? low >> i : high >> (i - 64)) & 1;
    }
    *this = squared;
  }
};

Residue power_of_x(std::uint64_t steps) {
  Residue power;
  for (int bit = static_cast<int>(std::bit_width(steps)) - 1; bit >= 0; --bit) {
    power.square();
    if ((steps >> bit & 1) != 0) power.times_x();
  }
  return power;
}

}  // namespace

PartDraws PartDraws::seeded(std::uint64_t seed, std::uint64_t drawn) {
  Xorshift state = {seed, seed};
  const Residue power = power_of_x(drawn);
  Xorshift found;
  for (int i = 0; i < 128; ++i) {
    const std::uint64_t is_in = (i < 64 ? power.low >> i : power.high >> (i - 64)) & 1;
    found.first ^= state.first & (0 - is_in);
    found.second ^= state.second & (0 - is_in);
    state.step();
  }
  return {found.first, found.second, true};
}

}  // namespace byteps
