// Dithering: levels by chance, then their codes.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/part_codes.h"

namespace byteps {
namespace {

constexpr std::size_t kBlock = 256;  // elements that are quantized at once
constexpr std::size_t kHeaderWords = 1;
constexpr std::uint32_t kOne = 0x3f800000;                      // bits of 1
constexpr double kNormMax = std::numeric_limits<float>::max();  // no element is larger

std::uint32_t level_count(const Codec& codec) {
  return static_cast<std::uint32_t>(codec.k);
}
// L.
float steps_of(const Codec& codec) {
  return codec.natural ? std::ldexp(1.0F, static_cast<int>(codec.k) - 1)
                       : static_cast<float>(codec.k);
}
// Bits in words of 32, from the highest one down; at most 25 at once.
class BitWriter {
 public:
  explicit BitWriter(std::byte* words) : words_(words) {}

  void put(std::uint32_t number, unsigned count) {
    pending_ = pending_ << count | number;
    pending_bits_ += count;
    if (pending_bits_ < 32) return;
    pending_bits_ -= 32;
    put_word(words_, written_++, static_cast<std::uint32_t>(pending_ >> pending_bits_));
  }
  void finish() {
    if (pending_bits_ > 0) put(0, 32 - pending_bits_);
  }

 private:
  std::byte* words_;
  std::size_t written_ = 0;
  std::uint64_t pending_ = 0;  // the lowest ones count
  unsigned pending_bits_ = 0;
};

// Who takes no more than was put needs no end.
class BitReader {
 public:
  explicit BitReader(const std::byte* words) : words_(words) {}

  std::uint32_t take(unsigned count) {
    if (pending_bits_ < count) {
      pending_ = pending_ << 32 | word_at(words_, read_++);
      pending_bits_ += 32;
    }
    pending_bits_ -= count;
    return static_cast<std::uint32_t>(pending_ >> pending_bits_) & ((1U << count) - 1);
  }

 private:
  const std::byte* words_;
  std::size_t read_ = 0;
  std::uint64_t pending_ = 0;
  unsigned pending_bits_ = 0;
};

float norm_of(const Codec& codec, const PartElements& elements) {
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

// Put into a copy of the writer: it stays in registers, while the other could change with each word in memory.
void put_levels(BitWriter& writer, const Codec& codec, const PartElements& elements,
                const std::uint32_t* levels, std::size_t first, std::size_t count) {
  BitWriter bits = writer;
  const unsigned width = dithering_bits(codec);
  const std::uint32_t level_max = level_count(codec);
  for (std::size_t i = 0; i < count; ++i) {
    const bool is_negative = levels[i] > 0 && elements.at(first + i) < 0;
    bits.put(levels[i] + (is_negative ? level_max : 0U), width);
  }
  writer = bits;
}

// ---- reading

// What levels are decoded to.
class Levels {
 public:
  Levels(const Codec& codec, float norm)
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
void use_levels(const Codec& codec, std::byte* elements, std::size_t count, PartBytes payload) {
  const float norm = float_at(payload.data(), 0);
  if (!std::isfinite(norm)) {
    for (std::size_t i = 0; i < count; ++i) use_number(kUse, elements, i, kNotANumber);
    return;
  }
  const Levels levels(codec, norm);
  BitReader bits(payload.data() + kHeaderWords * 4);
  const unsigned width = dithering_bits(codec);
  const std::uint32_t level_max = level_count(codec);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t code = bits.take(width);
    if (code == 0 || code > 2 * level_max) {  // the latter has changed since it was looked at
      if (kUse == PartUse::kSet) put_float(elements, i, 0);
      continue;
    }
    const bool is_negative = code > level_max;
    const std::uint32_t level = is_negative ? code - level_max : code;
    use_number(kUse, elements, i, levels.value(level, is_negative ? kSignBit : 0U));
  }
}

}  // namespace

void write_dithering(const Codec& codec, std::byte* payload, const PartElements& elements,
                     PartDraws draws) {
  const float norm = norm_of(codec, elements);
  put_float(payload, 0, norm);
  BitWriter bits(payload + kHeaderWords * 4);
  const Quantizer quantizer = {elements.bytes, norm, steps_of(codec)};
  std::uint64_t numbers[kBlock];
  std::uint32_t levels[kBlock] = {};
  float chances[kBlock];
  for (std::size_t first = 0; first < elements.count; first += kBlock) {
    const std::size_t count = std::min(kBlock, elements.count - first);
    if (norm > 0) {  // neither zeros alone nor a NaN
      draws.fill({numbers, count});
      if (codec.natural) {
        quantizer.natural(levels, chances, first, count);
      } else {
        quantizer.linear(levels, chances, first, count);
      }
      go_up(levels, chances, numbers, count);
    }
    put_levels(bits, codec, elements, levels, first, count);
  }
  bits.finish();
}

const char* flaw_of_dithering(const Codec& codec, std::size_t count, PartBytes payload) {
  BitReader bits(payload.data() + kHeaderWords * 4);
  const unsigned width = dithering_bits(codec);
  const std::uint32_t code_max = 2 * level_count(codec);
  bool is_beyond = false;
  for (std::size_t i = 0; i < count; ++i) is_beyond |= bits.take(width) > code_max;
  return is_beyond ? "it has a level that there is not" : nullptr;
}

void read_dithering(const Codec& codec, std::byte* elements, std::size_t count, PartBytes payload,
                    PartUse use) {
  if (use == PartUse::kSet) use_levels<PartUse::kSet>(codec, elements, count, payload);
  if (use == PartUse::kAdd) use_levels<PartUse::kAdd>(codec, elements, count, payload);
  if (use == PartUse::kTakeOff) use_levels<PartUse::kTakeOff>(codec, elements, count, payload);
}

}  // namespace byteps
