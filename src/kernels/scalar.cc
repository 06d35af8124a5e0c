// One element at a time, written to be read. Memory is touched by memcpy, so that any address will
// do. The SIMD kernels call these for the rest of a frame that fills no vector, and for what is not
// worth vectors.
#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>

#include "kernels/half.h"
#include "kernels/sets.h"

namespace byteps {
namespace {

// The elements that are no C++ type.
struct Half {
  std::uint16_t bits;
};
struct Bfloat {
  std::uint16_t bits;
};
struct Bool {
  std::uint8_t byte;
};

template <typename T>
T read(const std::byte* array, std::size_t index) {
  T element;
  std::memcpy(&element, array + index * sizeof(T), sizeof(T));
  return element;
}

template <typename T>
void write(std::byte* array, std::size_t index, T element) {
  std::memcpy(array + index * sizeof(T), &element, sizeof(T));
}

// What one element adds to, and how it gets there and back.
template <typename T>
struct Kind {
  using Accumulator = T;
  static T widen(T element) { return element; }
  static T narrow(T sum) { return sum; }
};
template <>
struct Kind<Half> {
  using Accumulator = float;
  static float widen(Half element) { return float_of_half(element.bits); }
  static Half narrow(float sum) { return {half_of_float(sum)}; }
};
template <>
struct Kind<Bfloat> {
  using Accumulator = float;
  static float widen(Bfloat element) { return float_of_bfloat(element.bits); }
  static Bfloat narrow(float sum) { return {bfloat_of_float(sum)}; }
};
template <>
struct Kind<Bool> {
  using Accumulator = Bool;
  static Bool widen(Bool element) { return {static_cast<std::uint8_t>(element.byte != 0)}; }
  static Bool narrow(Bool any) { return any; }
};

// ---- how two are joined. Integers wrap where a signed type would be undefined.

struct Plus {
  template <typename T>
  static T join(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
    } else {
      return a + b;
    }
  }
  static Bool join(Bool a, Bool b) { return {static_cast<std::uint8_t>(a.byte | b.byte)}; }
};

struct Times {
  template <typename T>
  static T join(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
    } else {
      return a * b;
    }
  }
  static Bool join(Bool a, Bool b) { return {static_cast<std::uint8_t>(a.byte & b.byte)}; }
};

template <typename T>
using BitsOf = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;

struct Lesser {
  template <typename T>
  static T join(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      if (a != a) return a;
      if (b != b) return b;
      if (a == b)
        return std::bit_cast<T>(std::bit_cast<BitsOf<T>>(a) | std::bit_cast<BitsOf<T>>(b));
    }
    return b < a ? b : a;
  }
  static Bool join(Bool a, Bool b) { return Times::join(a, b); }
};

struct Greater {
  template <typename T>
  static T join(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      if (a != a) return a;
      if (b != b) return b;
      if (a == b)
        return std::bit_cast<T>(std::bit_cast<BitsOf<T>>(a) & std::bit_cast<BitsOf<T>>(b));
    }
    return a < b ? b : a;
  }
  static Bool join(Bool a, Bool b) { return Plus::join(a, b); }
};

// ---- how a sum is finished

// Towards zero, as C++ does.
template <typename T>
T divided(T number, std::uint32_t divisor) {
  if constexpr (std::is_unsigned_v<T>) {
    return static_cast<T>(number / divisor);
  } else {
    return static_cast<T>(std::int64_t{number} / divisor);
  }
}

// In float64 and towards zero. What is beyond the type becomes the nearest number that it has.
template <typename T>
T divided_and_scaled(T number, Finishing finishing) {
  using Limits = std::numeric_limits<T>;
  constexpr double kBeyond = 2.0 * static_cast<double>((Limits::max() >> 1) + 1);
  const double result = static_cast<double>(number) / finishing.divisor * finishing.scale;
  if (result >= kBeyond) return Limits::max();
  if (result <= static_cast<double>(Limits::min())) return Limits::min();
  return static_cast<T>(result);
}

template <typename T>
T finished(T sum, Finishing finishing) {
  if constexpr (std::is_floating_point_v<T>) {
    return sum / static_cast<T>(finishing.divisor) * static_cast<T>(finishing.scale);
  } else {
    return finishing.scale == 1 ? divided(sum, finishing.divisor)
                                : divided_and_scaled(sum, finishing);
  }
}

// There are 256 bytes: finish each once, then look up.
template <typename T>
void finish_bytes(std::byte* output, const std::byte* accumulator, std::size_t element_count,
                  Finishing finishing) {
  static_assert(sizeof(T) == 1);
  std::byte results[256];
  for (int bits = 0; bits < 256; ++bits) {
    results[bits] = static_cast<std::byte>(finished(static_cast<T>(bits), finishing));
  }
  for (std::size_t i = 0; i < element_count; ++i) {
    output[i] = results[std::to_integer<std::size_t>(accumulator[i])];
  }
}

template <typename T>
void load(std::byte* accumulator, const std::byte* input, std::size_t element_count) {
  if constexpr (std::is_arithmetic_v<T>) {
    if (element_count > 0) std::memcpy(accumulator, input, element_count * sizeof(T));
    return;
  }
  for (std::size_t i = 0; i < element_count; ++i) {
    write(accumulator, i, Kind<T>::widen(read<T>(input, i)));
  }
}

template <typename T, typename Join>
void add(std::byte* accumulator, const std::byte* input, std::size_t element_count) {
  using Accumulator = typename Kind<T>::Accumulator;
  for (std::size_t i = 0; i < element_count; ++i) {
    const Accumulator sum = read<Accumulator>(accumulator, i);
    write(accumulator, i, Join::join(sum, Kind<T>::widen(read<T>(input, i))));
  }
}

template <typename T>
void finish(std::byte* output, const std::byte* accumulator, std::size_t element_count,
            Finishing finishing) {
  using Accumulator = typename Kind<T>::Accumulator;
  constexpr bool kInPlace = std::is_same_v<Accumulator, T>;
  if (kInPlace && (finishing.changes_nothing() || std::is_same_v<T, Bool>)) {
    if (output != accumulator && element_count > 0) {
      std::memcpy(output, accumulator, element_count * sizeof(T));
    }
    return;
  }
  if constexpr (std::is_same_v<T, std::int8_t> || std::is_same_v<T, std::uint8_t>) {
    finish_bytes<T>(output, accumulator, element_count, finishing);
  } else if constexpr (!std::is_same_v<T, Bool>) {
    for (std::size_t i = 0; i < element_count; ++i) {
      write(output, i, Kind<T>::narrow(finished(read<Accumulator>(accumulator, i), finishing)));
    }
  }
}

template <typename T>
constexpr KindKernels kernels_of() {
  return {.sum = {.load_elements = load<T>,
                  .add_elements = add<T, Plus>,
                  .finish_elements = finish<T>,
                  .element_bytes = sizeof(T),
                  .accumulator_element_bytes = sizeof(typename Kind<T>::Accumulator)},
          .min_elements = add<T, Lesser>,
          .max_elements = add<T, Greater>,
          .multiply_elements = add<T, Times>};
}

KernelSet scalar_set() {
  return {.target = "scalar",
          .kinds = {kernels_of<float>(), kernels_of<double>(), kernels_of<Half>(),
                    kernels_of<std::uint8_t>(), kernels_of<std::int32_t>(),
                    kernels_of<std::int8_t>(), kernels_of<std::int64_t>(), kernels_of<Bfloat>(),
                    kernels_of<Bool>(), kernels_of<std::int16_t>(), kernels_of<std::uint16_t>(),
                    kernels_of<std::uint32_t>(), kernels_of<std::uint64_t>()},
          .int8 = scalar_int8(),
          .int4 = scalar_int4()};
}

}  // namespace

const KernelSet& scalar_kernels() {
  static const KernelSet kSet = scalar_set();
  return kSet;
}

}  // namespace byteps
