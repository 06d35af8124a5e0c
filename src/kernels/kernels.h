// The arithmetic of a reduction: the contributions to a frame go into an accumulator, the answer comes out of it.
//
//   const KernelSet set = best_kernels();                           // once per process: asks the CPU
//   const SumKernels kernels = kernels_for(dtype, operation, set);  // once per tensor
//   kernels.load(accumulator, first);                    // the first contribution
//   kernels.add(accumulator, second);                    // each further one
//   kernels.finish(output, accumulator, {divisor, scale});  // the answer
//
// What is computed, by every set of kernels alike, bit for bit:
//
//   element            accumulator  add                  finish with divisor n and scale s
//   float32, float64   the same     IEEE addition        x / n * s, both rounded
//   float16, bfloat16  float32      addition in float32  x / n * s in float32, then rounded to the element
//   integers           the same     wraps modulo 2^bits  x / n towards zero: -1 averaged over 2 is 0. With a scale
//                                                        x / n * s in float64, towards zero; beyond the element: its
//                                                        nearest
//   bool               a byte 0/1   logical or           n and s are ignored
//
// Without a division or a scale (n = 1, s = 1) nothing is done to the sums. add() of the other operations:
//
//   product    as the sum, with * for +; bool: logical and
//   min, max   -0 is below +0, so the order of contributions does not matter; bool: logical and, or. In halves it is
//              exact. A NaN among the contributions is the result.
//
// Every rounding is to nearest, ties to even; infinities, signed zeros and subnormals are as IEEE 754 says,
// and what is too large for the element becomes infinity. NaN gives NaN; when two NaN meet, whose
// payload survives is not specified. The result of a float sum or product depends on the order of add() calls; to
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

// What happens to a sum at the end: it is divided, then scaled.
struct Finishing {
  std::uint32_t divisor = 1;  // at least 1
  double scale = 1;           // finite
  bool changes_nothing() const { return divisor == 1 && scale == 1; }
};

// The kernels of one element kind and operation on one target.
struct SumKernels {
  using Combine = void (*)(std::byte* accumulator, const std::byte* input,
                           std::size_t element_count);
  using Finish = void (*)(std::byte* output, const std::byte* accumulator,
                          std::size_t element_count, Finishing finishing);

  // The raw functions: no checks. Call load(), add() and finish() below instead.
  Combine load_elements = nullptr;
  Combine add_elements = nullptr;
  Finish finish_elements = nullptr;
  std::size_t element_bytes = 0;
  std::size_t accumulator_element_bytes = 0;

  // Sums in the element's own type: the accumulator of a sum is the answer. finish() may then write
  // over its accumulator, and where the finishing changes nothing does nothing there, so the caller sends the
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

  // output = accumulator / divisor * scale, output.size() bytes of it. divisor 1 is a sum, above an
  // average; 0 is a bug (CHECK). output and accumulator may begin at the same address when
  // in_place(); otherwise they may not overlap.
  void finish(std::span<std::byte> output, std::span<const std::byte> accumulator,
              Finishing finishing) const;

  // output = what finish() makes of `input` alone, as its load() has it. They may be the same memory.
  void finish_alone(std::span<std::byte> output, std::span<const std::byte> input,
                    Finishing finishing) const;
};

// The kernels of one element kind on one target.
struct KindKernels {
  SumKernels sum;  // load and finish are those of all operations
  SumKernels::Combine min_elements = nullptr;
  SumKernels::Combine max_elements = nullptr;
  SumKernels::Combine multiply_elements = nullptr;
};

// Float32 elements become codes in blocks, and numbers again (kernels/coding.h).
struct BlockCoding {
  using Encode = void (*)(std::byte* payload, const std::byte* elements, std::byte* residual,
                          std::size_t element_count);
  using Decode = void (*)(std::byte* elements, const std::byte* payload, std::size_t element_count);
  Encode encode_elements = nullptr;
  Decode load_elements = nullptr;
  Decode add_elements = nullptr;
};

// All kernels of one target: "scalar" (plain C++, the reference), "sse4", "avx2", "avx512", "neon".
struct KernelSet {
  const char* target = nullptr;
  KindKernels kinds[kDTypeCount];  // by DType
  BlockCoding int8;
  BlockCoding int4;
};

// Of a sum, an average or a broadcast the same: its add() adds.
SumKernels kernels_for(DType dtype, Operation operation, const KernelSet& set);

// The sets that this CPU can run, scalar first, best last. The CPU is asked at each call: ask at
// setup and keep the answer.
std::vector<KernelSet> available_kernels();

// The last of available_kernels().
KernelSet best_kernels();

}  // namespace byteps
