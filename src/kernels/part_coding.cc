#include "kernels/part_coding.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>

#include "base/check.h"
#include "kernels/part_codes.h"

namespace byteps {
namespace {

// How elements become what is coded.
struct Correction {
  const std::byte* elements;
  std::size_t count;
  float* momentum;  // nullptr: none
  float* residual;  // nullptr: none
  float mu;
  float ratio;
};

struct Corrected {
  float element;
  float momentum;
};
Corrected corrected(const Correction& how, std::size_t index) {
  Corrected now = {.element = float_at(how.elements, index), .momentum = 0};
  if (how.momentum != nullptr) {
    now.momentum = how.mu * how.momentum[index] + now.element;
    now.element = now.element + how.mu * now.momentum;
  }
  if (how.residual != nullptr) now.element = now.element + how.residual[index] * how.ratio;
  return now;
}

// Bits of magnitudes are ordered as these are, and those of infinities and NaNs are above all others.
std::uint32_t largest_magnitude(const Correction how) {
  std::int32_t largest = 0;
  for (std::size_t i = 0; i < how.count; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(corrected(how, i).element) & kMagnitudeBits;
    largest = std::max(largest, static_cast<std::int32_t>(bits));
  }
  return static_cast<std::uint32_t>(largest);
}

// Into the residual, which becomes one again when the codes are taken off; without, elsewhere.
void correct(const Correction how, float* into) {
  for (std::size_t i = 0; i < how.count; ++i) {
    const Corrected now = corrected(how, i);
    if (how.momentum != nullptr) how.momentum[i] = now.momentum;
    into[i] = now.element;
  }
}

// How many of a round came before is the same in each.
PartDraws draws_of(const PartCoding& coding, PartPlace place, std::size_t element_count) {
  const bool is_randomk = coding.format == Format::kRandomk;
  if (coding.codec.seed.has_value()) {
    const std::uint64_t of_round =
        is_randomk ? sent_elements(coding.format, coding.codec, element_count) : element_count;
    return PartDraws::seeded(*coding.codec.seed, place.round.value * of_round);
  }
  if (is_randomk) place.rank = 0;
  return PartDraws::counted(place);
}

void write(const PartCoding& coding, std::span<std::byte> payload, const PartElements& elements,
           const PartPlace& place) {
  switch (coding.format) {
    case Format::kOnebit:
      return write_onebit(coding.codec, payload.data(), elements);
    case Format::kTopk:
      return write_topk(coding.codec, payload.data(), elements);
    case Format::kRandomk:
      return write_randomk(coding.codec, payload.data(), elements,
                           draws_of(coding, place, elements.count));
    case Format::kDithering:
      return write_dithering(coding.codec, payload.data(), elements,
                             draws_of(coding, place, elements.count));
    default:
      if (payload.data() != elements.bytes) {
        std::memcpy(payload.data(), elements.bytes, payload.size());
      }
  }
}

void read(const PartCoding& coding, std::byte* elements, std::size_t count, PartBytes payload,
          const PartPlace& place, PartUse use) {
  switch (coding.format) {
    case Format::kOnebit:
      return read_onebit(elements, count, payload, use);
    case Format::kTopk:
      return read_topk(coding.codec, elements, count, payload, use);
    case Format::kRandomk:
      return read_randomk(coding.codec, elements, count, payload, use,
                          draws_of(coding, place, count));
    case Format::kDithering:
      return read_dithering(coding.codec, elements, count, payload, use);
    default:
      for (std::size_t i = 0; i < count; ++i)
        use_number(use, elements, i, float_at(payload.data(), i));
  }
}

float* floats_of(std::span<std::byte> memory) {
  return memory.empty() ? nullptr : reinterpret_cast<float*>(memory.data());
}

}  // namespace

void encode(const PartCoding& coding, std::span<std::byte> payload,
            std::span<const std::byte> elements, const Carry& carry, const PartPlace& place) {
  const std::size_t count = elements.size() / sizeof(float);
  CHECK_EQ(elements.size() % sizeof(float), 0U) << "whole elements";
  CHECK_EQ(payload.size(), payload_bytes(coding.format, coding.codec, count)) << "room for it";
  if (count == 0) return;
  const bool has_momentum = coding.codec.momentum.has_value() && !carry.momentum.empty();
  const bool has_residual = coding.codec.error_feedback && !carry.residual.empty();
  if (has_momentum) CHECK_EQ(carry.momentum.size(), elements.size());
  if (has_residual) CHECK_EQ(carry.residual.size(), elements.size());
  const Correction how = {
      .elements = elements.data(),
      .count = count,
      .momentum = has_momentum ? floats_of(carry.momentum) : nullptr,
      .residual = has_residual ? floats_of(carry.residual) : nullptr,
      .mu = static_cast<float>(coding.codec.momentum.value_or(0)),
      .ratio = carry.ratio,
  };
  PartElements coded = {elements.data(), count, largest_magnitude(how)};
  std::unique_ptr<float[]> scratch;
  if (coded.is_finite() && (has_momentum || has_residual)) {
    float* into = how.residual;
    if (into == nullptr && coding.format == Format::kFloat32) into = floats_of(payload);
    if (into == nullptr) {
      scratch.reset(new float[count]);
      into = scratch.get();
    }
    correct(how, into);
    coded.bytes = reinterpret_cast<const std::byte*>(into);
  }
  if (is_of_parts(coding.format)) {
    std::memset(payload.data() + payload.size() - sizeof(float), 0, sizeof(float));
  }
  write(coding, payload, coded, place);
  if (coded.is_finite() && has_residual) {
    read(coding, carry.residual.data(), count, payload, place, PartUse::kTakeOff);
  }
}

const char* flaw_of_payload(const PartCoding& coding, std::span<const std::byte> payload,
                            std::size_t element_count) {
  if (payload.size() != payload_bytes(coding.format, coding.codec, element_count)) {
    return "its codes have another length";
  }
  if (element_count == 0) return nullptr;
  if (coding.format == Format::kTopk) return flaw_of_topk(coding.codec, element_count, payload);
  if (coding.format != Format::kDithering) return nullptr;
  return flaw_of_dithering(coding.codec, element_count, payload);
}

void decode(const PartCoding& coding, std::span<std::byte> elements,
            std::span<const std::byte> payload, const PartPlace& place) {
  if (elements.empty()) return;
  read(coding, elements.data(), elements.size() / sizeof(float), payload, place, PartUse::kSet);
}

void decode_add(const PartCoding& coding, std::span<std::byte> elements,
                std::span<const std::byte> payload, const PartPlace& place) {
  if (elements.empty()) return;
  read(coding, elements.data(), elements.size() / sizeof(float), payload, place, PartUse::kAdd);
}

}  // namespace byteps
