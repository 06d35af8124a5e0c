#include "base/dtype.h"

#include <cmath>
#include <limits>

namespace byteps {
namespace {

struct Description {
  const char* name;
  std::size_t bytes;
};
constexpr Description kDTypes[kDTypeCount] = {
    {"float32", 4}, {"float64", 8}, {"float16", 2},  {"uint8", 1}, {"int32", 4},
    {"int8", 1},    {"int64", 8},   {"bfloat16", 2}, {"bool", 1},  {"int16", 2},
    {"uint16", 2},  {"uint32", 4},  {"uint64", 8},
};
constexpr const char* kLogicalTypes[kLogicalTypeCount] = {
    "",
    "complex32",
    "complex64",
    "complex128",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float8_e4m3",
    "float8_e3m4",
    "float8_e4m3b11fnuz",
    "float4_e2m1fn_x2",
};
constexpr const char* kOperations[kOperationCount] = {"sum", "average", "broadcast",
                                                      "min", "max",     "product"};

}  // namespace

std::size_t element_bytes(DType dtype) {
  return kDTypes[static_cast<int>(dtype)].bytes;
}
bool is_float(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat64 || dtype == DType::kFloat16 ||
         dtype == DType::kBfloat16;
}
const char* name(DType dtype) {
  return kDTypes[static_cast<int>(dtype)].name;
}
const char* name(Operation operation) {
  return kOperations[static_cast<int>(operation)];
}
std::string name(DType dtype, LogicalType logical) {
  if (logical == LogicalType::kSame) return name(dtype);
  const auto number = static_cast<unsigned>(logical);
  const std::string known =
      number < kLogicalTypeCount ? kLogicalTypes[number] : "dtype " + std::to_string(number);
  return known + " as " + name(dtype);
}

std::optional<DType> dtype_of(std::uint32_t wire_number) {
  if (wire_number >= kDTypeCount) return std::nullopt;
  return static_cast<DType>(wire_number);
}

std::optional<Operation> operation_of(std::uint32_t wire_number) {
  if (wire_number >= kOperationCount) return std::nullopt;
  return static_cast<Operation>(wire_number);
}

const char* flaw_of_scale(double scale, DType dtype, Operation operation) {
  if (scale == 1) return nullptr;
  if (!std::isfinite(scale) || scale == 0) return "its scale is not a finite number other than 0";
  if (operation != Operation::kSum && operation != Operation::kAverage) {
    return "only sums and averages have a scale";
  }
  if (dtype == DType::kBool) return "booleans have no scale";
  // Halves are scaled in float32 as well.
  const bool narrow = is_float(dtype) && dtype != DType::kFloat64;
  if (narrow && std::abs(scale) > std::numeric_limits<float>::max()) {
    return "its scale is beyond the range of float32";
  }
  return nullptr;
}

}  // namespace byteps
