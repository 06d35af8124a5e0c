// Bits in words of 32, from the highest one down, and Elias' delta code in them.
//
// The delta code of a number of 1 or more with b bits: as many zeros as the number b has bits after its first, then b,
// then the number without its first bit.
//
//   1   1          2   010 0         4   011 00        8   00100 000
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/part_codes.h"

namespace byteps {

struct DeltaCode {
  std::uint64_t code = 0;
  unsigned bits = 0;  // up to 42
};
constexpr DeltaCode delta_code_of(std::uint32_t number) {
  const auto rest_bits = static_cast<unsigned>(std::bit_width(number >> 1));
  const auto bits_of_bits = static_cast<unsigned>(std::bit_width(rest_bits + 1));
  const std::uint64_t rest = number ^ std::bit_floor(number);
  return {std::uint64_t{rest_bits + 1} << rest_bits | rest, 2 * bits_of_bits - 1 + rest_bits};
}

// What sparse dithering has of one element.
struct Triple {
  std::uint32_t distance = 0;
  std::uint32_t level = 0;
  std::uint32_t sign = 0;  // of a float32: its highest bit, or 0
};

// The codes of small numbers; of 0 there is none.
inline constexpr std::uint32_t kSmall = 256;
inline constexpr std::array<DeltaCode, kSmall> kDeltaCodes = [] {
  std::array<DeltaCode, kSmall> codes = {};
  for (std::uint32_t i = 1; i < kSmall; ++i) codes[i] = delta_code_of(i);
  return codes;
}();

// By the next kShortBits bits: how many of them are a whole triple, and from bit 8, 16 and 31 on its distance, level
// and sign; 0 where it is longer.
inline constexpr unsigned kShortBits = 11;
inline constexpr std::array<std::uint32_t, 1U << kShortBits> kShortTriples = [] {
  std::array<std::uint32_t, 1U << kShortBits> triples = {};
  for (std::uint32_t distance = 1; distance < 64; ++distance) {
    for (std::uint32_t level = 1; level < 64; ++level) {
      const DeltaCode first = kDeltaCodes[distance];
      const DeltaCode last = kDeltaCodes[level];
      const unsigned bits = first.bits + 1 + last.bits;
      for (std::uint32_t sign = 0; sign < 2 && bits <= kShortBits; ++sign) {
        const std::uint64_t code = (first.code << 1 | sign) << last.bits | last.code;
        const std::uint64_t end = (code + 1) << (kShortBits - bits);
        for (std::uint64_t i = code << (kShortBits - bits); i < end; ++i) {
          triples[i] = sign << 31 | level << 16 | distance << 8 | bits;
        }
      }
    }
  }
  return triples;
}();

class BitWriter {
 public:
  BitWriter(std::byte* words, std::size_t word_count) : words_(words), left_(word_count * 32) {}

  // The lowest `count` bits of a number that has no others; up to 32. False where no room is left: nothing is put.
  bool put(std::uint32_t number, unsigned count) {
    if (count > left_) return false;
    left_ -= count;
    pending_ = pending_ << count | number;
    pending_bits_ += count;
    if (pending_bits_ >= 32) {
      pending_bits_ -= 32;
      put_word(words_, written_++, static_cast<std::uint32_t>(pending_ >> pending_bits_));
    }
    return true;
  }
  bool put(const Triple& triple) {
    const std::uint32_t sign = triple.sign >> 31;
    if (triple.distance < kSmall && triple.level < kSmall) {
      const DeltaCode first = kDeltaCodes[triple.distance];
      const DeltaCode last = kDeltaCodes[triple.level];
      const std::uint64_t code = (first.code << 1 | sign) << last.bits | last.code;
      return put(static_cast<std::uint32_t>(code), first.bits + 1 + last.bits);
    }
    return put(delta_code_of(triple.distance)) && put(sign, 1) && put(delta_code_of(triple.level));
  }
  // Fills the last word with zeros. The words in all.
  std::size_t finish() {
    if (pending_bits_ > 0) {
      put_word(words_, written_++, static_cast<std::uint32_t>(pending_ << (32 - pending_bits_)));
      pending_bits_ = 0;
    }
    return written_;
  }

 private:
  bool put(const DeltaCode& delta) {
    const unsigned upper = delta.bits > 32 ? delta.bits - 32 : 0;
    return put(static_cast<std::uint32_t>(delta.code >> (delta.bits - upper)), upper) &&
           put(static_cast<std::uint32_t>(delta.code), delta.bits - upper);
  }

  std::byte* words_;
  std::size_t left_;  // bits
  std::size_t written_ = 0;
  std::uint64_t pending_ = 0;  // its lowest pending_bits_, fewer than 32
  unsigned pending_bits_ = 0;
};

// Each word is read once. Behind the last one are zeros, and ran_out() says that they were read.
class BitReader {
 public:
  BitReader(const std::byte* words, std::size_t word_count)
      : words_(words), word_count_(word_count) {}

  // Up to 32 bits.
  std::uint32_t take(unsigned count) {
    const std::uint32_t bits = peek(count);
    skip(count);
    return bits;
  }
  // A distance or level of 0: no number has this code.
  Triple take_triple() {
    const std::uint32_t found = kShortTriples[peek(kShortBits)];
    if (found == 0) {
      BitReader copy = *this;  // so that this one has no address, and stays in registers
      const Triple triple = copy.take_long_triple();
      *this = copy;
      return triple;
    }
    skip(found & 0xff);
    return {found >> 8 & 0xff, found >> 16 & 0xff, found & 0x80000000U};
  }

  bool ran_out() const { return used_bits() > std::uint64_t{word_count_} * 32; }
  // Words that none of the bits were of.
  bool has_words_left() const { return (used_bits() + 31) / 32 < word_count_; }

 private:
  Triple take_long_triple() {
    Triple triple;
    triple.distance = take_delta();
    triple.sign = take(1) << 31;
    triple.level = take_delta();
    return triple;
  }
  std::uint32_t take_delta() {
    const auto zeros = static_cast<unsigned>(std::countl_zero(peek(32)));
    if (zeros > 5) return 0;
    const std::uint32_t bits = take(2 * zeros + 1);
    if (bits > 32) return 0;
    return static_cast<std::uint32_t>(std::uint64_t{1} << (bits - 1) | take(bits - 1));
  }

  std::uint32_t peek(unsigned count) {
    if (held_bits_ < 32) {
      const std::uint32_t word = next_ < word_count_ ? word_at(words_, next_) : 0;
      ++next_;
      held_ |= std::uint64_t{word} << (32 - held_bits_);
      held_bits_ += 32;
    }
    return static_cast<std::uint32_t>(held_ >> 32 >> (32 - count));
  }
  void skip(unsigned count) {
    held_ <<= count;
    held_bits_ -= count;
  }
  std::uint64_t used_bits() const { return std::uint64_t{next_} * 32 - held_bits_; }

  const std::byte* words_;
  std::size_t word_count_;
  std::size_t next_ = 0;    // beyond word_count_: zeros were taken
  std::uint64_t held_ = 0;  // its highest held_bits_
  unsigned held_bits_ = 0;
};

}  // namespace byteps
