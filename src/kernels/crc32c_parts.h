// What the ways to compute a CRC32C share. Only crc32c*.cc include this.
//
// Polynomials over GF(2) in 32 bits are reflected: bit i is the coefficient of x^(31-i). So the first byte of
// a message, and in it the lowest bit, has the highest power.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace byteps::crc32c_parts {

inline constexpr std::uint32_t kPolynomial = 0x82F63B78;  // 0x1EDC6F41 reflected; x^32 is implied

// x * a modulo the polynomial.
constexpr std::uint32_t times_x(std::uint32_t a) {
  return (a >> 1) ^ ((a & 1) != 0 ? kPolynomial : 0);
}

// a * b modulo the polynomial.
constexpr std::uint32_t times(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product = 0;
  for (std::uint32_t power = 0x80000000; power != 0; power >>= 1) {  // x^0, x^1, ...
    if ((a & power) != 0) product ^= b;
    b = times_x(b);
  }
  return product;
}

// x^exponent modulo the polynomial.
constexpr std::uint32_t power_of_x(std::uint64_t exponent) {
  std::uint32_t result = 0x80000000;  // 1
  std::uint32_t square = 0x40000000;  // x
  for (; exponent != 0; exponent >>= 1, square = times(square, square)) {
    if ((exponent & 1) != 0) result = times(result, square);
  }
  return result;
}

// What a carry-less multiplication needs, to move a value `bits` further from the end of the message.
//
// Let a and b be polynomials in the low bits of two words. The product has them reflected as well, but one
// bit short: bit k of it is x^(62-k) for words of 32 bits, where a word of 64 bits would have x^(63-k). So as
// a word it is a * b * x. Both the crc32 instruction and the fold by 64-bit halves (where b's 32 bits stand
// for b * x^32) multiply by another x^32. Hence b = x^(bits-33). Source: V. Gopal and others, "Fast CRC
// Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel, 2009, with its appendix on
// reflected data; for the three streams, V. Gopal and others, "Fast CRC Computation for iSCSI Polynomial
// Using CRC32 Instruction", Intel, 2011.
constexpr std::uint64_t multiplier_for_shift(std::uint64_t bits) {
  return power_of_x(bits - 33);
}

inline std::uint64_t load_word(const std::byte* address) {
  std::uint64_t word = 0;
  std::memcpy(&word, address, sizeof word);
  return word;
}

}  // namespace byteps::crc32c_parts

namespace byteps {

struct Crc32cKernel;

// Null where the instructions are missing, in this build or in this CPU.
Crc32cKernel crc32c_sse42();
Crc32cKernel crc32c_avx512();
Crc32cKernel crc32c_arm();

}  // namespace byteps
