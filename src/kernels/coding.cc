#include "kernels/coding.h"

#include "base/check.h"

namespace byteps {

std::size_t CodingKernels::count(std::span<const std::byte> elements,
                                 std::span<const std::byte> payload) const {
  const std::size_t element_count = elements.size() / sizeof(float);
  CHECK_EQ(element_count * sizeof(float), elements.size()) << "whole elements";
  CHECK_EQ(payload_bytes(elements.size()), payload.size()) << "a payload of its length";
  return element_count;
}

void CodingKernels::encode(std::span<std::byte> payload, std::span<const std::byte> elements,
                           const Carry& carry, const PartPlace& place) const {
  if (has_codec(format())) return byteps::encode(coding_, payload, elements, carry, place);
  const std::size_t element_count = count(elements, payload);
  CHECK(carry.momentum.empty() && carry.ratio == 1) << "only for those that have a codec";
  const std::span<std::byte> residual = carry.residual;
  if (halves_.load_elements != nullptr) {
    CHECK(residual.empty()) << "a half leaves too little";
    return halves_.finish_elements(payload.data(), elements.data(), element_count, {});
  }
  if (!residual.empty()) CHECK_EQ(residual.size(), elements.size());
  blocks_.encode_elements(payload.data(), elements.data(),
                          residual.empty() ? nullptr : residual.data(), element_count);
}

const char* CodingKernels::flaw(std::span<const std::byte> payload,
                                std::size_t element_bytes) const {
  if (has_codec(format())) {
    return flaw_of_payload(coding_, payload, element_bytes / sizeof(float));
  }
  return payload.size() == payload_bytes(element_bytes) ? nullptr : "its codes have another length";
}

void CodingKernels::load(std::span<std::byte> elements, std::span<const std::byte> payload,
                         const PartPlace& place) const {
  const std::size_t element_count = count(elements, payload);
  if (has_codec(format())) return decode(coding_, elements, payload, place);
  const auto load =
      halves_.load_elements != nullptr ? halves_.load_elements : blocks_.load_elements;
  load(elements.data(), payload.data(), element_count);
}

void CodingKernels::add(std::span<std::byte> elements, std::span<const std::byte> payload,
                        const PartPlace& place) const {
  const std::size_t element_count = count(elements, payload);
  if (has_codec(format())) return decode_add(coding_, elements, payload, place);
  const auto add = halves_.load_elements != nullptr ? halves_.add_elements : blocks_.add_elements;
  add(elements.data(), payload.data(), element_count);
}

CodingKernels coding_kernels_for(Format format, const Codec& codec, const KernelSet& set) {
  switch (format) {
    case Format::kPlain:
      break;
    case Format::kFloat16:
      return {format, kernels_for(DType::kFloat16, Operation::kSum, set)};
    case Format::kBfloat16:
      return {format, kernels_for(DType::kBfloat16, Operation::kSum, set)};
    case Format::kInt8:
      return {format, set.int8};
    case Format::kInt4:
      return {format, set.int4};
    default:
      return CodingKernels(PartCoding{format, codec});
  }
  CHECK(false) << "plain elements are not coded";
  return {format, set.int8};
}

}  // namespace byteps
