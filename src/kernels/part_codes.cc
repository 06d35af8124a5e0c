// onebit, topk and randomk.
#include "kernels/part_codes.h"

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

namespace byteps {
namespace {

constexpr std::size_t kWordBits = 32;
constexpr std::size_t kDrawnAtOnce = 256;

// ---- onebit

constexpr std::array<std::uint32_t, kWordBits> kBitOf = [] {
  std::array<std::uint32_t, kWordBits> bits = {};
  for (std::size_t i = 0; i < kWordBits; ++i) bits[i] = kSignBit >> i;
  return bits;
}();

// x < 0, of its bits: those of -0 are kSignBit alone.
std::uint32_t signs_of(const std::byte* elements, std::size_t first, std::size_t count) {
  std::uint32_t word = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t is_negative = word_at(elements, first + i) > kSignBit ? 0xffffffffU : 0U;
    word |= is_negative & kBitOf[i];
  }
  return word;
}

template <PartUse kUse>
void use_signs(std::byte* elements, std::size_t first, std::size_t count, std::uint32_t word,
               std::uint32_t scale_bits) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t sign = (word & kBitOf[i]) != 0 ? kSignBit : 0U;
    use_number(kUse, elements, first + i, std::bit_cast<float>(scale_bits ^ sign));
  }
}

template <PartUse kUse>
void use_onebit(std::byte* elements, std::size_t count, const std::byte* payload) {
  const std::size_t full = count / kWordBits;
  const std::size_t rest = count % kWordBits;
  const std::uint32_t scale_bits = word_at(payload, full + (rest > 0 ? 1 : 0));
  for (std::size_t i = 0; i < full; ++i) {
    use_signs<kUse>(elements, i * kWordBits, kWordBits, word_at(payload, i), scale_bits);
  }
  if (rest > 0) {
    use_signs<kUse>(elements, full * kWordBits, rest, word_at(payload, full), scale_bits);
  }
}

// ---- topk

std::uint32_t magnitude_at(const PartElements& elements, std::size_t index) {
  return word_at(elements.bytes, index) & kMagnitudeBits;
}

struct Threshold {
  std::uint32_t magnitude;  // bits of the least magnitude that is sent
  std::size_t ties;         // how many of exactly this one
};

// The k-th largest magnitude, by 11, 10 and 10 of its 31 bits: each time, which of those that begin like it it is.
Threshold threshold_of(const PartElements& elements, std::size_t k) {
  struct Digit {
    int shift;
    int bits;
  };
  constexpr std::size_t kBuckets = 1U << 11;
  constexpr std::size_t kLanes = 4;  // equal ones one after another do not wait for each other
  Threshold found = {.magnitude = 0, .ties = k};
  for (const Digit digit : {Digit{20, 11}, Digit{10, 10}, Digit{0, 10}}) {
    std::vector<std::uint32_t> counts(kBuckets * kLanes);
    const std::uint32_t mask = (1U << digit.bits) - 1;
    for (std::size_t i = 0; i < elements.count; ++i) {
      const std::uint32_t upper = magnitude_at(elements, i) >> digit.shift;
      if (upper >> digit.bits != found.magnitude) continue;
      ++counts[(upper & mask) * kLanes + i % kLanes];
    }
    std::uint32_t bucket = mask;
    for (;; --bucket) {
      const std::uint32_t* const lanes = &counts[bucket * kLanes];
      const std::size_t count = std::size_t{lanes[0]} + lanes[1] + lanes[2] + lanes[3];
      if (count >= found.ties) break;
      found.ties -= count;
    }
    found.magnitude = found.magnitude << digit.bits | bucket;
  }
  return found;
}

// ---- randomk

// The places of one round, in the order in which they are drawn.
template <typename Take>
void draw_places(PartDraws draws, std::size_t k, std::size_t count, Take take) {
  std::uint64_t numbers[kDrawnAtOnce];
  for (std::size_t first = 0; first < k; first += kDrawnAtOnce) {
    const std::size_t drawn = std::min(kDrawnAtOnce, k - first);
    draws.fill({numbers, drawn});
    for (std::size_t i = 0; i < drawn; ++i) {
      take(first + i, static_cast<std::size_t>(numbers[i] % count));
    }
  }
}

// A place that was drawn twice gets the last of its numbers, once.
void add_randomk(std::byte* elements, std::size_t count, const std::byte* payload, std::size_t k,
                 PartDraws draws) {
  std::vector<std::uint32_t> places(k);
  draw_places(draws, k, count, [&](std::size_t i, std::size_t place) {
    places[i] = static_cast<std::uint32_t>(place);
  });
  std::vector<bool> is_done(count);
  for (std::size_t i = k; i-- > 0;) {
    if (is_done[places[i]]) continue;
    is_done[places[i]] = true;
    use_number(PartUse::kAdd, elements, places[i], float_at(payload, i));
  }
}

}  // namespace

void write_onebit(const Codec& codec, std::byte* payload, const PartElements& elements) {
  float scale = 1;
  if (!elements.is_finite()) {
    scale = kNotANumber;
  } else if (codec.scaling) {
    const double sum = sum_of(elements.count, [&](std::size_t i) {
      return static_cast<double>(std::bit_cast<float>(magnitude_at(elements, i)));
    });
    scale = static_cast<float>(sum / static_cast<double>(elements.count));
  }
  const std::size_t full = elements.count / kWordBits;
  for (std::size_t i = 0; i < full; ++i) {
    put_word(payload, i, signs_of(elements.bytes, i * kWordBits, kWordBits));
  }
  std::size_t words = full;
  if (const std::size_t rest = elements.count % kWordBits; rest > 0) {
    put_word(payload, words++, signs_of(elements.bytes, full * kWordBits, rest));
  }
  put_float(payload, words, scale);
}

void read_onebit(std::byte* elements, std::size_t count, PartBytes payload, PartUse use) {
  if (use == PartUse::kSet) use_onebit<PartUse::kSet>(elements, count, payload.data());
  if (use == PartUse::kAdd) use_onebit<PartUse::kAdd>(elements, count, payload.data());
  if (use == PartUse::kTakeOff) use_onebit<PartUse::kTakeOff>(elements, count, payload.data());
}

void write_topk(const Codec& codec, std::byte* payload, const PartElements& elements) {
  const std::size_t k = sent_elements(Format::kTopk, codec, elements.count);
  if (!elements.is_finite()) {
    for (std::size_t i = 0; i < k; ++i) {
      put_word(payload, 2 * i, static_cast<std::uint32_t>(i));
      put_float(payload, 2 * i + 1, kNotANumber);
    }
    return;
  }
  Threshold threshold = threshold_of(elements, k);
  std::size_t sent = 0;
  for (std::size_t i = 0; i < elements.count && sent < k; ++i) {
    const std::uint32_t magnitude = magnitude_at(elements, i);
    if (magnitude < threshold.magnitude) continue;
    if (magnitude == threshold.magnitude) {
      if (threshold.ties == 0) continue;
      --threshold.ties;
    }
    put_word(payload, 2 * sent, static_cast<std::uint32_t>(i));
    put_float(payload, 2 * sent + 1, elements.at(i));
    ++sent;
  }
}

const char* flaw_of_topk(const Codec& codec, std::size_t count, PartBytes payload) {
  const std::size_t k = sent_elements(Format::kTopk, codec, count);
  std::uint64_t least = 0;
  for (std::size_t i = 0; i < k; ++i) {
    const std::uint32_t index = word_at(payload.data(), 2 * i);
    if (index < least) return "its indices do not rise";
    if (index >= count) return "an index is beyond its part";
    least = std::uint64_t{index} + 1;
  }
  return nullptr;
}

void read_topk(const Codec& codec, std::byte* elements, std::size_t count, PartBytes payload,
               PartUse use) {
  const std::size_t k = sent_elements(Format::kTopk, codec, count);
  if (use == PartUse::kSet) std::memset(elements, 0, count * sizeof(float));
  for (std::size_t i = 0; i < k; ++i) {
    const std::uint32_t index = word_at(payload.data(), 2 * i);
    if (index >= count) continue;  // changed since it was looked at
    const float number = float_at(payload.data(), 2 * i + 1);
    if (use == PartUse::kTakeOff) {
      put_float(elements, index, 0);
    } else {
      use_number(use, elements, index, number);
    }
  }
}

void write_randomk(const Codec& codec, std::byte* payload, const PartElements& elements,
                   PartDraws draws) {
  const std::size_t k = sent_elements(Format::kRandomk, codec, elements.count);
  draw_places(draws, k, elements.count, [&](std::size_t i, std::size_t place) {
    put_float(payload, i, elements.is_finite() ? elements.at(place) : kNotANumber);
  });
}

void read_randomk(const Codec& codec, std::byte* elements, std::size_t count, PartBytes payload,
                  PartUse use, PartDraws draws) {
  const std::size_t k = sent_elements(Format::kRandomk, codec, count);
  if (use == PartUse::kAdd) return add_randomk(elements, count, payload.data(), k, draws);
  if (use == PartUse::kSet) std::memset(elements, 0, count * sizeof(float));
  draw_places(draws, k, count, [&](std::size_t i, std::size_t place) {
    put_float(elements, place, use == PartUse::kSet ? float_at(payload.data(), i) : 0);
  });
}

}  // namespace byteps
