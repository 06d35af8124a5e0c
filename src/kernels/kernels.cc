#include "kernels/kernels.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "kernels/sets.h"

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif

namespace byteps {
namespace {

// What the CPU (and the operating system, for wide registers) allows.
struct Cpu {
  bool sse4 = false;
  bool avx2 = false;    // with BMI, BMI2, FMA and F16C, as Highway's target of that name
  bool avx512 = false;  // F, VL, DQ, BW
};

Cpu ask_cpu() {
  Cpu cpu;
#if defined(__x86_64__) || defined(__i386__)
  __builtin_cpu_init();
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  const bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
  cpu.sse4 = __builtin_cpu_supports("ssse3") && __builtin_cpu_supports("sse4.1") &&
             __builtin_cpu_supports("sse4.2");
  cpu.avx2 = cpu.sse4 && f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
             __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  cpu.avx512 = cpu.avx2 && __builtin_cpu_supports("avx512f") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512bw");
#endif
  return cpu;
}

bool runs(const Cpu& cpu, CompiledSet::Needs needs) {
  switch (needs) {
    case CompiledSet::Needs::kBaseline:
      return true;
    case CompiledSet::Needs::kSse4:
      return cpu.sse4;
    case CompiledSet::Needs::kAvx2:
      return cpu.avx2;
    case CompiledSet::Needs::kAvx512:
      return cpu.avx512;
  }
  return false;
}

// The number of whole elements in `bytes`.
std::size_t whole_elements(std::size_t bytes, const SumKernels& kernels,
                           std::size_t accumulator_bytes) {
  const std::size_t element_count = bytes / kernels.element_bytes;
  CHECK_EQ(element_count * kernels.element_bytes, bytes) << "a frame of whole elements";
  CHECK_LE(kernels.accumulator_bytes(element_count), accumulator_bytes)
      << "room in the accumulator";
  return element_count;
}

}  // namespace

void SumKernels::load(std::span<std::byte> accumulator, std::span<const std::byte> input) const {
  load_elements(accumulator.data(), input.data(),
                whole_elements(input.size(), *this, accumulator.size()));
}

void SumKernels::add(std::span<std::byte> accumulator, std::span<const std::byte> input) const {
  add_elements(accumulator.data(), input.data(),
               whole_elements(input.size(), *this, accumulator.size()));
}

void SumKernels::finish(std::span<std::byte> output, std::span<const std::byte> accumulator,
                        Finishing finishing) const {
  CHECK_GE(finishing.divisor, 1u);
  const std::size_t element_count = whole_elements(output.size(), *this, accumulator.size());
  finish_elements(output.data(), accumulator.data(), element_count, finishing);
}

void SumKernels::finish_alone(std::span<std::byte> output, std::span<const std::byte> input,
                              Finishing finishing) const {
  constexpr std::size_t kElementsAtOnce = 512;
  std::array<std::byte, kElementsAtOnce * sizeof(double)> accumulator;
  const std::size_t step = kElementsAtOnce * element_bytes;
  for (std::size_t at = 0; at < input.size(); at += step) {
    const std::span some = input.subspan(at, std::min(step, input.size() - at));
    load(accumulator, some);
    finish(output.subspan(at, some.size()), accumulator, finishing);
  }
}

SumKernels kernels_for(DType dtype, Operation operation, const KernelSet& set) {
  const KindKernels& kind = set.kinds[static_cast<std::size_t>(dtype)];
  SumKernels kernels = kind.sum;
  if (operation == Operation::kMin) kernels.add_elements = kind.min_elements;
  if (operation == Operation::kMax) kernels.add_elements = kind.max_elements;
  if (operation == Operation::kProduct) kernels.add_elements = kind.multiply_elements;
  return kernels;
}

std::vector<KernelSet> available_kernels() {
  const Cpu cpu = ask_cpu();
  std::vector<KernelSet> sets = {scalar_kernels()};
  for (const CompiledSet& compiled : simd_kernels()) {
    if (runs(cpu, compiled.needs)) sets.push_back(compiled.set);
  }
  return sets;
}

KernelSet best_kernels() {
  return available_kernels().back();
}

}  // namespace byteps
