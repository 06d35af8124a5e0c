// Dithering: levels by chance, then their codes.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/part_bits.h"
#include "kernels/part_codes.h"

namespace byteps {
namespace {

constexpr std::size_t kBlock = 256;  // elements that are quantized at once
constexpr std::size_t kHeaderWords = 2;
constexpr std::uint32_t kPacked = 0xffffffff;
constexpr std::uint32_t kOne = 0x3f800000;                      // bits of 1
constexpr double kNormMax = std::numeric_limits<float>::max();  // no element is larger

std::uint32_t level_count(const PartCodec& codec) {
  return static_cast<std::uint32_t>(codec.k);
}
// L.
float steps_of(const PartCodec& codec) {
  return codec.natural ? std::ldexp(1.0F, static_cast<int>(codec.k) - 1)
                       : static_cast<float>(codec.k);
}
unsigned packed_bits(const PartCodec& codec) {
  return static_cast<unsigned>(std::bit_width(2 * level_count(codec)));
}
std::size_t packed_words(const PartCodec& codec, std::size_t element_count) {
  return (element_count * packed_bits(codec) + 31) / 32;
}

float norm_of(const PartCodec& codec, const PartElements& elements) {
  if (!elements.is_finite()) return kNotANumber;
  if (!codec.l2) return std::bit_cast<float>(elements.largest);
  const double sum = sum_of(elements.count, [&](std::size_t i) {
    const auto number = static_cast<double>(elements.at(i));
    return number * number;
  });
  return static_cast<float>(std::min(std::sqrt(sum), kNormMax));
}

// As a conversion does it, rounded once; but of vectors, too: 2^84 + the upper half, 2^52 + the lower one.
double double_of(std::uint64_t number) {
  const auto upper = std::bit_cast<double>(0x4530000000000000U | number >> 32);
  const auto lower = std::bit_cast<double>(0x4330000000000000U | (number & 0xffffffffU));
  return (upper - 0x1.00000001p84) + lower;
}

// y of each element, below which level it is, and how likely it goes up to it.
struct Quantizer {
  const std::byte* elements;
  float norm;
  float steps;

  float y(std::size_t index) const { return std::fabs(float_at(elements, index)) / norm * steps; }
  void linear(std::uint32_t* levels, float* chances, std::size_t first, std::size_t count) const {
    for (std::size_t i = 0; i < count; ++i) {
      const float of_element = y(first + i);
      const auto low = static_cast<std::int32_t>(of_element);
      levels[i] = static_cast<std::uint32_t>(low);
      chances[i] = of_element - static_cast<float>(low);
    }
  }
  // The exponent of the float below y is that of the largest power of two below y, whose inverse has the exponent
  // negated: 2 * kOne - its bits. So nothing is rounded.
  void natural(std::uint32_t* levels, float* chances, std::size_t first, std::size_t count) const {
    for (std::size_t i = 0; i < count; ++i) {
      const float of_element = y(first + i);
      const std::uint32_t below = std::bit_cast<std::uint32_t>(of_element) - 1;
      const std::uint32_t is_large = of_element > 1 ? 0xffffffffU : 0U;
      const std::uint32_t power = below & kInfinityBits & is_large;
      const std::uint32_t length = power | (kOne & ~is_large);
      levels[i] = ((below >> 23) - 126) & is_large;
      chances[i] =
          (of_element - std::bit_cast<float>(power)) * std::bit_cast<float>(2 * kOne - length);
    }
  }
};

void go_up(std::uint32_t* levels, const float* chances, const std::uint64_t* numbers,
           std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const double limit = static_cast<double>(chances[i]) * 0x1p64;
    levels[i] += double_of(numbers[i]) < limit ? 1U : 0U;
  }
}

// Both put into a copy of the writer: it stays in registers, while the other could change with each word in memory.
bool put_packed(BitWriter& writer, const PartCodec& codec, const PartElements& elements,
                const std::uint32_t* levels, std::size_t first, std::size_t count) {
  BitWriter bits = writer;
  const unsigned width = packed_bits(codec);
  const std::uint32_t level_max = level_count(codec);
  for (std::size_t i = 0; i < count; ++i) {
    const bool is_negative = levels[i] > 0 && elements.at(first + i) < 0;
    if (!bits.put(levels[i] + (is_negative ? level_max : 0U), width)) return false;
  }
  writer = bits;
  return true;
}

// `after`: behind the last element with a level above 0.
bool put_sparse(BitWriter& writer, std::size_t& after, std::uint32_t& above_zero,
                const PartElements& elements, const std::uint32_t* levels, std::size_t first,
                std::size_t count) {
  BitWriter bits = writer;
  std::uint32_t above[kBlock];
  std::size_t found = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    above[found] = i;
    found += levels[i] > 0 ? 1 : 0;
  }
  std::size_t last = after;
  for (std::size_t i = 0; i < found; ++i) {
    const std::size_t index = first + above[i];
    const auto distance = static_cast<std::uint32_t>(index + 1 - last);
    const std::uint32_t sign = word_at(elements.bytes, index) & kSignBit;
    if (!bits.put({distance, levels[above[i]], sign})) return false;
    last = index + 1;
  }
  after = last;
  above_zero += static_cast<std::uint32_t>(found);
  writer = bits;
  return true;
}

// The bytes of the payload, and 0 where this form has no room in the words of the packed one.
std::size_t write_form(const PartCodec& codec, std::byte* payload, const PartElements& elements,
                       float norm, PartDraws& draws, bool is_packed) {
  const Quantizer quantizer = {elements.bytes, norm, steps_of(codec)};
  BitWriter bits(payload + kHeaderWords * 4, packed_words(codec, elements.count));
  std::size_t after = 0;
  std::uint32_t above_zero = 0;
  std::uint64_t numbers[kBlock];
  std::uint32_t levels[kBlock];
  float chances[kBlock];
  for (std::size_t first = 0; first < elements.count; first += kBlock) {
    const std::size_t count = std::min(kBlock, elements.count - first);
    draws.fill({numbers, count});
    if (codec.natural) {
      quantizer.natural(levels, chances, first, count);
    } else {
      quantizer.linear(levels, chances, first, count);
    }
    go_up(levels, chances, numbers, count);
    const bool has_room = is_packed
                              ? put_packed(bits, codec, elements, levels, first, count)
                              : put_sparse(bits, after, above_zero, elements, levels, first, count);
    if (!has_room) return 0;
  }
  put_float(payload, 0, norm);
  put_word(payload, 1, is_packed ? kPacked : above_zero);
  return (kHeaderWords + bits.finish()) * 4;
}

// A part of which no levels are sent.
std::size_t write_norm_alone(std::byte* payload, float norm, std::size_t count, PartDraws& draws) {
  std::uint64_t numbers[kBlock];
  for (std::size_t first = 0; first < count; first += kBlock) {
    draws.fill({numbers, std::min(kBlock, count - first)});
  }
  put_float(payload, 0, norm);
  put_word(payload, 1, 0);
  return kHeaderWords * 4;
}

// ---- reading

// What levels are decoded to.
class Levels {
 public:
  Levels(const PartCodec& codec, float norm)
      : norm_(norm), steps_(steps_of(codec)), is_natural_(codec.natural) {
    const std::uint32_t levels = std::min<std::uint32_t>(level_count(codec) + 1, kKept);
    for (std::uint32_t level = 0; level < levels; ++level) kept_[level] = computed(level);
  }

  float value(std::uint32_t level, std::uint32_t sign) const {
    const float number = level < kKept ? kept_[level] : computed(level);
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(number) ^ sign);
  }

 private:
  static constexpr std::uint32_t kKept = 256;

  float computed(std::uint32_t level) const {
    if (level == 0) return 0;
    const float q =
        is_natural_ ? std::bit_cast<float>((level + 126) << 23) : static_cast<float>(level);
    const float product = q * norm_;
    return std::isfinite(product) ? product / steps_ : q * (norm_ / steps_);
  }

  float norm_;
  float steps_;
  bool is_natural_;
  float kept_[kKept];
};

template <PartUse kUse>
const char* read_packed(const PartCodec& codec, const Levels& levels, std::byte* elements,
                        std::size_t count, BitReader bits) {
  const unsigned width = packed_bits(codec);
  const std::uint32_t level_max = level_count(codec);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t code = bits.take(width);
    if (code == 0) continue;
    if (code > 2 * level_max) return "a part of dithering has a level that there is not";
    const bool is_negative = code > level_max;
    const std::uint32_t level = is_negative ? code - level_max : code;
    use_number(kUse, elements, i, levels.value(level, is_negative ? kSignBit : 0U));
  }
  return bits.ran_out() || bits.has_words_left() ? "a part of dithering has another length"
                                                 : nullptr;
}

template <PartUse kUse>
const char* read_sparse(const PartCodec& codec, const Levels& levels, std::byte* elements,
                        std::size_t count, std::uint32_t above_zero, BitReader bits) {
  const std::uint32_t level_max = level_count(codec);
  std::uint64_t after = 0;
  for (std::uint32_t i = 0; i < above_zero; ++i) {
    const Triple triple = bits.take_triple();
    if (triple.distance == 0 || triple.level == 0) return "a part of dithering has no such code";
    if (triple.level > level_max) return "a part of dithering has a level that there is not";
    after += triple.distance;
    if (after > count) return "an index of dithering is beyond its part";
    use_number(kUse, elements, after - 1, levels.value(triple.level, triple.sign));
  }
  return bits.ran_out() || bits.has_words_left() ? "a part of dithering has another length"
                                                 : nullptr;
}

template <PartUse kUse>
const char* read_levels(const PartCodec& codec, std::byte* elements, std::size_t count,
                        PartBytes payload) {
  if (payload.size() < kHeaderWords * 4 || payload.size() % 4 != 0) {
    return "a part of dithering has another length";
  }
  const float norm = float_at(payload.data(), 0);
  const std::uint32_t above_zero = word_at(payload.data(), 1);
  const BitReader bits(payload.data() + kHeaderWords * 4, payload.size() / 4 - kHeaderWords);
  if (!std::isfinite(norm)) {
    if (bits.has_words_left()) return "a part of dithering has another length";
    for (std::size_t i = 0; i < count; ++i) use_number(kUse, elements, i, kNotANumber);
    return nullptr;
  }
  if (kUse == PartUse::kSet) std::memset(elements, 0, count * sizeof(float));
  const Levels levels(codec, norm);
  if (above_zero == kPacked) return read_packed<kUse>(codec, levels, elements, count, bits);
  return read_sparse<kUse>(codec, levels, elements, count, above_zero, bits);
}

}  // namespace

std::size_t dithering_bytes_max(const PartCodec& codec, std::size_t element_count) {
  return (kHeaderWords + packed_words(codec, element_count)) * 4;
}

std::size_t write_dithering(const PartCodec& codec, std::byte* payload,
                            const PartElements& elements, PartDraws& draws) {
  const float norm = norm_of(codec, elements);
  if (!(norm > 0)) return write_norm_alone(payload, norm, elements.count, draws);
  PartDraws again = draws;
  const std::size_t written = write_form(codec, payload, elements, norm, draws, false);
  if (written > 0) return written;
  draws = again;
  return write_form(codec, payload, elements, norm, draws, true);
}

const char* read_dithering(const PartCodec& codec, std::byte* elements, std::size_t count,
                           PartBytes payload, PartUse use) {
  switch (use) {
    case PartUse::kNothing:
      return read_levels<PartUse::kNothing>(codec, elements, count, payload);
    case PartUse::kSet:
      return read_levels<PartUse::kSet>(codec, elements, count, payload);
    case PartUse::kAdd:
      return read_levels<PartUse::kAdd>(codec, elements, count, payload);
    case PartUse::kTakeOff:
      return read_levels<PartUse::kTakeOff>(codec, elements, count, payload);
  }
  return nullptr;
}

}  // namespace byteps
