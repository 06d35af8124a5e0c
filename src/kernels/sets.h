// The sets of kernels that were compiled, and which instructions each needs. Only kernels.cc
// chooses among them.
#pragma once

#include <vector>

#include "kernels/kernels.h"

namespace byteps {

// Plain C++ for the compiler's baseline: the reference, always there.
const KernelSet& scalar_kernels();

// One set compiled by Highway, and what its CPU must have.
struct CompiledSet {
  enum class Needs { kBaseline, kSse4, kAvx2, kAvx512 };
  Needs needs = Needs::kBaseline;
  KernelSet set;
};

// Worst first; empty when Highway was not there at build time.
std::vector<CompiledSet> simd_kernels();

}  // namespace byteps
