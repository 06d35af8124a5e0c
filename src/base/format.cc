#include "base/format.h"

#include <algorithm>

#include "base/check.h"

namespace byteps {

const char* name(Format format) {
  switch (format) {
    case Format::kPlain:
      return "plain";
    case Format::kFloat16:
      return "float16";
    case Format::kBfloat16:
      return "bfloat16";
    case Format::kInt8:
      return "int8";
    case Format::kInt4:
      return "int4";
    case Format::kOnebit:
      return "onebit";
    case Format::kTopk:
      return "topk";
    case Format::kRandomk:
      return "randomk";
    case Format::kDithering:
      return "dithering";
    case Format::kFloat32:
      return "float32";
  }
  return "unknown";
}

std::optional<Format> format_of(std::uint32_t wire_number) {
  if (wire_number >= kFormatCount) return std::nullopt;
  return static_cast<Format>(wire_number);
}

bool has_residual(Format format) {
  return format == Format::kInt8 || format == Format::kInt4;
}

bool has_codec(Format format) {
  return is_of_parts(format) || format == Format::kFloat32;
}

bool is_of_parts(Format format) {
  return format == Format::kOnebit || format == Format::kTopk || format == Format::kRandomk ||
         format == Format::kDithering;
}

std::size_t block_elements(Format format) {
  switch (format) {
    case Format::kInt8:
      return 256;
    case Format::kInt4:
      return 32;
    default:
      return 1;
  }
}

std::uint64_t payload_bytes(Format format, std::uint64_t element_count) {
  const std::uint64_t block = block_elements(format);
  const std::uint64_t blocks = element_count / block + (element_count % block != 0 ? 1 : 0);
  switch (format) {
    case Format::kPlain:
    case Format::kFloat32:
      return element_count * sizeof(float);
    case Format::kFloat16:
    case Format::kBfloat16:
      return element_count * 2;
    case Format::kInt8:
      return blocks * sizeof(float) + element_count;
    case Format::kInt4:
      return blocks * (2 + block / 2);
    default:
      break;
  }
  CHECK(false) << name(format) << " needs its codec";
  return 0;
}

std::uint64_t bytes_in_payload(Format format, std::uint64_t room_bytes) {
  if (format == Format::kPlain) return room_bytes;
  const std::uint64_t block = block_elements(format);
  const std::uint64_t blocks = room_bytes / payload_bytes(format, block);
  return std::max<std::uint64_t>(1, blocks) * block * sizeof(float);
}

const char* flaw_of_format(Format format, DType dtype, Operation operation) {
  if (format == Format::kPlain) return nullptr;
  if (dtype != DType::kFloat32) return "only float32 elements can be coded";
  if (operation != Operation::kSum && operation != Operation::kAverage) {
    return "only sums and averages can be coded";
  }
  return nullptr;
}

}  // namespace byteps
