// Passes of the summation kernels, of plain loops and of memcpy over memory that the caller brings: a library that
// bench/kernels_worker.py loads, so that all of them, and torch, take turns on the very same pages.
//
// Where the pages of an array lie in memory moves its figures by a tenth and more, so figures from different
// allocations cannot be compared.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "kernels/kernels.h"

namespace byteps {
namespace {

using Plain = void (*)(float* sums, const float* elements, std::size_t element_count);

void copy(float* sums, const float* elements, std::size_t element_count) {
  std::memcpy(sums, elements, element_count * sizeof(float));
}

// The obvious loop, as the compiler makes it for its baseline and for the wider vectors of this CPU.
[[gnu::always_inline]] inline void add_in_a_loop(float* sums, const float* elements,
                                                 std::size_t element_count) {
  for (std::size_t i = 0; i < element_count; ++i) sums[i] += elements[i];
}

void add_plain(float* sums, const float* elements, std::size_t element_count) {
  add_in_a_loop(sums, elements, element_count);
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] void add_plain_avx2(float* sums, const float* elements,
                                            std::size_t element_count) {
  add_in_a_loop(sums, elements, element_count);
}

[[gnu::target("avx512f")]] void add_plain_avx512(float* sums, const float* elements,
                                                 std::size_t element_count) {
  add_in_a_loop(sums, elements, element_count);
}
#endif

struct Row {
  std::string name;
  Plain plain = nullptr;  // or else:
  SumKernels kernels;
};

std::vector<Row> make_rows() {
  std::vector<Row> rows = {{"memcpy", copy, {}}, {"plain loop", add_plain, {}}};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) rows.push_back({"plain loop avx2", add_plain_avx2, {}});
  if (__builtin_cpu_supports("avx512f"))
    rows.push_back({"plain loop avx512", add_plain_avx512, {}});
#endif
  const KernelSet best = best_kernels();
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBfloat16, DType::kInt8}) {
    rows.push_back({name(dtype), nullptr, kernels_for(dtype, Operation::kSum, best)});
  }
  return rows;
}

const std::vector<Row>& rows() {
  static const std::vector<Row> kRows = make_rows();
  return kRows;
}

void one_pass(const Row& row, std::byte* sums, const std::byte* elements, std::size_t array_bytes) {
  if (row.plain == nullptr) {
    const std::size_t element_count = array_bytes / row.kernels.element_bytes;
    row.kernels.add({sums, row.kernels.accumulator_bytes(element_count)}, {elements, array_bytes});
    return;
  }
  row.plain(reinterpret_cast<float*>(sums), reinterpret_cast<const float*>(elements),
            array_bytes / sizeof(float));
}

}  // namespace
}  // namespace byteps

#pragma GCC visibility push(default)
extern "C" {

// The target of the kernels: "avx512", ...
const char* kernels_target() {
  return byteps::best_kernels().target;
}

// The name of a row; null behind the last.
const char* kernels_row_name(std::size_t row) {
  return row < byteps::rows().size() ? byteps::rows()[row].name.c_str() : nullptr;
}

// Bytes of the contribution when it and its sums together take `working_set_bytes`: whole cache lines.
std::size_t kernels_row_array_bytes(std::size_t row, std::size_t working_set_bytes) {
  const byteps::Row& one = byteps::rows()[row];
  const std::size_t element_bytes = one.plain ? 1 : one.kernels.element_bytes;
  const std::size_t sum_bytes = one.plain ? 1 : one.kernels.accumulator_element_bytes;
  return working_set_bytes / (element_bytes + sum_bytes) / 64 * 64 * element_bytes;
}

// Seconds that `passes` passes took over the `working_set_bytes` at `memory`: first the sums, then the contribution.
double kernels_row_run(std::size_t row, std::byte* memory, std::size_t working_set_bytes,
                       std::size_t passes) {
  const byteps::Row& one = byteps::rows()[row];
  const std::size_t array_bytes = kernels_row_array_bytes(row, working_set_bytes);
  const std::byte* elements = memory + (working_set_bytes - array_bytes);
  const auto began = std::chrono::steady_clock::now();
  for (std::size_t pass = 0; pass < passes; ++pass) {
    byteps::one_pass(one, memory, elements, array_bytes);
    asm volatile("" ::: "memory");
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

}  // extern "C"
#pragma GCC visibility pop
