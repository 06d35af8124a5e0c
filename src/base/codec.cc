#include "base/codec.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "base/phrases.h"

namespace byteps {
namespace {

constexpr double kLinearMax = 1 << 23;  // levels: each is a float32, and so is the next
constexpr double kNaturalMax = 24;      // 2^23 is the last

const char* flaw_of_k(Format format, const Codec& codec) {
  if (format == Format::kOnebit || format == Format::kFloat32) {
    return codec.k == 0 ? nullptr : "k is for topk, randomk and dithering";
  }
  if (!(codec.k > 0) || std::isinf(codec.k)) return "k must be above 0";
  if (codec.k >= 1 && codec.k != std::floor(codec.k)) return "a k above 1 must be a whole number";
  if (format == Format::kDithering) {
    if (codec.k < 1) return "dithering needs a k of 1 or more: its levels";
    if (codec.natural && codec.k > kNaturalMax) return "k can be at most 24 for natural dithering";
    return codec.k > kLinearMax ? "k can be at most 8388608 for dithering" : nullptr;
  }
  if (format == Format::kTopk && codec.k < 1 && codec.k > 0.5) {
    return "topk can send at most half of the elements: a k below 1 can be at most 0.5";
  }
  return nullptr;
}

}  // namespace

const Codec SharedCodec::kNone;

std::string Codec::text() const {
  std::vector<std::string> words;
  if (k != 0) words.push_back("k = " + number_text(k));
  if (scaling) words.emplace_back("scaling");
  if (natural) words.emplace_back("natural levels");
  if (l2) words.emplace_back("the l2 norm");
  if (seed) words.push_back("seed " + std::to_string(*seed));
  if (error_feedback) words.emplace_back("error feedback");
  if (momentum) words.push_back("momentum " + number_text(*momentum));
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    text += i == 0 ? " with " : i + 1 == words.size() ? " and " : ", ";
    text += words[i];
  }
  return text;
}

const char* flaw_of_codec(Format format, const Codec& codec) {
  if (!has_codec(format)) {
    return codec == Codec() ? nullptr
                            : "only onebit, topk, randomk, dithering and float32 have a codec or "
                              "momentum";
  }
  if (codec.seed && format != Format::kRandomk && format != Format::kDithering) {
    return "a seed is for randomk and dithering";
  }
  if (codec.scaling && format != Format::kOnebit) return "scaling is for onebit";
  if ((codec.natural || codec.l2) && format != Format::kDithering) {
    return "natural levels and the l2 norm are for dithering";
  }
  if (codec.error_feedback && format == Format::kFloat32) {
    return "float32 leaves nothing for error feedback";
  }
  if (codec.momentum && !(*codec.momentum >= 0 && static_cast<float>(*codec.momentum) < 1)) {
    return "momentum must be at least 0, and below 1";
  }
  return flaw_of_k(format, codec);
}

std::uint64_t sent_elements(Format format, const Codec& codec, std::uint64_t element_count) {
  const auto count = static_cast<double>(element_count);
  const double most = format == Format::kTopk ? std::floor(count / 2) : count;
  const double wanted = codec.k < 1 ? std::floor(codec.k * count) : codec.k;
  return static_cast<std::uint64_t>(std::max(1.0, std::min(wanted, most)));
}

unsigned dithering_bits(const Codec& codec) {
  return static_cast<unsigned>(std::bit_width(2 * static_cast<std::uint32_t>(codec.k)));
}

std::uint64_t payload_bytes(Format format, const Codec& codec, std::uint64_t element_count) {
  constexpr std::uint64_t kWord = sizeof(float);
  if (!is_of_parts(format)) return payload_bytes(format, element_count);
  if (element_count == 0) return 0;
  std::uint64_t words = 0;
  if (format == Format::kOnebit) words = (element_count + 31) / 32 + 1;
  if (format == Format::kTopk) words = 2 * sent_elements(format, codec, element_count);
  if (format == Format::kRandomk) words = sent_elements(format, codec, element_count);
  if (format == Format::kDithering) words = (element_count * dithering_bits(codec) + 31) / 32 + 1;
  // By its length a payload is told from the elements themselves.
  return (words == element_count ? words + 1 : words) * kWord;
}

}  // namespace byteps
