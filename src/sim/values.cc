#include "sim/values.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>

#include "base/check.h"
#include "base/ids.h"
#include "kernels/coding.h"

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
    case DType::kInt16:
    case DType::kUint16:
      return 1'000;
    case DType::kFloat32:
      return 10'000;
    case DType::kInt32:
    case DType::kUint32:
      return 1'000'000;
    case DType::kInt64:
    case DType::kUint64:
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
  return is_float(dtype) || dtype == DType::kInt8 || dtype == DType::kInt16 ||
         dtype == DType::kInt32 || dtype == DType::kInt64;
}

std::uint32_t member_count(const TensorFacts& tensor, std::uint32_t worker_count) {
  return tensor.members.empty() ? worker_count : static_cast<std::uint32_t>(tensor.members.size());
}

// 1 or 2 of the first six, so that the product of all stays below 2^7; with a sign, and seldom zero (which in a float
// would have a sign as well).
std::int64_t factor_of(const TensorFacts& tensor, std::uint32_t place, std::uint64_t bits) {
  if (bits % 32 == 0 && !is_float(tensor.dtype)) return 0;
  const std::int64_t magnitude = place < 6 && (bits >> 8) % 2 == 0 ? 2 : 1;
  return is_signed(tensor.dtype) && (bits >> 9) % 2 == 0 ? -magnitude : magnitude;
}

// What the `place`-th of `count` members puts in.
std::int64_t value_at(const TensorFacts& tensor, std::uint32_t round, std::uint32_t place,
                      std::uint32_t count, std::uint64_t element) {
  const std::uint64_t bits = bits_at(tensor, round, place, element);
  const Operation operation = tensor.operation;
  if (tensor.dtype == DType::kBool) {
    const bool joined_by_and = operation == Operation::kMin || operation == Operation::kProduct;
    return (bits % 4 == 0) != joined_by_and ? 1 : 0;
  }
  if (operation == Operation::kProduct) return factor_of(tensor, place, bits);
  const std::int64_t range = range_of(tensor.dtype);
  if (operation != Operation::kAverage) {
    return tensor.unit * between(is_signed(tensor.dtype) ? -range : 0, range, bits);
  }
  // The same for all, and what two ranks differ by from it cancels out: the division leaves no rest.
  const std::int64_t low = is_signed(tensor.dtype) ? -range : range;
  const std::int64_t common = between(low, low + range, bits_at(tensor, round, kAllRanks, element));
  if (place + 1 == count && place % 2 == 0) return tensor.unit * common;
  const std::int64_t apart = between(0, range, bits_at(tensor, round, place / 2, element));
  return tensor.unit * (place % 2 == 0 ? common + apart : common - apart);
}

std::int64_t joined(const TensorFacts& tensor, std::int64_t a, std::int64_t b) {
  const bool boolean = tensor.dtype == DType::kBool;
  switch (tensor.operation) {
    case Operation::kMin:
      return std::min(a, b);
    case Operation::kMax:
      return std::max(a, b);
    case Operation::kProduct:
      return a * b;
    default:
      return boolean ? std::max(a, b) : a + b;
  }
}

// A half-width float of an integer with few digits: `mantissa_bits` of 10 (float16) or 7 (bfloat16).
std::uint16_t narrow_float(double number, int mantissa_bits, int bias) {
  const auto value = static_cast<std::int64_t>(number);
  if (value == 0) return std::signbit(number) ? 0x8000 : 0;
  const auto magnitude = static_cast<std::uint64_t>(value < 0 ? -value : value);
  const int exponent = 63 - std::countl_zero(magnitude);
  CHECK_LE(exponent, mantissa_bits + std::countr_zero(magnitude)) << value << " is not exact";
  CHECK_LE(exponent, bias) << value << " is beyond it";
  const std::uint64_t digits = exponent <= mantissa_bits ? magnitude << (mantissa_bits - exponent)
                                                         : magnitude >> (exponent - mantissa_bits);
  const std::uint64_t mantissa = digits & ((std::uint64_t{1} << mantissa_bits) - 1);
  const auto biased = static_cast<std::uint64_t>(exponent + bias);
  const std::uint64_t sign = value < 0 ? 0x8000 : 0;
  return static_cast<std::uint16_t>(sign | biased << mantissa_bits | mantissa);
}

template <typename T>
void put(T value, std::byte* to) {
  std::memcpy(to, &value, sizeof value);
}

// The number is whole, but for float32 and float64; integers leave out what is behind the point.
void encode(DType dtype, double number, std::byte* to) {
  const auto value = static_cast<std::int64_t>(number);
  switch (dtype) {
    case DType::kFloat32:
      return put(static_cast<float>(number), to);
    case DType::kFloat64:
      return put(number, to);
    case DType::kFloat16:
      return put(narrow_float(number, 10, 15), to);
    case DType::kBfloat16:
      return put(narrow_float(number, 7, 127), to);
    case DType::kUint8:
    case DType::kInt8:
    case DType::kBool:
      return put(static_cast<std::uint8_t>(value), to);
    case DType::kInt16:
    case DType::kUint16:
      return put(static_cast<std::uint16_t>(value), to);
    case DType::kInt32:
    case DType::kUint32:
      return put(static_cast<std::uint32_t>(value), to);
    case DType::kInt64:
    case DType::kUint64:
      return put(value, to);
  }
}

}  // namespace

namespace {

// Of widely different magnitudes, so that sums are rounded; where they are coded together, of one.
float inexact_at(const TensorFacts& tensor, std::uint32_t round, std::uint32_t rank,
                 std::uint64_t element) {
  const std::uint64_t bits = bits_at(tensor, round, rank, element);
  const double fraction = static_cast<double>(bits >> 12) / static_cast<double>(1ULL << 52);
  const int exponent = tensor.format == Format::kPlain ? static_cast<int>(bits % 16) : 0;
  return static_cast<float>(std::ldexp(2 * fraction - 1, exponent));
}

// What a code may be off by, as a share of the largest magnitude that is coded with it: half a step, and what the scale
// was rounded up by; with error feedback what the round before left comes on top.
double coding_error(Format format) {
  switch (format) {
    case Format::kPlain:
      return 0;
    case Format::kFloat16:
      return 1.0 / 2048;
    case Format::kBfloat16:
      return 1.0 / 256;
    case Format::kInt8:
      return 1.0 / 250;
    case Format::kInt4:
      return 1.0 / 13;
    default:  // see is_possible()
      return 0;
  }
  return 0;
}

// Codes of these formats say of each element only how it stands to others; with momentum and residuals it is of rounds
// before as well. So little more is known of the sum than that it is one.
bool is_possible(const TensorFacts& tensor, double given) {
  const double most = tensor.codec.l2 ? 1e12 : 1e6;
  return std::abs(given) <= most * std::abs(tensor.scale);
}

}  // namespace

bool TensorFacts::has_member(std::uint32_t rank) const {
  return members.empty() || std::binary_search(members.begin(), members.end(), rank);
}

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
  for (std::uint64_t i = 0; tensor.is_inexact && i < tensor.element_count; ++i) {
    put(inexact_at(tensor, round, rank, i), bytes.data() + i * step);
  }
  if (tensor.is_inexact) return bytes;
  const auto after = std::lower_bound(tensor.members.begin(), tensor.members.end(), rank);
  const auto place =
      tensor.members.empty() ? rank : static_cast<std::uint32_t>(after - tensor.members.begin());
  const std::uint32_t count = member_count(tensor, worker_count);
  for (std::uint64_t i = 0; i < tensor.element_count; ++i) {
    const std::int64_t value = value_at(tensor, round, place, count, i);
    encode(tensor.dtype, static_cast<double>(value), bytes.data() + i * step);
  }
  return bytes;
}

std::vector<std::byte> expected_result(const TensorFacts& tensor, std::uint32_t round,
                                       std::uint32_t worker_count, const Absent& absent) {
  if (tensor.operation == Operation::kBroadcast) {
    return contribution(tensor, round, tensor.root, worker_count);
  }
  std::vector<std::byte> bytes(tensor.bytes());
  const std::size_t step = element_bytes(tensor.dtype);
  const std::uint32_t count = member_count(tensor, worker_count);
  CHECK_GT(count, 0U);
  for (std::uint64_t i = 0; i < tensor.element_count; ++i) {
    std::optional<std::int64_t> some;
    for (std::uint32_t place = 0; place < count; ++place) {
      const std::uint32_t rank = tensor.members.empty() ? place : tensor.members[place];
      if (!tensor.rounds_of.empty() && round < tensor.uneven_rounds &&
          round >= tensor.rounds_of[rank]) {
        continue;
      }
      if (absent.contains(rank)) continue;
      const std::int64_t value = value_at(tensor, round, place, count, i);
      some = some ? joined(tensor, *some, value) : value;
    }
    std::int64_t all = some.value_or(0);
    if (tensor.operation == Operation::kAverage) all /= count;
    double result = static_cast<double>(all) * tensor.scale;
    if (!is_signed(tensor.dtype)) result = std::max(result, 0.0);  // what is beyond an integer type
    encode(tensor.dtype, result, bytes.data() + i * step);
  }
  return bytes;
}

bool may_be_result(const TensorFacts& tensor, std::uint32_t round, std::uint32_t worker_count,
                   std::span<const std::byte> result, const Absent& absent, std::uint64_t first,
                   std::uint64_t end) {
  const std::uint32_t count = member_count(tensor, worker_count);
  // Contributions are below 1; each is coded, what a machine has together perhaps, and the sum of all.
  const double coded = 3 * coding_error(tensor.format) * 2 * count;
  for (std::uint64_t i = first; i < std::min(end, tensor.element_count); ++i) {
    double sum = 0;
    double magnitude = 0;
    std::uint32_t lost = 0;
    for (std::uint32_t place = 0; place < count; ++place) {
      const std::uint32_t rank = tensor.members.empty() ? place : tensor.members[place];
      if (!tensor.rounds_of.empty() && round < tensor.uneven_rounds &&
          round >= tensor.rounds_of[rank]) {
        lost += absent.contains(rank) ? 1 : 0;
        continue;
      }
      if (absent.contains(rank)) {
        ++lost;
        continue;
      }
      const double value = inexact_at(tensor, round, rank, i);
      sum += value;
      magnitude += std::abs(value);
    }
    const double factor =
        tensor.scale /
        (tensor.operation == Operation::kAverage ? static_cast<double>(count - lost) : 1.0);
    float given = 0;
    std::memcpy(&given, result.data() + i * sizeof given, sizeof given);
    if (is_of_parts(tensor.format) || tensor.codec.momentum) {
      if (!is_possible(tensor, given)) return false;
      continue;
    }
    if (!(std::abs(given - sum * factor) <= (1e-5 * magnitude + coded) * std::abs(factor))) {
      return false;
    }
  }
  return true;
}

double ratio_of(const TensorFacts& tensor, std::uint32_t round) {
  return std::ldexp(1, static_cast<int>(bits_at(tensor, round, kAllRanks, 1) % 3) - 2);
}

void leave_residual(const TensorFacts& tensor, const CodedWhere& where,
                    std::span<const std::byte> contribution, std::vector<float>& residual,
                    std::vector<float>& momentum) {
  const Extent extent(tensor.bytes(), tensor.format);
  const CodingKernels coding = coding_kernels_for(tensor.format, tensor.codec, best_kernels());
  const double ratio = has_codec(tensor.format) ? ratio_of(tensor, where.step) : 1;
  const Carry carry{.residual = std::as_writable_bytes(std::span(residual)),
                    .momentum = std::as_writable_bytes(std::span(momentum)),
                    .ratio = static_cast<float>(ratio)};
  std::vector<std::byte> payload;
  PartPlace place = {
      .key = key_of(tensor.name), .part = {}, .round = where.round, .rank = where.rank};
  for (std::uint32_t index = 0; index < where.placement.part_count(extent); ++index) {
    const Placement::Part part = where.placement.part(place.key, extent, index);
    place.part = PartIndex(index);
    for (std::uint64_t at = 0; at < part.bytes; at += part.frame_bytes) {
      const std::uint64_t bytes = std::min(part.frame_bytes, part.bytes - at);
      payload.resize(coding.payload_bytes(bytes));
      coding.encode(payload, contribution.subspan(part.offset + at, bytes),
                    carry.of(part.offset + at, bytes), place);
    }
  }
}

}  // namespace byteps::sim
