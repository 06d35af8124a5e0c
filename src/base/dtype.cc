#include "base/dtype.h"

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

std::optional<DType> dtype_of(std::uint32_t wire_number) {
  if (wire_number >= kDTypeCount) return std::nullopt;
  return static_cast<DType>(wire_number);
}

std::optional<Operation> operation_of(std::uint32_t wire_number) {
  if (wire_number >= kOperationCount) return std::nullopt;
  return static_cast<Operation>(wire_number);
}

}  // namespace byteps
