// DType: what the elements of a tensor are. The numbers are on the wire; 0 to 6 are upstream's
// (byteps/common/common.h), the rest is ours.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace byteps {

enum class DType : std::uint8_t {
  kFloat32 = 0,
  kFloat64 = 1,
  kFloat16 = 2,
  kUint8 = 3,
  kInt32 = 4,
  kInt8 = 5,
  kInt64 = 6,
  kBfloat16 = 7,
  kBool = 8,
  kInt16 = 9,
  kUint16 = 10,
  kUint32 = 11,
  kUint64 = 12,
};
inline constexpr int kDTypeCount = 13;

// What elements are to a framework where they travel as others (include/byteps/byteps.h). It is only compared and
// named. The numbers are on the wire; one that is not known here is a newer member's.
enum class LogicalType : std::uint8_t { kSame = 0 };
inline constexpr int kLogicalTypeCount = 13;

// How contributions become the answer.
enum class Operation : std::uint8_t {
  kSum = 0,        // bool: logical or
  kAverage = 1,    // the sum, divided once by the number of workers; integers towards zero
  kBroadcast = 2,  // the root's bytes to everyone; the others push nothing
  kMin = 3,        // bool: logical and; a NaN among floats is the result
  kMax = 4,        // bool: logical or; NaN likewise
  kProduct = 5,    // bool: logical and; integers wrap, as sums do
};
inline constexpr int kOperationCount = 6;

std::size_t element_bytes(DType dtype);
bool is_float(DType dtype);
const char* name(DType dtype);          // "float32", ...
const char* name(Operation operation);  // "sum", ...
std::string name(DType dtype,
                 LogicalType logical);  // "complex64 as float32"; "float32" when it is the same
std::optional<DType> dtype_of(std::uint32_t wire_number);
std::optional<Operation> operation_of(std::uint32_t wire_number);
// nullptr when results of this operation can be multiplied by `scale` (1 is always fine); otherwise why not.
const char* flaw_of_scale(double scale, DType dtype, Operation operation);

}  // namespace byteps
