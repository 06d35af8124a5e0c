// The kernels in vectors of Google Highway, compiled once per target: foreach_target.h includes
// this very file again with other instructions switched on. Highway's own dispatch needs its
// library; we use its headers only, and kernels.cc chooses among the tables at the end of this
// file.
//
// Everything outside HWY_BEFORE_NAMESPACE is compiled for the baseline. Inside, call no inline
// function and no template from elsewhere but Highway's: the linker could keep a copy of it that
// needs a larger CPU.
#include "kernels/sets.h"

#if __has_include(<hwy/highway.h>)

#if !defined(HWY_TARGET_INCLUDE)
#define HWY_TARGET_INCLUDE "kernels/simd.cc"
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

// What has no vector of its own: the last few elements.
const KindKernels& scalar_of(DType dtype) {
  return scalar_kernels().kinds[static_cast<std::size_t>(dtype)];
}

// How two vectors of sums are joined, and the scalar kernel that does the same.
struct Plus {
  template <class V>
  static HWY_INLINE V join(V a, V b) {
    return hn::Add(a, b);
  }
  static HWY_INLINE SumKernels::Combine rest(const KindKernels& scalar) {
    return scalar.sum.add_elements;
  }
};
struct Times {
  template <class V>
  static HWY_INLINE V join(V a, V b) {
    return hn::Mul(a, b);
  }
  static HWY_INLINE SumKernels::Combine rest(const KindKernels& scalar) {
    return scalar.multiply_elements;
  }
};
// Equal numbers are of the same bits, but for zeros: of those the lesser has the sign, the greater has not.
struct Lesser {
  template <class V>
  static HWY_INLINE V join(V a, V b) {
    if constexpr (hwy::IsFloat<hn::TFromV<V>>()) {
      const auto less = hn::IfThenElse(hn::Lt(b, a), b, a);
      const auto ordered = hn::IfThenElse(hn::Eq(a, b), hn::Or(a, b), less);
      return hn::IfThenElse(hn::IsNaN(b), b, ordered);
    } else {
      return hn::Min(a, b);
    }
  }
  static HWY_INLINE SumKernels::Combine rest(const KindKernels& scalar) {
    return scalar.min_elements;
  }
};
struct Greater {
  template <class V>
  static HWY_INLINE V join(V a, V b) {
    if constexpr (hwy::IsFloat<hn::TFromV<V>>()) {
      const auto more = hn::IfThenElse(hn::Lt(a, b), b, a);
      const auto ordered = hn::IfThenElse(hn::Eq(a, b), hn::And(a, b), more);
      return hn::IfThenElse(hn::IsNaN(b), b, ordered);
    } else {
      return hn::Max(a, b);
    }
  }
  static HWY_INLINE SumKernels::Combine rest(const KindKernels& scalar) {
    return scalar.max_elements;
  }
};
// Of booleans, which are 0 or 1 in the accumulator.
struct Either {
  template <class V>
  static HWY_INLINE V join(V a, V b) {
    return hn::Or(a, b);
  }
  static HWY_INLINE SumKernels::Combine rest(const KindKernels& scalar) {
    return scalar.sum.add_elements;
  }
};
struct Both {
  template <class V>
  static HWY_INLINE V join(V a, V b) {
    return hn::And(a, b);
  }
  static HWY_INLINE SumKernels::Combine rest(const KindKernels& scalar) {
    return scalar.min_elements;
  }
};

// A kind of element: how a vector of them is read as a vector of sums.
template <DType dtype, typename T>
struct Number {
  static constexpr DType kDType = dtype;
  static constexpr std::size_t kElementBytes = sizeof(T);
  using Sum = T;
  template <class D>
  static HWY_INLINE hn::Vec<D> read(D d, const std::byte* input) {
    return hn::LoadU(d, reinterpret_cast<const T*>(input));
  }
};

struct Bool {
  static constexpr DType kDType = DType::kBool;
  static constexpr std::size_t kElementBytes = 1;
  using Sum = std::uint8_t;
  template <class D>
  static HWY_INLINE hn::Vec<D> read(D d, const std::byte* input) {
    return hn::Min(hn::LoadU(d, reinterpret_cast<const std::uint8_t*>(input)), hn::Set(d, 1));
  }
};

struct Bfloat {
  static constexpr DType kDType = DType::kBfloat16;
  static constexpr std::size_t kElementBytes = 2;
  using Sum = float;
  template <class D>
  static HWY_INLINE hn::Vec<D> read(D d, const std::byte* input) {
    const hn::RebindToUnsigned<D> bits;
    const hn::Rebind<std::uint16_t, D> halves;
    const auto upper = hn::LoadU(halves, reinterpret_cast<const std::uint16_t*>(input));
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(bits, upper)));
  }
  // bfloat_of_float of half.h.
  template <class D>
  static HWY_INLINE void write(D, hn::Vec<D> sums, std::byte* output) {
    const hn::RebindToUnsigned<D> unsigned_bits;
    const hn::RebindToSigned<D> signed_bits;
    const hn::Rebind<std::uint16_t, D> halves;
    const auto bits = hn::BitCast(unsigned_bits, sums);
    const auto upper = hn::ShiftRight<16>(bits);
    const auto even = hn::And(upper, hn::Set(unsigned_bits, 1));
    const auto rounded =
        hn::ShiftRight<16>(hn::Add(bits, hn::Add(even, hn::Set(unsigned_bits, 0x7fff))));
    const auto quiet = hn::Or(upper, hn::Set(unsigned_bits, 0x40));
    const auto is_nan = hn::RebindMask(unsigned_bits, hn::IsNaN(sums));
    const auto result = hn::IfThenElse(is_nan, quiet, rounded);
    hn::StoreU(hn::DemoteTo(halves, hn::BitCast(signed_bits, result)), halves,
               reinterpret_cast<std::uint16_t*>(output));
  }
};

#if HWY_TARGET != HWY_SSE4
// By the conversion instructions of the CPU. Targets without them (SSE4) take the scalar kernels.
struct Half {
  static constexpr DType kDType = DType::kFloat16;
  static constexpr std::size_t kElementBytes = 2;
  using Sum = float;
  template <class D>
  static HWY_INLINE hn::Vec<D> read(D d, const std::byte* input) {
    const hn::Rebind<hwy::float16_t, D> halves;
    return hn::PromoteTo(d, hn::LoadU(halves, reinterpret_cast<const hwy::float16_t*>(input)));
  }
  template <class D>
  static HWY_INLINE void write(D, hn::Vec<D> sums, std::byte* output) {
    const hn::Rebind<hwy::float16_t, D> halves;
    hn::StoreU(hn::DemoteTo(halves, sums), halves, reinterpret_cast<hwy::float16_t*>(output));
  }
};
#endif

template <class Kind>
void load(std::byte* accumulator, const std::byte* input, std::size_t element_count) {
  const hn::ScalableTag<typename Kind::Sum> d;
  const std::size_t lanes = hn::Lanes(d);
  auto* sums = reinterpret_cast<typename Kind::Sum*>(accumulator);
  std::size_t i = 0;
  for (; i + lanes <= element_count; i += lanes) {
    hn::StoreU(Kind::read(d, input + i * Kind::kElementBytes), d, sums + i);
  }
  if (i == element_count) return;
  scalar_of(Kind::kDType)
      .sum.load_elements(accumulator + i * sizeof(typename Kind::Sum),
                         input + i * Kind::kElementBytes, element_count - i);
}

constexpr std::size_t kPageBytes = 4096;

// Asks for the first cache line of a page that is half a page to one and a half ahead. The CPU's prefetchers stop at
// the end of a page, because they do not know where the next one lies in memory: without this every page begins with
// a walk of the page tables and a wait. Into the second cache: into the first it costs 7 % of what the third can give.
HWY_INLINE void ask_for_next_page(const std::byte* at) {
  const std::size_t behind = (reinterpret_cast<std::uintptr_t>(at) + kPageBytes / 2) % kPageBytes;
  __builtin_prefetch(at + (kPageBytes + kPageBytes / 2 - behind), 0, 2);
}

// Vectors of at most 32 bytes of input: with those of 64 memory is slower by a tenth and more, and no cache is faster.
template <class Kind>
using AddVectors = hn::CappedTag<typename Kind::Sum, 32 / Kind::kElementBytes>;

// As many elements as fill whole vectors; how many those are.
template <class Kind, class Join>
HWY_INLINE std::size_t add_vectors(typename Kind::Sum* sums, const std::byte* input,
                                   std::size_t element_count) {
  const AddVectors<Kind> d;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t step = lanes * Kind::kElementBytes;
  std::size_t i = 0;
  for (; i + 4 * lanes <= element_count;
       i += 4 * lanes) {  // four at once hide the latency of loads
    const std::byte* elements = input + i * Kind::kElementBytes;
    const auto sum0 = Join::join(hn::LoadU(d, sums + i), Kind::read(d, elements));
    const auto sum1 = Join::join(hn::LoadU(d, sums + i + lanes), Kind::read(d, elements + step));
    const auto sum2 =
        Join::join(hn::LoadU(d, sums + i + 2 * lanes), Kind::read(d, elements + 2 * step));
    const auto sum3 =
        Join::join(hn::LoadU(d, sums + i + 3 * lanes), Kind::read(d, elements + 3 * step));
    hn::StoreU(sum0, d, sums + i);
    hn::StoreU(sum1, d, sums + i + lanes);
    hn::StoreU(sum2, d, sums + i + 2 * lanes);
    hn::StoreU(sum3, d, sums + i + 3 * lanes);
  }
  for (; i + lanes <= element_count; i += lanes) {
    const auto elements = Kind::read(d, input + i * Kind::kElementBytes);
    hn::StoreU(Join::join(hn::LoadU(d, sums + i), elements), d, sums + i);
  }
  return i;
}

template <class Kind, class Join>
void add(std::byte* accumulator, const std::byte* input, std::size_t element_count) {
  constexpr std::size_t kPageElements = kPageBytes / sizeof(typename Kind::Sum);
  auto* sums = reinterpret_cast<typename Kind::Sum*>(accumulator);
  std::size_t i = 0;
  for (; i + kPageElements < element_count; i += kPageElements) {
    ask_for_next_page(accumulator + i * sizeof(typename Kind::Sum));
    ask_for_next_page(input + i * Kind::kElementBytes);
    add_vectors<Kind, Join>(sums + i, input + i * Kind::kElementBytes, kPageElements);
  }
  i += add_vectors<Kind, Join>(sums + i, input + i * Kind::kElementBytes, element_count - i);
  if (i == element_count) return;
  Join::rest(scalar_of(Kind::kDType))(accumulator + i * sizeof(typename Kind::Sum),
                                      input + i * Kind::kElementBytes, element_count - i);
}

// float32 and float64: an average, or scaled (a sum is finished by being copied).
template <class Kind>
void finish_number(std::byte* output, const std::byte* accumulator, std::size_t element_count,
                   Finishing finishing) {
  using T = typename Kind::Sum;
  const hn::ScalableTag<T> d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  if (finishing.divisor != 1 || finishing.scale != 1) {
    const auto divisors = hn::Set(d, static_cast<T>(finishing.divisor));
    const auto scales = hn::Set(d, static_cast<T>(finishing.scale));
    for (; i + lanes <= element_count; i += lanes) {
      const auto sums = hn::LoadU(d, reinterpret_cast<const T*>(accumulator) + i);
      hn::StoreU(hn::Mul(hn::Div(sums, divisors), scales), d, reinterpret_cast<T*>(output) + i);
    }
  }
  if (i == element_count) return;
  scalar_of(Kind::kDType)
      .sum.finish_elements(output + i * sizeof(T), accumulator + i * sizeof(T), element_count - i,
                           finishing);
}

// int32, in float64: there the quotient of two such numbers is never rounded across an integer.
void finish_int32(std::byte* output, const std::byte* accumulator, std::size_t element_count,
                  Finishing finishing) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<std::int32_t, decltype(d)> integers;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  if (finishing.divisor != 1 && finishing.scale == 1) {
    const auto divisors = hn::Set(d, static_cast<double>(finishing.divisor));
    for (; i + lanes <= element_count; i += lanes) {
      const auto sums = hn::LoadU(integers, reinterpret_cast<const std::int32_t*>(accumulator) + i);
      const auto quotients = hn::Trunc(hn::Div(hn::PromoteTo(d, sums), divisors));
      hn::StoreU(hn::DemoteTo(integers, quotients), integers,
                 reinterpret_cast<std::int32_t*>(output) + i);
    }
  }
  if (i == element_count) return;
  scalar_of(DType::kInt32)
      .sum.finish_elements(output + i * sizeof(std::int32_t),
                           accumulator + i * sizeof(std::int32_t), element_count - i, finishing);
}

// float16 and bfloat16.
template <class Kind, bool kChange>
std::size_t narrow(std::byte* output, const std::byte* accumulator, std::size_t element_count,
                   Finishing finishing) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto divisors = hn::Set(d, static_cast<float>(finishing.divisor));
  const auto scales = hn::Set(d, static_cast<float>(finishing.scale));
  std::size_t i = 0;
  for (; i + lanes <= element_count; i += lanes) {
    auto sums = hn::LoadU(d, reinterpret_cast<const float*>(accumulator) + i);
    if constexpr (kChange) sums = hn::Mul(hn::Div(sums, divisors), scales);
    Kind::write(d, sums, output + i * Kind::kElementBytes);
  }
  return i;
}

template <class Kind>
void finish_half(std::byte* output, const std::byte* accumulator, std::size_t element_count,
                 Finishing finishing) {
  const bool changes = finishing.divisor != 1 || finishing.scale != 1;
  const std::size_t done = changes
                               ? narrow<Kind, true>(output, accumulator, element_count, finishing)
                               : narrow<Kind, false>(output, accumulator, element_count, finishing);
  if (done == element_count) return;
  scalar_of(Kind::kDType)
      .sum.finish_elements(output + done * Kind::kElementBytes, accumulator + done * sizeof(float),
                           element_count - done, finishing);
}

using Float32 = Number<DType::kFloat32, float>;
using Float64 = Number<DType::kFloat64, double>;
using Uint8 = Number<DType::kUint8, std::uint8_t>;
using Int8 = Number<DType::kInt8, std::int8_t>;
using Int32 = Number<DType::kInt32, std::int32_t>;
using Int64 = Number<DType::kInt64, std::int64_t>;
using Int16 = Number<DType::kInt16, std::int16_t>;
using Uint16 = Number<DType::kUint16, std::uint16_t>;
using Uint32 = Number<DType::kUint32, std::uint32_t>;
using Uint64 = Number<DType::kUint64, std::uint64_t>;

// All ways of joining, but products of integers of 8 and 64 bits, for which most CPUs have no instruction.
template <class Kind>
void put_joins(KindKernels (&kinds)[kDTypeCount]) {
  constexpr std::size_t kBytes = sizeof(typename Kind::Sum);
  KindKernels& kind = kinds[static_cast<std::size_t>(Kind::kDType)];
  kind.sum.add_elements = add<Kind, Plus>;
  kind.min_elements = add<Kind, Lesser>;
  kind.max_elements = add<Kind, Greater>;
  if constexpr (hwy::IsFloat<typename Kind::Sum>() || kBytes == 2 || kBytes == 4) {
    kind.multiply_elements = add<Kind, Times>;
  }
}

template <class Kind>
void put_half(KindKernels (&kinds)[kDTypeCount]) {
  put_joins<Kind>(kinds);
  KindKernels& kind = kinds[static_cast<std::size_t>(Kind::kDType)];
  kind.sum.load_elements = load<Kind>;
  kind.sum.finish_elements = finish_half<Kind>;
}

}  // namespace

// Puts the vector kernels over the scalar ones. What is not named here stays scalar: load and the
// sum's finish of numbers are memcpy, integer averages but int32's have no vector division.
void vectorise(KindKernels (&kinds)[kDTypeCount]) {
  const auto kind = [&](DType dtype) -> KindKernels& {
    return kinds[static_cast<std::size_t>(dtype)];
  };
  put_joins<Float32>(kinds);
  kind(DType::kFloat32).sum.finish_elements = finish_number<Float32>;
  put_joins<Float64>(kinds);
  kind(DType::kFloat64).sum.finish_elements = finish_number<Float64>;
  put_joins<Uint8>(kinds);
  put_joins<Int8>(kinds);
  put_joins<Int16>(kinds);
  put_joins<Uint16>(kinds);
  put_joins<Int32>(kinds);
  kind(DType::kInt32).sum.finish_elements = finish_int32;
  put_joins<Uint32>(kinds);
  put_joins<Int64>(kinds);
  put_joins<Uint64>(kinds);
  put_half<Bfloat>(kinds);
  kind(DType::kBool).sum.load_elements = load<Bool>;
  kind(DType::kBool).sum.add_elements = kind(DType::kBool).max_elements = add<Bool, Either>;
  kind(DType::kBool).min_elements = kind(DType::kBool).multiply_elements = add<Bool, Both>;
#if HWY_TARGET != HWY_SSE4
  put_half<Half>(kinds);
#endif
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

std::vector<CompiledSet> simd_kernels() {
  std::vector<CompiledSet> sets;
  [[maybe_unused]] const auto put = [&](const char* target, CompiledSet::Needs needs,
                                        auto vectorise) {
    sets.push_back({needs, scalar_kernels()});
    sets.back().set.target = target;
    vectorise(sets.back().set.kinds);
    vectorise_coding(sets.back());
  };
#if HWY_TARGETS & HWY_SSE4
  put("sse4", CompiledSet::Needs::kSse4, N_SSE4::vectorise);
#endif
#if HWY_TARGETS & HWY_AVX2
  put("avx2", CompiledSet::Needs::kAvx2, N_AVX2::vectorise);
#endif
#if HWY_TARGETS & HWY_AVX3
  put("avx512", CompiledSet::Needs::kAvx512, N_AVX3::vectorise);
#endif
#if HWY_TARGETS & HWY_NEON
  put("neon", CompiledSet::Needs::kBaseline, N_NEON::vectorise);
#endif
  return sets;
}

}  // namespace byteps
#endif
