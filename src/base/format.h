// Format: how the elements of a tensor travel, where they are coded. All ranks use the same (base/spec.h).
//
// A coded tensor is an ordinary one whose frames have another payload. Parts, frames, offsets and rounds count the
// bytes of its elements as ever; the payload of a frame has a length that follows from its number of elements alone.
//
//   format    bits an element   block   payload of n elements, as blocks whose last may have fewer
//   plain     32                1       the elements
//   float16   16                1       n numbers of 2 bytes (kernels/half.h)
//   bfloat16  16                1       likewise
//   int8      8.125             256     a float32 scale for each block, then n codes of 1 byte
//   int4      4.5               32      a bfloat16 scale for each block, then 16 bytes for each, of two codes each
//
// What the codes are: kernels/coding.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/dtype.h"

namespace byteps {

enum class Format : std::uint8_t {  // the numbers are on the wire
  kPlain = 0,
  kFloat16 = 1,
  kBfloat16 = 2,
  kInt8 = 3,
  kInt4 = 4,
};
inline constexpr int kFormatCount = 5;

// How much of a tensor there is to cut and to send.
struct Extent {
  // NOLINTNEXTLINE(google-explicit-constructor): bytes are an extent, of plain elements
  Extent(std::uint64_t bytes_of_elements, Format how = Format::kPlain)
      : bytes(bytes_of_elements), format(how) {}
  std::uint64_t bytes;  // of its elements
  Format format;
};

const char* name(Format format);  // "plain", "int8"
std::optional<Format> format_of(std::uint32_t wire_number);
// Whether its codes leave a residual (kernels/coding.h).
bool has_residual(Format format);
// So many elements are coded together: a frame begins with the first of them.
std::size_t block_elements(Format format);
// Of float32 elements.
std::uint64_t payload_bytes(Format format, std::uint64_t element_count);
// Of elements of so many bytes. Plain elements may be of any kind.
std::uint64_t payload_bytes_of(const Extent& extent);
// The most bytes of elements, in whole blocks, that a payload of so many bytes has room for; one block where it has
// less.
std::uint64_t bytes_in_payload(Format format, std::uint64_t payload_bytes);
// nullptr when elements of this kind can be coded so; otherwise why not.
const char* flaw_of_format(Format format, DType dtype, Operation operation);

}  // namespace byteps
