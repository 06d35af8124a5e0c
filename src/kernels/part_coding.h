// Part codecs: onebit, topk, randomk and dithering, the compressors of the original BytePS. Each codes all elements of
// a part, float32, together: with one scale, or as a selection of them.
//
//   const PartCodec codec = {.kind = PartKind::kTopk, .k = 0.01, .error_feedback = true};
//   PartState state = first_state(codec, {key, part, rank}, element_count);
//   bytes = encode(codec, state, payload, gradients, round, learning_rate);   // a worker
//   flaw = decode_add(codec, accumulator, payload, {});                       // a server: each contribution
//   flaw = decode(codec, output, answer, state.drawn);                        // a worker
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
//
// The numbers are those of part_draws.h. A sum of doubles depends on their order: element i goes into sum i mod 8 of
// eight, which are then added as ((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7)).
//
// Before that, in this order, where the codec says so:
//
//   momentum         Nesterov's: m = mu * m + x, then x = x + mu * m
//   error feedback   x = x + e * ratio, and when x is coded e = x - decoded. ratio = the last learning rate / this one,
//                    in double, then as float32; 1 where one of them is not known
//
// A part in which a NaN or an infinity is coded: residual, momentum and learning rate stay as they were, and all that
// is sent becomes NaN, of topk at the first k places. A part of zeros becomes zeros, but for onebit without `scaling`.
//
// The payload. Numbers are little-endian; bits fill words of 4 bytes from the highest bit down, zeros the last word.
//
//   onebit      the bits; a float32 s            4 * (n / 32, rounded up) + 4 bytes
//   topk        k times: a uint32 index, which   8k
//               is above the last, a float32
//   randomk     k float32; who decodes them      4k
//               draws the places again
//   dithering   a float32 S, a uint32 c, words   8 to payload_bytes_max()
//
// A server adds the payloads of randomk as they are, k floats.
//
// A level of dithering is q, or with `natural` 1 + log2 q; of q = 0 it is 0. So it is at most k. The words are the
// shorter one of two forms; if S is not finite there are none, and all elements are NaN:
//
//   sparse   c levels are above 0. For each: the distance of its index from the last such one (from -1), in Elias'
//            delta code (part_bits.h); a bit, 1 for x < 0; the level in the same code
//   packed   c = 2^32 - 1. For each element bit_width(2k) bits: its level, + k for x < 0
//
// Memory: as in kernels.h. No two of the arguments may overlap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "kernels/part_draws.h"

namespace byteps {

enum class PartKind : std::uint8_t { kOnebit, kTopk, kRandomk, kDithering };
const char* name(PartKind kind);  // "onebit"

struct PartCodec {
  PartKind kind = PartKind::kOnebit;
  // topk, randomk: below 1 the share of the elements that is sent, rounded down, but at least one; else how many of
  // each part. dithering: levels above zero.
  double k = 0;
  std::optional<std::uint64_t> seed = {};  // randomk, dithering
  bool scaling = false;                    // onebit
  bool natural = false;                    // dithering: powers of two; else linear
  bool l2 = false;                         // dithering: the norm; else the largest magnitude
  bool error_feedback = false;
  std::optional<float> momentum = {};  // mu; of workers only, a server has none

  bool operator==(const PartCodec&) const = default;
};

// nullptr when parts of so many elements can be coded so; otherwise why not. What follows is for those that can.
const char* flaw_of_part_codec(const PartCodec& codec, std::uint64_t element_count);

// How many elements topk and randomk send.
std::size_t sent_elements(const PartCodec& codec, std::size_t element_count);
// Exact but for dithering, where it is the most.
std::size_t payload_bytes_max(const PartCodec& codec, std::size_t element_count);

// What one part at one rank carries from round to round. A checkpoint has draws (of a seed), residual, momentum and
// learning_rate, and sets them after first_state().
struct PartState {
  PartPlace place;
  PartDraws draws;              // with a seed: where the next round's numbers begin
  PartDraws drawn;              // where those of the last encode() began
  std::vector<float> residual;  // e: element_count with error feedback, else empty
  std::vector<float> momentum;  // m, likewise
  double learning_rate = 0;     // of the last encode(), 0: not known
  std::vector<float> scratch;   // with momentum alone; nothing is kept here
};
PartState first_state(const PartCodec& codec, const PartPlace& place, std::size_t element_count);

// Codes elements; its result is the bytes of the payload. CHECKs that there is room for payload_bytes_max(), and that
// the state is of such a part. `round` matters without a seed. `learning_rate` is 0 where it is not known.
std::size_t encode(const PartCodec& codec, PartState& state, std::span<std::byte> payload,
                   std::span<const std::byte> elements, Round round, double learning_rate = 0);

// elements = what the payload says; elements += that. `drawn`: for randomk PartState::drawn of a rank that coded this
// round, for others anything. The payload may be a stranger's, and change while it is read: nothing outside of it and
// the elements is touched. The result is nullptr, or what is wrong with the payload: then decode() has left anything in
// the elements, and decode_add() has added nothing (if the payload did not change).
[[nodiscard]] const char* decode(const PartCodec& codec, std::span<std::byte> elements,
                                 std::span<const std::byte> payload, const PartDraws& drawn);
[[nodiscard]] const char* decode_add(const PartCodec& codec, std::span<std::byte> elements,
                                     std::span<const std::byte> payload, const PartDraws& drawn);

}  // namespace byteps
