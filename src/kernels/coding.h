// The arithmetic of coded tensors (base/format.h): elements become codes, and codes numbers again.
//
//   const CodingKernels coding = coding_kernels_for(format, best_kernels());
//   coding.encode(payload, gradients, residual);   // a worker: what it pushes; a server: what it answers
//   coding.load(accumulator, payload);             // the first contribution
//   coding.add(accumulator, payload);              // each further one
//   coding.load(output, answer);                   // a worker: what it gets
//
// What is computed, by every set of kernels alike, bit for bit, all in float32 with one rounding (to nearest, ties to
// even) for each sign below:
//
//   float16, bfloat16   the conversions of kernels.h
//   int8    of a block with the largest magnitude m: scale = m / 127, code = round(x * (127 / m)), of -127 to 127
//   int4    scale = m / 7, rounded up to a bfloat16; code = round(x * (1 / scale)), of -7 to 7
//   both    decoded: code * scale
//
// A block whose m is below 1e-30 becomes zeros. One with a NaN, or with a magnitude of 2^127 or more, becomes NaNs,
// everywhere: its sum without codes would be of no use either. Codes of int4 are kept as code + 8: byte i of a block
// has that of element i in its lower half and that of element 16 + i in the upper one; where the last block has fewer
// elements, zeros follow.
//
// Error feedback: what a code leaves of an element is its residual, and is added to the element of the next round
// before that is coded: x = element + residual, residual = x - decoded. A block that became NaNs keeps its residual.
//
// Memory: as in kernels.h. No two of the arguments may overlap.
#pragma once

#include <cstddef>
#include <span>

#include "base/format.h"
#include "kernels/kernels.h"

namespace byteps {

// The kernels of one format on one target, for float32 elements.
class CodingKernels {
 public:
  // float16 or bfloat16; int8 or int4.
  CodingKernels(Format format, const SumKernels& halves) : format_(format), halves_(halves) {}
  CodingKernels(Format format, const BlockCoding& blocks) : format_(format), blocks_(blocks) {}

  Format format() const { return format_; }

  // payload = codes of elements + residual. CHECKs that the payload has its length, and the residual that of the
  // elements; it may be empty: none is kept, and with float16 and bfloat16 it is.
  void encode(std::span<std::byte> payload, std::span<const std::byte> elements,
              std::span<std::byte> residual) const;
  // elements = what the payload says; elements += that. CHECK as above.
  void load(std::span<std::byte> elements, std::span<const std::byte> payload) const;
  void add(std::span<std::byte> elements, std::span<const std::byte> payload) const;

 private:
  std::size_t count(std::span<const std::byte> elements, std::span<const std::byte> payload) const;

  Format format_;
  SumKernels halves_;  // load_elements null: the blocks
  BlockCoding blocks_;
};

// Not of Format::kPlain.
CodingKernels coding_kernels_for(Format format, const KernelSet& set);

}  // namespace byteps
