// The sets of kernels that were compiled, and which instructions each needs. Only kernels.cc
// chooses among them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/kernels.h"

namespace byteps {

// Plain C++ for the compiler's baseline: the reference, always there.
const KernelSet& scalar_kernels();

// ---- coding (coding.h): what is the same on all targets, and done once a block

inline constexpr std::uint32_t kTooLarge = 0x7f000000;  // bits of 2^127: times a scale it overflows
inline constexpr float kTooSmall = 1e-30F;              // 127 / this would be infinite

struct BlockScale {
  float scale = 0;
  float inverse = 0;
  bool is_finite = true;
};
// Of a block whose largest magnitude has these bits.
BlockScale int8_scale_of(std::uint32_t largest);
BlockScale int4_scale_of(std::uint32_t largest);

// One block of up to 256, of up to 32 elements. `residual`: nullptr for none.
void encode_int8_block(std::byte* scale_out, std::byte* codes, const std::byte* elements,
                       std::byte* residual, std::size_t count);
void decode_int8_block(std::byte* elements, const std::byte* scale_in, const std::byte* codes,
                       std::size_t count, bool adds);
void encode_int4_block(std::byte* scale_out, std::byte* codes, const std::byte* elements,
                       std::byte* residual, std::size_t count);
void decode_int4_block(std::byte* elements, const std::byte* scale_in, const std::byte* codes,
                       std::size_t count, bool adds);

BlockCoding scalar_int8();
BlockCoding scalar_int4();

// One set compiled by Highway, and what its CPU must have.
struct CompiledSet {
  enum class Needs { kBaseline, kSse4, kAvx2, kAvx512 };
  Needs needs = Needs::kBaseline;
  KernelSet set;
};

// Puts the vector kernels for coding over the scalar ones.
void vectorise_coding(CompiledSet& set);

// Worst first; empty when Highway was not there at build time.
std::vector<CompiledSet> simd_kernels();

}  // namespace byteps
