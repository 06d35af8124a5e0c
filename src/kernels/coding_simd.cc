// The kernels for coding in vectors of Google Highway, as simd.cc compiles those of sums: what is said there holds
// here. Besides, the compiler must not join a multiplication and an addition into one step, which rounds once instead
// of twice (-ffp-contract=off).
#include "kernels/sets.h"

#if __has_include(<hwy/highway.h>)

#if !defined(HWY_TARGET_INCLUDE)
#define HWY_TARGET_INCLUDE "kernels/coding_simd.cc"
#if defined(__x86_64__) || defined(__i386__)
#define HWY_DISABLED_TARGETS HWY_SSSE3  // too old to be worth a copy
#define HWY_DISABLE_PCLMUL_AES          // not used: do not ask for them
#else
#define HWY_COMPILE_ONLY_STATIC  // other architectures: what the baseline has
#endif
#endif

#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
HWY_BEFORE_NAMESPACE();
namespace byteps {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

constexpr std::size_t kInt8Block = 256;
constexpr std::size_t kInt4Block = 32;
constexpr std::size_t kInt4Bytes = kInt4Block / 2;

using Floats = hn::CappedTag<float, 16>;
using Integers = hn::RebindToSigned<Floats>;
using Bits = hn::RebindToUnsigned<Floats>;
using Codes = hn::Rebind<std::int8_t, Floats>;
using Bytes = hn::Rebind<std::uint8_t, Floats>;

HWY_INLINE hn::Vec<Floats> read(const std::byte* array, std::size_t index) {
  return hn::LoadU(Floats(), reinterpret_cast<const float*>(array) + index);
}

HWY_INLINE void write(hn::Vec<Floats> numbers, std::byte* array, std::size_t index) {
  hn::StoreU(numbers, Floats(), reinterpret_cast<float*>(array) + index);
}

// With the residual of the round before, where there is one.
struct Elements {
  const std::byte* elements;
  std::byte* residual;

  template <bool kResidual>
  HWY_INLINE hn::Vec<Floats> read(std::size_t index) const {
    const auto numbers = HWY_NAMESPACE::read(elements, index);
    if constexpr (kResidual) return hn::Add(numbers, HWY_NAMESPACE::read(residual, index));
    return numbers;
  }
  // From this element on.
  HWY_INLINE const std::byte* elements_at(std::size_t index) const {
    return elements + index * sizeof(float);
  }
  HWY_INLINE std::byte* residual_at(std::size_t index) const {
    return residual == nullptr ? nullptr : residual + index * sizeof(float);
  }
};

// Of a block, in all lanes; its bits. Of magnitudes these are ordered as the numbers are.
template <bool kResidual, std::size_t kBlock>
HWY_INLINE hn::Vec<Bits> largest_magnitude(const Elements& elements, std::size_t first) {
  const Bits bits;
  const auto all_but_sign = hn::Set(bits, 0x7fffffffU);
  const std::size_t lanes = hn::Lanes(bits);
  auto even = hn::Zero(bits);
  auto odd = hn::Zero(bits);
  for (std::size_t i = first; i < first + kBlock; i += 2 * lanes) {
    const auto one = hn::BitCast(bits, elements.read<kResidual>(i));
    const auto other = hn::BitCast(bits, elements.read<kResidual>(i + lanes));
    even = hn::Max(even, hn::And(one, all_but_sign));
    odd = hn::Max(odd, hn::And(other, all_but_sign));
  }
  return hn::MaxOfLanes(bits, hn::Max(even, odd));
}

// In all lanes. Of a block that is too small both are 0.
struct Scale {
  hn::Vec<Floats> scale;
  hn::Vec<Floats> inverse;
};
HWY_INLINE Scale scale_of_int8(hn::Vec<Bits> largest) {
  const Floats floats;
  const auto magnitude = hn::BitCast(floats, largest);
  const auto limit = hn::Set(floats, 127.0F);
  const auto is_small = hn::Lt(magnitude, hn::Set(floats, kTooSmall));
  return {hn::IfThenZeroElse(is_small, hn::Div(magnitude, limit)),
          hn::IfThenZeroElse(is_small, hn::Div(limit, magnitude))};
}
HWY_INLINE Scale scale_of_int4(hn::Vec<Bits> largest) {
  const Floats floats;
  const Bits bits;
  const auto magnitude = hn::BitCast(floats, largest);
  const auto is_small = hn::Lt(magnitude, hn::Set(floats, kTooSmall));
  const auto exact = hn::BitCast(bits, hn::Div(magnitude, hn::Set(floats, 7.0F)));
  const auto up = hn::And(hn::Add(exact, hn::Set(bits, 0xffffU)), hn::Set(bits, 0xffff0000U));
  const auto scale = hn::BitCast(floats, up);
  return {hn::IfThenZeroElse(is_small, scale),
          hn::IfThenZeroElse(is_small, hn::Div(hn::Set(floats, 1.0F), scale))};
}

// Numbers of this size have no fractions: what is added to it is rounded, and stands in its last bits.
constexpr float kWhole = 0x1.8p23F;

// The codes of a vector of elements plus `offset`, in the lowest byte of each lane; other bits are not 0. Keeps what
// they leave.
template <bool kResidual>
HWY_INLINE hn::Vec<Bits> codes_of(const Scale& scale, float offset, const Elements& elements,
                                  std::size_t index) {
  const Floats floats;
  const auto numbers = elements.read<kResidual>(index);
  const auto shift = hn::Set(floats, kWhole + offset);
  const auto shifted = hn::Add(hn::Mul(numbers, scale.inverse), shift);
  if constexpr (kResidual) {
    const auto codes = hn::Sub(shifted, shift);
    write(hn::Sub(numbers, hn::Mul(codes, scale.scale)), elements.residual, index);
  }
  return hn::BitCast(Bits(), shifted);
}

HWY_INLINE void put_lowest_bytes(hn::Vec<Bits> lanes, std::byte* output) {
  const auto lowest = hn::And(lanes, hn::Set(Bits(), 0xffU));
  hn::StoreU(hn::U8FromU32(lowest), Bytes(), reinterpret_cast<std::uint8_t*>(output));
}

template <bool kResidual>
HWY_INLINE void encode_int8_blocks(std::byte* scales, std::byte* codes, const Elements& elements,
                                   std::size_t blocks) {
  const std::size_t lanes = hn::Lanes(Floats());
  for (std::size_t block = 0; block < blocks; ++block) {
    const std::size_t first = block * kInt8Block;
    std::byte* const its_scale = scales + block * sizeof(float);
    const auto largest = largest_magnitude<kResidual, kInt8Block>(elements, first);
    if (hn::GetLane(largest) >= kTooLarge) {
      encode_int8_block(its_scale, codes + first, elements.elements_at(first),
                        elements.residual_at(first), kInt8Block);
      continue;
    }
    const Scale scale = scale_of_int8(largest);
    const float number = hn::GetLane(scale.scale);
    __builtin_memcpy(its_scale, &number, sizeof number);
    for (std::size_t i = first; i < first + kInt8Block; i += lanes) {
      put_lowest_bytes(codes_of<kResidual>(scale, 0, elements, i), codes + i);
    }
  }
}

void encode_int8(std::byte* payload, const std::byte* input, std::byte* residual,
                 std::size_t element_count) {
  const Elements elements{input, residual};
  const std::size_t whole = element_count / kInt8Block;
  const std::size_t rest = element_count % kInt8Block;
  std::byte* const codes = payload + (whole + (rest > 0 ? 1 : 0)) * sizeof(float);
  if (residual == nullptr) {
    encode_int8_blocks<false>(payload, codes, elements, whole);
  } else {
    encode_int8_blocks<true>(payload, codes, elements, whole);
  }
  if (rest == 0) return;
  const std::size_t first = whole * kInt8Block;
  encode_int8_block(payload + whole * sizeof(float), codes + first, elements.elements_at(first),
                    elements.residual_at(first), rest);
}

template <bool kResidual>
HWY_INLINE void encode_int4_blocks(std::byte* scales, std::byte* codes, const Elements& elements,
                                   std::size_t blocks) {
  constexpr float kCodeOfZero = 8;
  const std::size_t lanes = hn::Lanes(Floats());
  for (std::size_t block = 0; block < blocks; ++block) {
    const std::size_t first = block * kInt4Block;
    std::byte* const its_scale = scales + block * 2;
    std::byte* const its_codes = codes + block * kInt4Bytes;
    const auto largest = largest_magnitude<kResidual, kInt4Block>(elements, first);
    if (hn::GetLane(largest) >= kTooLarge) {
      encode_int4_block(its_scale, its_codes, elements.elements_at(first),
                        elements.residual_at(first), kInt4Block);
      continue;
    }
    const Scale scale = scale_of_int4(largest);
    const auto upper_bits = static_cast<std::uint16_t>(
        hn::GetLane(hn::ShiftRight<16>(hn::BitCast(Bits(), scale.scale))));
    __builtin_memcpy(its_scale, &upper_bits, 2);
    for (std::size_t i = 0; i < kInt4Bytes; i += lanes) {
      const auto lower = codes_of<kResidual>(scale, kCodeOfZero, elements, first + i);
      const auto upper = codes_of<kResidual>(scale, kCodeOfZero, elements, first + i + kInt4Bytes);
      put_lowest_bytes(hn::Or(hn::And(lower, hn::Set(Bits(), 15U)), hn::ShiftLeft<4>(upper)),
                       its_codes + i);
    }
  }
}

void encode_int4(std::byte* payload, const std::byte* input, std::byte* residual,
                 std::size_t element_count) {
  const Elements elements{input, residual};
  const std::size_t whole = element_count / kInt4Block;
  const std::size_t rest = element_count % kInt4Block;
  std::byte* const codes = payload + (whole + (rest > 0 ? 1 : 0)) * 2;
  if (residual == nullptr) {
    encode_int4_blocks<false>(payload, codes, elements, whole);
  } else {
    encode_int4_blocks<true>(payload, codes, elements, whole);
  }
  if (rest == 0) return;
  const std::size_t first = whole * kInt4Block;
  encode_int4_block(payload + whole * 2, codes + whole * kInt4Bytes, elements.elements_at(first),
                    elements.residual_at(first), rest);
}

template <bool kAdd>
HWY_INLINE void put(hn::Vec<Integers> codes, hn::Vec<Floats> scale, std::byte* elements,
                    std::size_t index) {
  auto numbers = hn::Mul(hn::ConvertTo(Floats(), codes), scale);
  if constexpr (kAdd) numbers = hn::Add(read(elements, index), numbers);
  write(numbers, elements, index);
}

template <bool kAdd>
void decode_int8(std::byte* elements, const std::byte* payload, std::size_t element_count) {
  const std::size_t lanes = hn::Lanes(Integers());
  const std::size_t whole = element_count / kInt8Block;
  const std::size_t rest = element_count % kInt8Block;
  const std::byte* const codes = payload + (whole + (rest > 0 ? 1 : 0)) * sizeof(float);
  for (std::size_t block = 0; block < whole; ++block) {
    float number = 0;
    __builtin_memcpy(&number, payload + block * sizeof(float), sizeof number);
    const auto scale = hn::Set(Floats(), number);
    const std::size_t first = block * kInt8Block;
    for (std::size_t i = first; i < first + kInt8Block; i += lanes) {
      const auto some = hn::LoadU(Codes(), reinterpret_cast<const std::int8_t*>(codes) + i);
      put<kAdd>(hn::PromoteTo(Integers(), some), scale, elements, i);
    }
  }
  if (rest == 0) return;
  const std::size_t first = whole * kInt8Block;
  decode_int8_block(elements + first * sizeof(float), payload + whole * sizeof(float),
                    codes + first, rest, kAdd);
}

template <bool kAdd>
void decode_int4(std::byte* elements, const std::byte* payload, std::size_t element_count) {
  const Integers integers;
  const std::size_t lanes = hn::Lanes(integers);
  const std::size_t whole = element_count / kInt4Block;
  const std::size_t rest = element_count % kInt4Block;
  const std::byte* const codes = payload + (whole + (rest > 0 ? 1 : 0)) * 2;
  const auto lower_half = hn::Set(integers, 15);
  const auto zero = hn::Set(integers, 8);
  for (std::size_t block = 0; block < whole; ++block) {
    std::uint16_t upper_bits = 0;
    __builtin_memcpy(&upper_bits, payload + block * 2, 2);
    const auto scale =
        hn::BitCast(Floats(), hn::Set(Bits(), static_cast<std::uint32_t>(upper_bits) << 16));
    const auto* const its_codes = reinterpret_cast<const std::uint8_t*>(codes + block * kInt4Bytes);
    for (std::size_t i = 0; i < kInt4Bytes; i += lanes) {
      const auto both = hn::PromoteTo(integers, hn::LoadU(Bytes(), its_codes + i));
      const std::size_t at = block * kInt4Block + i;
      put<kAdd>(hn::Sub(hn::And(both, lower_half), zero), scale, elements, at);
      put<kAdd>(hn::Sub(hn::ShiftRight<4>(both), zero), scale, elements, at + kInt4Bytes);
    }
  }
  if (rest == 0) return;
  const std::size_t first = whole * kInt4Block;
  decode_int4_block(elements + first * sizeof(float), payload + whole * 2,
                    codes + whole * kInt4Bytes, rest, kAdd);
}

}  // namespace

void put_coding(KernelSet& set) {
  set.int8 = {encode_int8, decode_int8<false>, decode_int8<true>};
  set.int4 = {encode_int4, decode_int4<false>, decode_int4<true>};
}

}  // namespace HWY_NAMESPACE
}  // namespace byteps
HWY_AFTER_NAMESPACE();
#endif  // a target with vectors
#else
#define HWY_ONCE 1
#define HWY_TARGETS 0
#endif  // Highway

#if HWY_ONCE
namespace byteps {

void vectorise_coding([[maybe_unused]] CompiledSet& set) {
#if HWY_TARGETS & HWY_SSE4
  if (set.needs == CompiledSet::Needs::kSse4) return N_SSE4::put_coding(set.set);
#endif
#if HWY_TARGETS & HWY_AVX2
  if (set.needs == CompiledSet::Needs::kAvx2) return N_AVX2::put_coding(set.set);
#endif
#if HWY_TARGETS & HWY_AVX3
  if (set.needs == CompiledSet::Needs::kAvx512) return N_AVX3::put_coding(set.set);
#endif
#if HWY_TARGETS & HWY_NEON
  if (set.needs == CompiledSet::Needs::kBaseline) return N_NEON::put_coding(set.set);
#endif
}

}  // namespace byteps
#endif
