#include "kernels/part_coding.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"
#include "kernels/part_codes.h"

namespace byteps {
namespace {

constexpr double kLinearMax = 1 << 23;  // levels: each is a float32, and so is the next
constexpr double kNaturalMax = 24;      // 2^23 is the last

const char* flaw_of_k(const PartCodec& codec, std::uint64_t element_count) {
  if (codec.kind == PartKind::kOnebit) return nullptr;
  if (!(codec.k > 0)) return "k must be above 0";
  if (codec.k >= 1 && codec.k != std::floor(codec.k)) return "a k above 1 must be a whole number";
  if (codec.kind == PartKind::kDithering) {
    if (codec.k < 1) return "dithering needs a k of 1 or more: its levels";
    if (codec.natural && codec.k > kNaturalMax) return "k can be at most 24 for natural dithering";
    return codec.k > kLinearMax ? "k can be at most 8388608 for dithering" : nullptr;
  }
  // The part of one element has no half.
  const auto count = static_cast<double>(element_count);
  const double sent = codec.k < 1 ? std::max(1.0, std::floor(codec.k * count)) : codec.k;
  if (codec.kind == PartKind::kTopk && sent > std::floor(count / 2)) {
    return "topk can send at most half of the elements of a part";
  }
  return sent > count ? "randomk can send at most as many elements as a part has" : nullptr;
}

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

// Into the residual, which becomes one again when the codes are taken off; without, into `scratch`.
void correct(const Correction how, float* scratch) {
  for (std::size_t i = 0; i < how.count; ++i) {
    const Corrected now = corrected(how, i);
    if (how.momentum != nullptr) how.momentum[i] = now.momentum;
    (how.residual != nullptr ? how.residual : scratch)[i] = now.element;
  }
}

bool is_known(double learning_rate) {
  return learning_rate > 0 && std::isfinite(learning_rate);
}

std::size_t write(const PartCodec& codec, std::byte* payload, const PartElements& elements,
                  PartDraws& draws) {
  switch (codec.kind) {
    case PartKind::kOnebit:
      return write_onebit(codec, payload, elements);
    case PartKind::kTopk:
      return write_topk(codec, payload, elements);
    case PartKind::kRandomk:
      return write_randomk(codec, payload, elements, draws);
    case PartKind::kDithering:
      return write_dithering(codec, payload, elements, draws);
  }
  return 0;
}

const char* read(const PartCodec& codec, std::span<std::byte> elements,
                 std::span<const std::byte> payload, const PartDraws& drawn, PartUse use) {
  const std::size_t count = elements.size() / sizeof(float);
  switch (codec.kind) {
    case PartKind::kOnebit:
      return read_onebit(elements.data(), count, payload, use);
    case PartKind::kTopk:
      return read_topk(codec, elements.data(), count, payload, use);
    case PartKind::kRandomk:
      return read_randomk(codec, elements.data(), count, payload, use, drawn);
    case PartKind::kDithering:
      return read_dithering(codec, elements.data(), count, payload, use);
  }
  return nullptr;
}

}  // namespace

const char* name(PartKind kind) {
  switch (kind) {
    case PartKind::kOnebit:
      return "onebit";
    case PartKind::kTopk:
      return "topk";
    case PartKind::kRandomk:
      return "randomk";
    case PartKind::kDithering:
      return "dithering";
  }
  return "unknown";
}

const char* flaw_of_part_codec(const PartCodec& codec, std::uint64_t element_count) {
  if (element_count == 0) return "a part without elements cannot be coded";
  if (element_count >= 0xffffffff) return "a part of 2^32 - 1 or more elements cannot be coded";
  if (codec.momentum.has_value() && !(*codec.momentum >= 0 && *codec.momentum < 1)) {
    return "momentum must be at least 0, and below 1";
  }
  return flaw_of_k(codec, element_count);
}

std::size_t sent_elements(const PartCodec& codec, std::size_t element_count) {
  if (codec.k >= 1) return static_cast<std::size_t>(codec.k);
  const double share = std::floor(codec.k * static_cast<double>(element_count));
  return std::max<std::size_t>(1, static_cast<std::size_t>(share));
}

std::size_t payload_bytes_max(const PartCodec& codec, std::size_t element_count) {
  switch (codec.kind) {
    case PartKind::kOnebit:
      return ((element_count + 31) / 32 + 1) * sizeof(float);
    case PartKind::kTopk:
      return sent_elements(codec, element_count) * 2 * sizeof(float);
    case PartKind::kRandomk:
      return sent_elements(codec, element_count) * sizeof(float);
    case PartKind::kDithering:
      return dithering_bytes_max(codec, element_count);
  }
  return 0;
}

PartState first_state(const PartCodec& codec, const PartPlace& place, std::size_t element_count) {
  PartState state;
  state.place = place;
  if (codec.kind == PartKind::kRandomk) state.place.rank = 0;
  if (codec.seed.has_value()) state.draws = PartDraws::seeded(*codec.seed);
  if (codec.error_feedback) state.residual.resize(element_count);
  if (codec.momentum.has_value()) state.momentum.resize(element_count);
  if (codec.momentum.has_value() && !codec.error_feedback) state.scratch.resize(element_count);
  return state;
}

std::size_t encode(const PartCodec& codec, PartState& state, std::span<std::byte> payload,
                   std::span<const std::byte> elements, Round round, double learning_rate) {
  const std::size_t count = elements.size() / sizeof(float);
  CHECK_EQ(elements.size() % sizeof(float), 0U) << "whole elements";
  CHECK(payload.size() >= payload_bytes_max(codec, count)) << "room for the payload";
  CHECK_EQ(state.residual.size(), codec.error_feedback ? count : 0);
  CHECK_EQ(state.momentum.size(), codec.momentum.has_value() ? count : 0);
  const bool both_known = is_known(learning_rate) && is_known(state.learning_rate);
  const Correction how = {
      .elements = elements.data(),
      .count = count,
      .momentum = codec.momentum.has_value() ? state.momentum.data() : nullptr,
      .residual = codec.error_feedback ? state.residual.data() : nullptr,
      .mu = codec.momentum.value_or(0),
      .ratio = both_known ? static_cast<float>(state.learning_rate / learning_rate) : 1,
  };
  PartElements coded = {elements.data(), count, largest_magnitude(how)};
  if (coded.is_finite() && is_known(learning_rate)) state.learning_rate = learning_rate;
  if (coded.is_finite() && (codec.error_feedback || codec.momentum.has_value())) {
    if (!codec.error_feedback) state.scratch.resize(count);
    correct(how, state.scratch.data());
    coded.bytes =
        std::as_bytes(std::span(codec.error_feedback ? state.residual : state.scratch)).data();
  }

  if (!codec.seed.has_value()) state.draws = PartDraws::counted(state.place, round);
  state.drawn = state.draws;
  const std::size_t written = write(codec, payload.data(), coded, state.draws);
  if (coded.is_finite() && codec.error_feedback) {
    const char* const flaw = read(codec, std::as_writable_bytes(std::span(state.residual)),
                                  payload.first(written), state.drawn, PartUse::kTakeOff);
    CHECK(flaw == nullptr) << flaw;
  }
  return written;
}

const char* decode(const PartCodec& codec, std::span<std::byte> elements,
                   std::span<const std::byte> payload, const PartDraws& drawn) {
  CHECK_EQ(elements.size() % sizeof(float), 0U) << "whole elements";
  return read(codec, elements, payload, drawn, PartUse::kSet);
}

const char* decode_add(const PartCodec& codec, std::span<std::byte> elements,
                       std::span<const std::byte> payload, const PartDraws& drawn) {
  CHECK_EQ(elements.size() % sizeof(float), 0U) << "whole elements";
  const char* const flaw = read(codec, elements, payload, drawn, PartUse::kNothing);
  return flaw != nullptr ? flaw : read(codec, elements, payload, drawn, PartUse::kAdd);
}

}  // namespace byteps
