// Codes of one part: what part_coding.cc puts momentum and error feedback around. Formats: part_coding.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>

#include "kernels/part_coding.h"

namespace byteps {

inline float float_at(const std::byte* array, std::size_t index) {
  float number = 0;
  std::memcpy(&number, array + index * sizeof(float), sizeof number);
  return number;
}
inline void put_float(std::byte* array, std::size_t index, float number) {
  std::memcpy(array + index * sizeof(float), &number, sizeof number);
}
inline std::uint32_t word_at(const std::byte* array, std::size_t index) {
  std::uint32_t word = 0;
  std::memcpy(&word, array + index * sizeof word, sizeof word);
  return word;
}
inline void put_word(std::byte* array, std::size_t index, std::uint32_t word) {
  std::memcpy(array + index * sizeof word, &word, sizeof word);
}

inline constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN();
inline constexpr std::uint32_t kMagnitudeBits = 0x7fffffff;
inline constexpr std::uint32_t kInfinityBits = 0x7f800000;  // finite magnitudes are below
inline constexpr std::uint32_t kSignBit = 0x80000000;

// The sum of term(0) to term(count - 1) in the order that part_coding.h has.
template <typename Term>
double sum_of(std::size_t count, Term term) {
  double sums[8] = {};
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (std::size_t lane = 0; lane < 8; ++lane) sums[lane] += term(i + lane);
  }
  for (; i < count; ++i) sums[i % 8] += term(i);
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

// Elements that are coded.
struct PartElements {
  const std::byte* bytes;
  std::size_t count;
  std::uint32_t largest;  // bits of the largest magnitude
  bool is_finite() const { return largest < kInfinityBits; }
  float at(std::size_t index) const { return float_at(bytes, index); }
};

// What becomes of a decoded number.
enum class PartUse {
  kSet,      // it becomes the element; all others become zeros
  kAdd,      // to the element
  kTakeOff,  // from the element; of those that were sent as they are, nothing is left
};
inline void use_number(PartUse use, std::byte* elements, std::size_t index, float number) {
  if (use == PartUse::kSet) put_float(elements, index, number);
  if (use == PartUse::kAdd) put_float(elements, index, float_at(elements, index) + number);
  if (use == PartUse::kTakeOff) put_float(elements, index, float_at(elements, index) - number);
}

void write_onebit(const Codec& codec, std::byte* payload, const PartElements& elements);
void write_topk(const Codec& codec, std::byte* payload, const PartElements& elements);
void write_randomk(const Codec& codec, std::byte* payload, const PartElements& elements,
                   PartDraws draws);
void write_dithering(const Codec& codec, std::byte* payload, const PartElements& elements,
                     PartDraws draws);

// Of payloads that have their length.
using PartBytes = std::span<const std::byte>;
const char* flaw_of_topk(const Codec& codec, std::size_t count, PartBytes payload);
const char* flaw_of_dithering(const Codec& codec, std::size_t count, PartBytes payload);
void read_onebit(std::byte* elements, std::size_t count, PartBytes payload, PartUse use);
void read_topk(const Codec& codec, std::byte* elements, std::size_t count, PartBytes payload,
               PartUse use);
void read_randomk(const Codec& codec, std::byte* elements, std::size_t count, PartBytes payload,
                  PartUse use, PartDraws draws);
void read_dithering(const Codec& codec, std::byte* elements, std::size_t count, PartBytes payload,
                    PartUse use);

}  // namespace byteps
