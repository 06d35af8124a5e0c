// The arithmetic of coded tensors (base/format.h): elements become codes, and codes numbers again.
//
//   const CodingKernels coding = coding_kernels_for(format, codec, best_kernels());
//   coding.encode(payload, gradients, carry, place);   // a worker: what it pushes; a server: what it answers
//   flaw = coding.flaw(payload, element_bytes);        // of what came
//   coding.load(accumulator, payload, place);          // the first contribution
//   coding.add(accumulator, payload, place);           // each further one
//   coding.load(output, answer, place);                // a worker: what it gets
//
// What is computed, by every set of kernels alike, bit for bit, all in float32 with one rounding (to nearest, ties to
// even) for each sign below:
//
//   float16, bfloat16   the conversions of kernels.h
//   int8    of a block with the largest magnitude m: scale = m / 127, code = round(x * (127 / m)), of -127 to 127
//   int4    scale = m / 7, rounded up to a bfloat16; code = round(x * (1 / scale)), of -7 to 7
//   both    decoded: code * scale
//   onebit, topk, randomk, dithering, float32: part_coding.h
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

#include "base/codec.h"
#include "base/format.h"
#include "base/carry.h"
#include "kernels/kernels.h"
#include "kernels/part_coding.h"

namespace byteps {

// The kernels of one format on one target, for float32 elements.
class CodingKernels {
 public:
  // float16 or bfloat16; int8 or int4; one that has a codec.
  CodingKernels(Format format, const SumKernels& halves) : coding_{format, {}}, halves_(halves) {}
  CodingKernels(Format format, const BlockCoding& blocks) : coding_{format, {}}, blocks_(blocks) {}
  explicit CodingKernels(const PartCoding& coding) : coding_(coding) {}

  Format format() const { return coding_.format; }
  // Whether its codes of all contributors are added as float32, and the sum of all is not coded again.
  bool adds_payloads() const { return format() == Format::kRandomk; }
  // Whether the sum of all leaves a residual at who codes it.
  bool feeds_back_sums() const { return coding_.codec.error_feedback && !adds_payloads(); }
  // Of elements of so many bytes.
  std::size_t payload_bytes(std::size_t element_bytes) const {
    return byteps::payload_bytes(format(), coding_.codec, element_bytes / sizeof(float));
  }

  // payload = codes of elements, with what is carried. CHECKs that the payload has its length, and what is carried that
  // of the elements; of int8 and int4 that is a residual, of float16 and bfloat16 nothing. `place`: of these elements.
  void encode(std::span<std::byte> payload, std::span<const std::byte> elements, const Carry& carry,
              const PartPlace& place) const;
  // nullptr, or what is wrong with a stranger's payload of so many bytes of elements.
  [[nodiscard]] const char* flaw(std::span<const std::byte> payload,
                                 std::size_t element_bytes) const;
  // elements = what the payload says; elements += that. CHECK as above; the payload has no flaw.
  void load(std::span<std::byte> elements, std::span<const std::byte> payload,
            const PartPlace& place) const;
  void add(std::span<std::byte> elements, std::span<const std::byte> payload,
           const PartPlace& place) const;

 private:
  std::size_t count(std::span<const std::byte> elements, std::span<const std::byte> payload) const;

  PartCoding coding_;
  SumKernels halves_;  // load_elements null: the blocks, or
  BlockCoding blocks_;
};

// Not of Format::kPlain.
CodingKernels coding_kernels_for(Format format, const Codec& codec, const KernelSet& set);

}  // namespace byteps
