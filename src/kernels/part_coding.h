// Part codecs: onebit, topk, randomk and dithering, the compressors of the original BytePS. Each codes all elements of
// a part, float32, together: with one scale, or as a selection of them. And float32, which is momentum alone.
//
//   encode(coding, payload, gradients, carry, place);   // a worker; a server without momentum
//   flaw = flaw_of_payload(coding, payload, count);     // a server: of each contribution, a worker: of the answer
//   decode_add(coding, accumulator, payload, place);    // a server
//   decode(coding, output, payload, place);             // a worker
//
// What is computed for n elements x, in float32 with one rounding for each sign, but for what is said to be double:
//
//   onebit      A bit says whether x < 0. s = (sum of |x|) / n in double, then as float32; without `scaling` 1.
//               Decoded: +-s
//   topk        The k elements of the largest magnitude, of equal ones the first. Decoded: these, and zeros
//   randomk     k elements at places that are drawn: a number mod n. One may be drawn twice. Decoded: these, and zeros
//   dithering   S = largest |x|; with `l2` the root of the sum of x * x, in double, then as float32, but finite.
//               y = |x| / S * L with L = k, or with `natural` 2^(k-1). q = f + l * B((y - f) / l).
//               Linear: f = y rounded down, l = 1. `natural`: f = the largest power of two below y, l = f; but f = 0,
//               l = 1 for y <= 1. B(p) = 1 if (a number < p * 2^64) in double, else 0. A number is drawn for each
//               element, in order, where x = 0 too. Decoded: +-q * S / L, or where q * S overflows +-q * (S / L)
//   float32     x
//
// The numbers are those of part_draws.h. A sum of doubles depends on their order: element i goes into sum i mod 8 of
// eight, which are then added as ((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7)).
//
// Before that, in this order, where there is memory for it (Carry):
//
//   momentum         Nesterov's: m = mu * m + x, then x = x + mu * m
//   error feedback   x = x + e * ratio, and when x is coded e = x - decoded
//
// Where a NaN or an infinity is to be coded: residual and momentum stay as they were, and all that is sent becomes NaN,
// of topk at the first k places; of float32 it is the elements without momentum. A part of zeros becomes zeros, but for
// onebit without `scaling`.
//
// The payload. Numbers are little-endian; bits fill words of 4 bytes from the highest bit down, zeros the last word. It
// has the length that base/codec.h says, zeros where that is more.
//
//   onebit      the bits; a float32 s            4 * (n / 32, rounded up) + 4 bytes
//   topk        k times: a uint32 index, which   8k
//               is above the last, a float32
//   randomk     k float32; who decodes them      4k
//               draws the places again
//   dithering   a float32 S; for each element    4 + 4 * (n * bit_width(2k) / 32, rounded up)
//               bit_width(2k) bits: its level,
//               + k for x < 0
//   float32     the elements                     4n
//
// A server adds the payloads of randomk as they are, k floats.
//
// A level of dithering is q, or with `natural` 1 + log2 q; of q = 0 it is 0. So it is at most k. If S is not finite all
// elements are NaN, and the levels zeros.
//
// Memory: as in kernels.h. No two of the arguments may overlap, but for the payload and the elements of float32, which
// may be the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/codec.h"
#include "base/carry.h"
#include "kernels/part_draws.h"

namespace byteps {

struct PartCoding {
  Format format = Format::kOnebit;  // one that has a codec
  Codec codec{};                    // which has no flaw
};

// Codes elements. CHECKs that the payload has its length, and what is carried that of the elements.
void encode(const PartCoding& coding, std::span<std::byte> payload,
            std::span<const std::byte> elements, const Carry& carry, const PartPlace& place);

// nullptr, or what is wrong with a stranger's payload of so many elements.
[[nodiscard]] const char* flaw_of_payload(const PartCoding& coding,
                                          std::span<const std::byte> payload,
                                          std::size_t element_count);
// elements = what the payload says; elements += that. It has no flaw, but may change while it is read: nothing outside
// of it and the elements is touched.
void decode(const PartCoding& coding, std::span<std::byte> elements,
            std::span<const std::byte> payload, const PartPlace& place);
void decode_add(const PartCoding& coding, std::span<std::byte> elements,
                std::span<const std::byte> payload, const PartPlace& place);

}  // namespace byteps
