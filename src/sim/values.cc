#include "sim/values.h"

#include <bit>
#include <cstring>

#include "base/check.h"
#include "base/ids.h"

namespace byteps::sim {
namespace {

std::uint64_t bits_at(const TensorFacts& tensor, std::uint32_t round, std::uint32_t rank,
                      std::uint64_t element) {
  return stable_mix(stable_mix(tensor.value_seed + round) + stable_mix(rank) + element * 7919);
}

// The largest magnitude of a contribution, so that sums of 16 workers stay exact.
std::int64_t range_of(DType dtype) {
  switch (dtype) {
    case DType::kInt8:
    case DType::kUint8:
    case DType::kBfloat16:
      return 2;
    case DType::kFloat16:
      return 10;
    case DType::kFloat32:
      return 10'000;
    case DType::kInt32:
      return 1'000'000;
    case DType::kInt64:
    case DType::kFloat64:
      return 1'000'000'000'000;
    case DType::kBool:
      return 1;
  }
  return 1;
}

constexpr std::uint32_t kAllRanks = 0xffffffff;

std::int64_t between(std::int64_t low, std::int64_t high, std::uint64_t bits) {
  return low + static_cast<std::int64_t>(bits % static_cast<std::uint64_t>(high - low + 1));
}

bool is_signed(DType dtype) {
  return dtype != DType::kUint8 && dtype != DType::kBool;
}

std::int64_t value_at(const TensorFacts& tensor, std::uint32_t round, std::uint32_t rank,
                      std::uint32_t worker_count, std::uint64_t element) {
  const std::uint64_t bits = bits_at(tensor, round, rank, element);
  if (tensor.dtype == DType::kBool) return bits % 4 == 0 ? 1 : 0;
  const std::int64_t range = range_of(tensor.dtype);
  const bool average = tensor.operation == Operation::kAverage;
  if (!average) return between(is_signed(tensor.dtype) ? -range : 0, range, bits);
  // The same for all, and what two ranks differ by from it cancels out: the division leaves no rest.
  const std::int64_t low = is_signed(tensor.dtype) ? -range : range;
  const std::int64_t common = between(low, low + range, bits_at(tensor, round, kAllRanks, element));
  if (rank + 1 == worker_count && rank % 2 == 0) return common;
  const std::int64_t apart = between(0, range, bits_at(tensor, round, rank / 2, element));
  return rank % 2 == 0 ? common + apart : common - apart;
}

// A half-width float of a small integer: `mantissa_bits` of 10 (float16) or 7 (bfloat16).
std::uint16_t narrow_float(std::int64_t value, int mantissa_bits, int bias) {
  if (value == 0) return 0;
  const auto magnitude = static_cast<std::uint64_t>(value < 0 ? -value : value);
  const int exponent = 63 - std::countl_zero(magnitude);
  CHECK_LE(exponent, mantissa_bits) << value << " is not exact";
  const std::uint64_t mantissa =
      (magnitude << (mantissa_bits - exponent)) & ((std::uint64_t{1} << mantissa_bits) - 1);
  const auto biased = static_cast<std::uint64_t>(exponent + bias);
  const std::uint64_t sign = value < 0 ? 0x8000 : 0;
  return static_cast<std::uint16_t>(sign | biased << mantissa_bits | mantissa);
}

template <typename T>
void put(T value, std::byte* to) {
  std::memcpy(to, &value, sizeof value);
}

void encode(DType dtype, std::int64_t value, std::byte* to) {
  switch (dtype) {
    case DType::kFloat32:
      return put(static_cast<float>(value), to);
    case DType::kFloat64:
      return put(static_cast<double>(value), to);
    case DType::kFloat16:
      return put(narrow_float(value, 10, 15), to);
    case DType::kBfloat16:
      return put(narrow_float(value, 7, 127), to);
    case DType::kUint8:
    case DType::kInt8:
    case DType::kBool:
      return put(static_cast<std::uint8_t>(value), to);
    case DType::kInt32:
      return put(static_cast<std::int32_t>(value), to);
    case DType::kInt64:
      return put(value, to);
  }
}

}  // namespace

std::vector<std::byte> contribution(const TensorFacts& tensor, std::uint32_t round,
                                    std::uint32_t rank, std::uint32_t worker_count) {
  std::vector<std::byte> bytes(tensor.bytes());
  if (tensor.operation == Operation::kBroadcast && tensor.dtype != DType::kBool) {
    for (std::uint64_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<std::byte>(bits_at(tensor, round, rank, i));
    }
    return bytes;
  }
  const std::size_t step = element_bytes(tensor.dtype);
  for (std::uint64_t i = 0; i < tensor.element_count; ++i) {
    encode(tensor.dtype, value_at(tensor, round, rank, worker_count, i), bytes.data() + i * step);
  }
  return bytes;
}

std::vector<std::byte> expected_result(const TensorFacts& tensor, std::uint32_t round,
                                       std::uint32_t worker_count) {
  if (tensor.operation == Operation::kBroadcast) {
    return contribution(tensor, round, tensor.root, worker_count);
  }
  std::vector<std::byte> bytes(tensor.bytes());
  const std::size_t step = element_bytes(tensor.dtype);
  CHECK_GT(worker_count, 0U);
  for (std::uint64_t i = 0; i < tensor.element_count; ++i) {
    std::int64_t sum = 0;
    for (std::uint32_t rank = 0; rank < worker_count; ++rank) {
      sum += value_at(tensor, round, rank, worker_count, i);
    }
    if (tensor.dtype == DType::kBool) sum = sum > 0 ? 1 : 0;
    if (tensor.operation == Operation::kAverage) sum /= worker_count;
    encode(tensor.dtype, sum, bytes.data() + i * step);
  }
  return bytes;
}

}  // namespace byteps::sim
