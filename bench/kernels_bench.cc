// How fast the summation kernels and the checksum are, beside what the memory of this machine allows.
//
//   kernels_bench --benchmark_filter=float32
//
// GB/s (1e9 bytes) counts the bytes of one array, the contribution. An addition reads two arrays and writes
// one of them, a copy reads one and writes the other. The working set is that of both arrays together: 512
// KiB stays in L2, 8 MiB in L3, 512 MiB in memory. Rows of coding count the bytes of the float32 elements that are
// coded, 240 KiB or 32 MiB of them. Each row has memory of its own, and where its pages lie moves a
// row by a tenth and more: to compare kernels with plain loops and with torch, on the same pages, run
// `bench/run.py --only kernels`.
#include <cstring>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "base/buffer.h"
#include "base/prng.h"
#include "kernels/coding.h"
#include "kernels/crc32c.h"
#include "kernels/kernels.h"
#include "kernels/part_coding.h"

namespace byteps {
namespace {

constexpr std::int64_t kWorkingSets[] = {512 << 10, 8 << 20, 512 << 20};

void count_bytes(benchmark::State& state, std::size_t array_bytes) {
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) *
                          static_cast<std::int64_t>(array_bytes));
}

// Written once before it is measured, so that the pages are there.
Buffer filled(std::size_t bytes) {
  Buffer buffer(bytes);
  std::memset(buffer.span().data(), 0, bytes);
  return buffer;
}

void copy_plain(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0)) / 2;
  Buffer from = filled(bytes);
  Buffer to = filled(bytes);
  for (auto _ : state) {
    std::memcpy(to.span().data(), from.span().data(), bytes);
    benchmark::ClobberMemory();
  }
  count_bytes(state, bytes);
}

// What a compiler makes of the obvious loop for its baseline CPU.
void add_plain_loop(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0)) / 2;
  Buffer sums_buffer = filled(bytes);
  Buffer elements_buffer = filled(bytes);
  auto* sums = reinterpret_cast<float*>(sums_buffer.span().data());
  const auto* elements = reinterpret_cast<const float*>(elements_buffer.span().data());
  const std::size_t element_count = bytes / sizeof(float);
  for (auto _ : state) {
    for (std::size_t i = 0; i < element_count; ++i) sums[i] += elements[i];
    benchmark::ClobberMemory();
  }
  count_bytes(state, bytes);
}

// Arrays of `dtype` whose contribution and accumulator together take the working set.
std::size_t element_count_for(const SumKernels& kernels, std::int64_t working_set_bytes) {
  const std::size_t per_element = kernels.element_bytes + kernels.accumulator_element_bytes;
  return static_cast<std::size_t>(working_set_bytes) / per_element / 64 * 64;
}

// A checksum only reads: its working set is one array.
void run_crc32c(benchmark::State& state, const Crc32cKernel& kernel, std::size_t misaligned_bytes) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  const Buffer buffer = filled(bytes + misaligned_bytes);
  const std::span<const std::byte> message = buffer.span().subspan(misaligned_bytes);
  for (auto _ : state) benchmark::DoNotOptimize(kernel.update(0, message));
  count_bytes(state, bytes);
}

void register_crc32c(const Crc32cKernel& kernel, const char* name, std::size_t misaligned_bytes) {
  const std::string row = std::string("crc32c/") + name + "/" + kernel.target;
  auto* bench = benchmark::RegisterBenchmark(
      row.c_str(), [=](benchmark::State& state) { run_crc32c(state, kernel, misaligned_bytes); });
  for (const std::int64_t bytes : {64, 256, 32 << 10, 8 << 20, 512 << 20}) bench->Arg(bytes);
}

enum class Step { kLoad, kAdd, kFinishSum, kFinishAverage };

void run_step(benchmark::State& state, const SumKernels& kernels, Step step,
              std::size_t misaligned_bytes) {
  const std::size_t element_count = element_count_for(kernels, state.range(0));
  const std::size_t bytes = element_count * kernels.element_bytes;
  Buffer sums_buffer = filled(kernels.accumulator_bytes(element_count));
  Buffer elements_buffer = filled(bytes + misaligned_bytes);
  const auto sums = sums_buffer.span();
  const auto elements = elements_buffer.span().subspan(misaligned_bytes);
  for (auto _ : state) {
    switch (step) {
      case Step::kLoad:
        kernels.load(sums, elements);
        break;
      case Step::kAdd:
        kernels.add(sums, elements);
        break;
      case Step::kFinishSum:
        kernels.finish(elements, sums, {});
        break;
      case Step::kFinishAverage:
        kernels.finish(elements, sums, {.divisor = 3});
        break;
    }
    benchmark::ClobberMemory();
  }
  count_bytes(state, bytes);
}

void register_step(const KernelSet& set, DType dtype, const char* step_name, Step step,
                   std::size_t misaligned_bytes = 0) {
  const std::string row = std::string(name(dtype)) + "/" + step_name + "/" + set.target;
  const SumKernels kernels = kernels_for(dtype, Operation::kSum, set);
  auto* bench = benchmark::RegisterBenchmark(row.c_str(), [=](benchmark::State& state) {
    run_step(state, kernels, step, misaligned_bytes);
  });
  for (const std::int64_t working_set_bytes : kWorkingSets) bench->Arg(working_set_bytes);
}

// ---- coding

enum class Coding { kEncode, kEncodeWithResidual, kLoad, kAdd };
constexpr std::int64_t kCodedElements[] = {60 << 10, 8 << 20};  // 240 KiB of float32, 32 MiB

Buffer drawn(std::size_t element_count, float magnitude) {
  Buffer buffer(element_count * sizeof(float));
  Prng prng(1);
  for (std::size_t i = 0; i < element_count; ++i) {
    const float number = (static_cast<float>(prng.below(1 << 20)) / float{1 << 19} - 1) * magnitude;
    std::memcpy(buffer.span().data() + i * sizeof number, &number, sizeof number);
  }
  return buffer;
}

void run_coding(benchmark::State& state, const CodingKernels& kernels, Coding step) {
  const auto element_count = static_cast<std::size_t>(state.range(0));
  Buffer elements = drawn(element_count, 1e-3F);
  Buffer residual = drawn(element_count, 1e-5F);
  Buffer payload = filled(kernels.payload_bytes(elements.span().size()));
  kernels.encode(payload.span(), elements.span(), {}, {});
  for (auto _ : state) {
    switch (step) {
      case Coding::kEncode:
        kernels.encode(payload.span(), elements.span(), {}, {});
        break;
      case Coding::kEncodeWithResidual:
        kernels.encode(payload.span(), elements.span(), {.residual = residual.span()}, {});
        break;
      case Coding::kLoad:
        kernels.load(elements.span(), payload.span(), {});
        break;
      case Coding::kAdd:
        kernels.add(elements.span(), payload.span(), {});
        break;
    }
    benchmark::ClobberMemory();
  }
  count_bytes(state, element_count * sizeof(float));
}

void register_coding(const KernelSet& set, Format format, const char* step_name, Coding step) {
  const std::string row = std::string("coded/") + name(format) + "/" + step_name + "/" + set.target;
  const CodingKernels kernels = coding_kernels_for(format, {}, set);
  auto* bench = benchmark::RegisterBenchmark(
      row.c_str(), [=](benchmark::State& state) { run_coding(state, kernels, step); });
  for (const std::int64_t element_count : kCodedElements) bench->Arg(element_count);
}

// As gradients are: most elements are small against the largest.
Buffer drawn_with_a_peak(std::size_t element_count) {
  Buffer buffer = drawn(element_count, 1);
  for (std::size_t i = 0; i < element_count; ++i) {
    float number = 0;
    std::memcpy(&number, buffer.span().data() + i * sizeof number, sizeof number);
    number = number * number * number;
    std::memcpy(buffer.span().data() + i * sizeof number, &number, sizeof number);
  }
  return buffer;
}

void run_part(benchmark::State& state, const PartCoding& coding, Coding step) {
  const auto element_count = static_cast<std::size_t>(state.range(0));
  Buffer elements = drawn_with_a_peak(element_count);
  Buffer residual = filled(coding.codec.error_feedback ? element_count * sizeof(float) : 0);
  std::vector<std::byte> payload(payload_bytes(coding.format, coding.codec, element_count));
  const Carry carry = {.residual = residual.span()};
  PartPlace place = {.key = Key(1), .part = PartIndex(0), .round = Round(1), .rank = 0};
  encode(coding, payload, elements.span(), {}, place);
  const char* flaw = nullptr;
  for (auto _ : state) {
    if (step == Coding::kLoad) {
      flaw = flaw_of_payload(coding, payload, element_count);
      decode(coding, elements.span(), payload, place);
    } else if (step == Coding::kAdd) {
      flaw = flaw_of_payload(coding, payload, element_count);
      decode_add(coding, elements.span(), payload, place);
    } else {
      encode(coding, payload, elements.span(), carry, place);
    }
    benchmark::ClobberMemory();
  }
  if (flaw != nullptr) state.SkipWithError(flaw);
  count_bytes(state, element_count * sizeof(float));
}

void register_part(const std::string& codec_name, PartCoding coding) {
  const auto register_step = [&](const char* step_name, Coding step) {
    const std::string row = "part/" + codec_name + "/" + step_name;
    benchmark::RegisterBenchmark(row.c_str(), [=](benchmark::State& state) {
      run_part(state, coding, step);
    })->Arg(kPartElementsMax);  // the largest part
  };
  register_step("encode", Coding::kEncode);
  register_step("load", Coding::kLoad);
  register_step("add", Coding::kAdd);
  coding.codec.error_feedback = true;
  register_step("encode_with_residual", Coding::kEncodeWithResidual);
}

void register_parts() {
  register_part("onebit", {Format::kOnebit, {.scaling = true}});
  register_part("topk_1%", {Format::kTopk, {.k = 0.01}});
  register_part("topk_10%", {Format::kTopk, {.k = 0.1}});
  register_part("randomk_1%", {Format::kRandomk, {.k = 0.01}});
  register_part("randomk_1%_seeded", {Format::kRandomk, {.k = 0.01, .seed = 7}});
  register_part("dithering_4", {Format::kDithering, {.k = 4}});
  register_part("dithering_4_seeded", {Format::kDithering, {.k = 4, .seed = 7}});
  register_part("dithering_4_l2", {Format::kDithering, {.k = 4, .l2 = true}});
  register_part("dithering_4_natural", {Format::kDithering, {.k = 4, .natural = true}});
  register_part("dithering_64", {Format::kDithering, {.k = 64}});
}

void register_all() {
  auto* copy = benchmark::RegisterBenchmark("copy/memcpy", copy_plain);
  auto* loop = benchmark::RegisterBenchmark("float32/add/plain_loop", add_plain_loop);
  for (const std::int64_t working_set_bytes : kWorkingSets) {
    copy->Arg(working_set_bytes);
    loop->Arg(working_set_bytes);
  }
  for (const KernelSet& set : available_kernels()) {
    register_step(set, DType::kFloat32, "add", Step::kAdd);
  }
  const KernelSet best = best_kernels();
  register_step(best, DType::kFloat32, "add_from_odd_address", Step::kAdd, 1);
  register_step(best, DType::kFloat32, "average", Step::kFinishAverage);
  for (const DType dtype : {DType::kFloat16, DType::kBfloat16}) {
    register_step(best, dtype, "load", Step::kLoad);
    register_step(best, dtype, "add", Step::kAdd);
    register_step(best, dtype, "finish", Step::kFinishSum);
    register_step(best, dtype, "average", Step::kFinishAverage);
  }
  for (const DType dtype : {DType::kInt8, DType::kInt32, DType::kInt64}) {
    register_step(best, dtype, "add", Step::kAdd);
    register_step(best, dtype, "average", Step::kFinishAverage);
  }
  for (const Format format : {Format::kFloat16, Format::kBfloat16, Format::kInt8, Format::kInt4}) {
    register_coding(best, format, "load", Coding::kLoad);
    if (block_elements(format) > 1) {
      register_coding(best, format, "encode_with_residual", Coding::kEncodeWithResidual);
    }
    for (const KernelSet& set : available_kernels()) {
      register_coding(set, format, "encode", Coding::kEncode);
      register_coding(set, format, "add", Coding::kAdd);
    }
  }
  register_parts();
  for (const Crc32cKernel& kernel : available_crc32c()) register_crc32c(kernel, "message", 0);
  register_crc32c(available_crc32c().back(), "message_at_odd_address", 1);
}

}  // namespace
}  // namespace byteps

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  byteps::register_all();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
