// The arithmetic of a sum: the contributions to a frame go into an accumulator, the answer comes out of it.
//
//   const KernelSet set = best_kernels();                // once per process: asks the CPU
//   const SumKernels kernels = kernels_for(dtype, set);  // once per tensor
//   kernels.load(accumulator, first);                    // the first contribution
//   kernels.add(accumulator, second);                    // each further one
//   kernels.finish(output, accumulator, divisor);        // the answer
//
// What is computed, by every set of kernels alike, bit for bit:
//
//   element            accumulator  add                  finish with divisor n > 1
//   float32, float64   the same     IEEE addition        x / n, rounded once
//   float16, bfloat16  float32      addition in float32  x / n in float32, then rounded to the element
//   integers           the same     wraps modulo 2^bits  floor(x / n): -1 averaged over 2 is -1
//   bool               a byte 0/1   logical or           n is ignored
//
// Every rounding is to nearest, ties to even; infinities, signed zeros and subnormals are as IEEE 754 says,
// and what is too large for the element becomes infinity. NaN gives NaN; when two NaN are added, whose
// payload survives is not specified. The result of a float sum depends on the order of add() calls; to
// choose that order is the caller's business.
//
// Memory: spans may begin at any byte address, hold any number of whole elements, none included, and
// nothing outside them is read or written. They may not overlap, but for finish() in place. No function
// here keeps anything: all may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype.h"

namespace byteps {

// The kernels of one element kind on one target.
struct SumKernels {
  using Combine = void (*)(std::byte* accumulator, const std::byte* input,
                           std::size_t element_count);
  using Finish = void (*)(std::byte* output, const std::byte* accumulator,
                          std::size_t element_count, std::uint32_t divisor);

  // The raw functions: no checks. Call load(), add() and finish() below instead.
  Combine load_elements = nullptr;
  Combine add_elements = nullptr;
  Finish finish_elements = nullptr;
  std::size_t element_bytes = 0;
  std::size_t accumulator_element_bytes = 0;

  // Sums in the element's own type: the accumulator of a sum is the answer. finish() may then write
  // over its accumulator, and with divisor 1 does nothing there, so the caller sends the
  // accumulator as it is.
  bool in_place() const { return accumulator_element_bytes == element_bytes; }

  std::size_t accumulator_bytes(std::size_t element_count) const {
    return element_count * accumulator_element_bytes;
  }

  // accumulator = input. CHECKs that the input is whole elements and that the accumulator has room
  // for them.
  void load(std::span<std::byte> accumulator, std::span<const std::byte> input) const;

  // accumulator += input. For an accumulator that load() has filled with as many elements. CHECKs
  // as load().
  void add(std::span<std::byte> accumulator, std::span<const std::byte> input) const;

  // output = accumulator / divisor, output.size() bytes of it. divisor 1 is a sum, above an
  // average; 0 is a bug (CHECK). output and accumulator may begin at the same address when
  // in_place(); otherwise they may not overlap.
  void finish(std::span<std::byte> output, std::span<const std::byte> accumulator,
              std::uint32_t divisor) const;
};

// All kernels of one target: "scalar" (plain C++, the reference), "sse4", "avx2", "avx512", "neon".
struct KernelSet {
  const char* target = nullptr;
  SumKernels kinds[kDTypeCount];  // by DType
};

inline SumKernels kernels_for(DType dtype, const KernelSet& set) {
  return set.kinds[static_cast<std::size_t>(dtype)];
}

// The sets that this CPU can run, scalar first, best last. The CPU is asked at each call: ask at
// setup and keep the answer.
std::vector<KernelSet> available_kernels();

// The last of available_kernels().
KernelSet best_kernels();

}  // namespace byteps
