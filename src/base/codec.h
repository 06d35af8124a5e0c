// Codec: what the formats that need more words than their name are to be: onebit, topk, randomk, dithering and float32.
// All ranks use the same (base/spec.h). What is computed: kernels/part_coding.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/format.h"

namespace byteps {

struct Codec {
  // topk, randomk: below 1 the share of the elements of a part that is sent, rounded down, but at least one; else how
  // many of each part, of a smaller one as many as can be. dithering: levels above zero.
  double k = 0;
  std::optional<std::uint64_t> seed = {};  // randomk, dithering
  bool scaling = false;                    // onebit
  bool natural = false;                    // dithering: powers of two; else linear
  bool l2 = false;                         // dithering: the norm; else the largest magnitude
  bool error_feedback = false;             // at the servers as well; not of float32
  std::optional<double> momentum = {};     // mu

  bool operator==(const Codec&) const = default;
  // "", " with k = 0.01, seed 7 and error feedback"
  std::string text() const;
};

// A codec that takes the space of a pointer where there is none, as with most tensors.
class SharedCodec {
 public:
  SharedCodec() = default;
  // NOLINTNEXTLINE: it is one
  SharedCodec(const Codec& codec)
      : codec_(codec == Codec() ? nullptr : std::make_shared<const Codec>(codec)) {}

  const Codec& operator*() const { return codec_ != nullptr ? *codec_ : kNone; }
  const Codec* operator->() const { return &**this; }
  bool operator==(const SharedCodec& other) const { return **this == *other; }

 private:
  static const Codec kNone;

  std::shared_ptr<const Codec> codec_;  // null: none
};

// nullptr when a codec of this format can be so; otherwise why not.
const char* flaw_of_codec(Format format, const Codec& codec);

// What follows is of those that can be.

// How many elements of a part topk sends, half of them at most, and randomk.
std::uint64_t sent_elements(Format format, const Codec& codec, std::uint64_t element_count);
// The words of dithering's codes have so many bits for each element.
unsigned dithering_bits(const Codec& codec);
// Of float32 elements, in any format.
std::uint64_t payload_bytes(Format format, const Codec& codec, std::uint64_t element_count);

}  // namespace byteps
