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
//   float32   32                1       the elements, after momentum
//   onebit, topk, randomk, dithering    with base/codec.h; the elements of a part are coded together: a part has one
//                                       frame, of kPartElementsMax elements at the most
//
// What the codes are: kernels/coding.h, kernels/part_coding.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/dtype.h"
#include "base/limits.h"

namespace byteps {

enum class Format : std::uint8_t {  // the numbers are on the wire
  kPlain = 0,
  kFloat16 = 1,
  kBfloat16 = 2,
  kInt8 = 3,
  kInt4 = 4,
  kOnebit = 5,
  kTopk = 6,
  kRandomk = 7,
  kDithering = 8,
  kFloat32 = 9,
};
inline constexpr int kFormatCount = 10;
// Between the workers of a machine and its relays a frame travels as it is, so it is one payload, and its codes, which
// may be a word longer, are another. A core codes so many in 1 to 16 ms, and nothing else in its turn waits longer.
inline constexpr std::uint64_t kPartElementsMax = (kPayloadBytesMax - 64) / sizeof(float);

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
// Whether its codes leave a residual, for a rank that has memory for it (kernels/coding.h). Those that have a codec
// leave one where that says so.
bool has_residual(Format format);
// Whether it has what base/codec.h says; whether the elements of a part are coded together.
bool has_codec(Format format);
bool is_of_parts(Format format);
// So many elements are coded together: a frame begins with the first of them.
std::size_t block_elements(Format format);
// Of float32 elements. Not where a part is coded together (base/codec.h).
std::uint64_t payload_bytes(Format format, std::uint64_t element_count);
// The most bytes of elements, in whole blocks, that a payload of so many bytes has room for; one block where it has
// less.
std::uint64_t bytes_in_payload(Format format, std::uint64_t payload_bytes);
// nullptr when elements of this kind can be coded so; otherwise why not.
const char* flaw_of_format(Format format, DType dtype, Operation operation);

}  // namespace byteps
