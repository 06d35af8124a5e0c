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
const SumKernels& scalar_of(DType dtype) {
  return scalar_kernels().kinds[static_cast<std::size_t>(dtype)];
}

// A kind of element: how a vector of them is read as a vector of sums, and how sums are joined.
template <DType dtype, typename T>
struct Number {
  static constexpr DType kDType = dtype;
  static constexpr std::size_t kElementBytes = sizeof(T);
  using Sum = T;
  template <class D>
  static HWY_INLINE hn::Vec<D> read(D d, const std::byte* input) {
    return hn::LoadU(d, reinterpret_cast<const T*>(input));
  }
  template <class V>
  static HWY_INLINE V join(V sums, V elements) {
    return hn::Add(sums, elements);
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
  template <class V>
  static HWY_INLINE V join(V sums, V elements) {
    return hn::Or(sums, elements);
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
  template <class V>
  static HWY_INLINE V join(V sums, V elements) {
    return hn::Add(sums, elements);
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
  template <class V>
  static HWY_INLINE V join(V sums, V elements) {
    return hn::Add(sums, elements);
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
      .load_elements(accumulator + i * sizeof(typename Kind::Sum), input + i * Kind::kElementBytes,
                     element_count - i);
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
template <class Kind>
HWY_INLINE std::size_t add_vectors(typename Kind::Sum* sums, const std::byte* input,
                                   std::size_t element_count) {
  const AddVectors<Kind> d;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t step = lanes * Kind::kElementBytes;
  std::size_t i = 0;
  for (; i + 4 * lanes <= element_count;
       i += 4 * lanes) {  // four at once hide the latency of loads
    const std::byte* elements = input + i * Kind::kElementBytes;
    const auto sum0 = Kind::join(hn::LoadU(d, sums + i), Kind::read(d, elements));
    const auto sum1 = Kind::join(hn::LoadU(d, sums + i + lanes), Kind::read(d, elements + step));
    const auto sum2 =
        Kind::join(hn::LoadU(d, sums + i + 2 * lanes), Kind::read(d, elements + 2 * step));
    const auto sum3 =
        Kind::join(hn::LoadU(d, sums + i + 3 * lanes), Kind::read(d, elements + 3 * step));
    hn::StoreU(sum0, d, sums + i);
    hn::StoreU(sum1, d, sums + i + lanes);
    hn::StoreU(sum2, d, sums + i + 2 * lanes);
    hn::StoreU(sum3, d, sums + i + 3 * lanes);
  }
  for (; i + lanes <= element_count; i += lanes) {
    const auto elements = Kind::read(d, input + i * Kind::kElementBytes);
    hn::StoreU(Kind::join(hn::LoadU(d, sums + i), elements), d, sums + i);
  }
  return i;
}

template <class Kind>
void add(std::byte* accumulator, const std::byte* input, std::size_t element_count) {
  constexpr std::size_t kPageElements = kPageBytes / sizeof(typename Kind::Sum);
  auto* sums = reinterpret_cast<typename Kind::Sum*>(accumulator);
  std::size_t i = 0;
  for (; i + kPageElements < element_count; i += kPageElements) {
    ask_for_next_page(accumulator + i * sizeof(typename Kind::Sum));
    ask_for_next_page(input + i * Kind::kElementBytes);
    add_vectors<Kind>(sums + i, input + i * Kind::kElementBytes, kPageElements);
  }
  i += add_vectors<Kind>(sums + i, input + i * Kind::kElementBytes, element_count - i);
  if (i == element_count) return;
  scalar_of(Kind::kDType)
      .add_elements(accumulator + i * sizeof(typename Kind::Sum), input + i * Kind::kElementBytes,
                    element_count - i);
}

// float32 and float64: an average (a sum is finished by being copied).
template <class Kind>
void finish_number(std::byte* output, const std::byte* accumulator, std::size_t element_count,
                   std::uint32_t divisor) {
  using T = typename Kind::Sum;
  const hn::ScalableTag<T> d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  if (divisor != 1) {
    const auto divisors = hn::Set(d, static_cast<T>(divisor));
    for (; i + lanes <= element_count; i += lanes) {
      const auto sums = hn::LoadU(d, reinterpret_cast<const T*>(accumulator) + i);
      hn::StoreU(hn::Div(sums, divisors), d, reinterpret_cast<T*>(output) + i);
    }
  }
  if (i == element_count) return;
  scalar_of(Kind::kDType)
      .finish_elements(output + i * sizeof(T), accumulator + i * sizeof(T), element_count - i,
                       divisor);
}

// int32, in float64: there the quotient of two such numbers is never rounded across an integer.
void finish_int32(std::byte* output, const std::byte* accumulator, std::size_t element_count,
                  std::uint32_t divisor) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<std::int32_t, decltype(d)> integers;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  if (divisor != 1) {
    const auto divisors = hn::Set(d, static_cast<double>(divisor));
    for (; i + lanes <= element_count; i += lanes) {
      const auto sums = hn::LoadU(integers, reinterpret_cast<const std::int32_t*>(accumulator) + i);
      const auto quotients = hn::Floor(hn::Div(hn::PromoteTo(d, sums), divisors));
      hn::StoreU(hn::DemoteTo(integers, quotients), integers,
                 reinterpret_cast<std::int32_t*>(output) + i);
    }
  }
  if (i == element_count) return;
  scalar_of(DType::kInt32)
      .finish_elements(output + i * sizeof(std::int32_t), accumulator + i * sizeof(std::int32_t),
                       element_count - i, divisor);
}

// float16 and bfloat16.
template <class Kind, bool kDivide>
std::size_t narrow(std::byte* output, const std::byte* accumulator, std::size_t element_count,
                   std::uint32_t divisor) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto divisors = hn::Set(d, static_cast<float>(divisor));
  std::size_t i = 0;
  for (; i + lanes <= element_count; i += lanes) {
    auto sums = hn::LoadU(d, reinterpret_cast<const float*>(accumulator) + i);
    if constexpr (kDivide) sums = hn::Div(sums, divisors);
    Kind::write(d, sums, output + i * Kind::kElementBytes);
  }
  return i;
}

template <class Kind>
void finish_half(std::byte* output, const std::byte* accumulator, std::size_t element_count,
                 std::uint32_t divisor) {
  const std::size_t done = divisor == 1
                               ? narrow<Kind, false>(output, accumulator, element_count, divisor)
                               : narrow<Kind, true>(output, accumulator, element_count, divisor);
  if (done == element_count) return;
  scalar_of(Kind::kDType)
      .finish_elements(output + done * Kind::kElementBytes, accumulator + done * sizeof(float),
                       element_count - done, divisor);
}

using Float32 = Number<DType::kFloat32, float>;
using Float64 = Number<DType::kFloat64, double>;
using Uint8 = Number<DType::kUint8, std::uint8_t>;
using Int8 = Number<DType::kInt8, std::int8_t>;
using Int32 = Number<DType::kInt32, std::int32_t>;
using Int64 = Number<DType::kInt64, std::int64_t>;

}  // namespace

// Puts the vector kernels over the scalar ones. What is not named here stays scalar: load and the
// sum's finish of numbers are memcpy, integer averages but int32's have no vector division.
void vectorise(SumKernels (&kinds)[kDTypeCount]) {
  const auto kind = [&](DType dtype) -> SumKernels& {
    return kinds[static_cast<std::size_t>(dtype)];
  };
  kind(DType::kFloat32).add_elements = add<Float32>;
  kind(DType::kFloat32).finish_elements = finish_number<Float32>;
  kind(DType::kFloat64).add_elements = add<Float64>;
  kind(DType::kFloat64).finish_elements = finish_number<Float64>;
  kind(DType::kUint8).add_elements = add<Uint8>;
  kind(DType::kInt8).add_elements = add<Int8>;
  kind(DType::kInt32).add_elements = add<Int32>;
  kind(DType::kInt32).finish_elements = finish_int32;
  kind(DType::kInt64).add_elements = add<Int64>;
  kind(DType::kBfloat16).load_elements = load<Bfloat>;
  kind(DType::kBfloat16).add_elements = add<Bfloat>;
  kind(DType::kBfloat16).finish_elements = finish_half<Bfloat>;
  kind(DType::kBool).load_elements = load<Bool>;
  kind(DType::kBool).add_elements = add<Bool>;
#if HWY_TARGET != HWY_SSE4
  kind(DType::kFloat16).load_elements = load<Half>;
  kind(DType::kFloat16).add_elements = add<Half>;
  kind(DType::kFloat16).finish_elements = finish_half<Half>;
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
