#include "kernels/coding.h"

#include "base/check.h"

namespace byteps {

std::size_t CodingKernels::count(std::span<const std::byte> elements,
                                 std::span<const std::byte> payload) const {
  const std::size_t element_count = elements.size() / sizeof(float);
  CHECK_EQ(element_count * sizeof(float), elements.size()) << "whole elements";
  CHECK_EQ(payload_bytes(format_, element_count), payload.size()) << "a payload of its length";
  return element_count;
}

void CodingKernels::encode(std::span<std::byte> payload, std::span<const std::byte> elements,
                           std::span<std::byte> residual) const {
  const std::size_t element_count = count(elements, payload);
  if (halves_.load_elements != nullptr) {
    CHECK(residual.empty()) << "a half leaves too little";
    return halves_.finish_elements(payload.data(), elements.data(), element_count, {});
  }
  if (!residual.empty()) CHECK_EQ(residual.size(), elements.size());
  blocks_.encode_elements(payload.data(), elements.data(),
                          residual.empty() ? nullptr : residual.data(), element_count);
}

void CodingKernels::load(std::span<std::byte> elements, std::span<const std::byte> payload) const {
  const auto load =
      halves_.load_elements != nullptr ? halves_.load_elements : blocks_.load_elements;
  load(elements.data(), payload.data(), count(elements, payload));
}

void CodingKernels::add(std::span<std::byte> elements, std::span<const std::byte> payload) const {
  const auto add = halves_.load_elements != nullptr ? halves_.add_elements : blocks_.add_elements;
  add(elements.data(), payload.data(), count(elements, payload));
}

CodingKernels coding_kernels_for(Format format, const KernelSet& set) {
  switch (format) {
    case Format::kFloat16:
      return {format, kernels_for(DType::kFloat16, Operation::kSum, set)};
    case Format::kBfloat16:
      return {format, kernels_for(DType::kBfloat16, Operation::kSum, set)};
    case Format::kInt8:
      return {format, set.int8};
    case Format::kInt4:
      return {format, set.int4};
    case Format::kPlain:
      break;
  }
  CHECK(false) << "plain elements are not coded";
  return {format, set.int8};
}

}  // namespace byteps
