// One element at a time, written to be read. Memory is touched by memcpy, so that any address will
// do. The SIMD kernels call these for the rest of a frame that fills no vector, and for what is not
// worth vectors.
#include <cstring>
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

template <typename T>
T plus(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using Unsigned = std::make_unsigned_t<T>;  // wraps where the signed type would be undefined
    return static_cast<T>(
        static_cast<Unsigned>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b)));
  } else {
    return a + b;
  }
}
Bool plus(Bool a, Bool b) {
  return {static_cast<std::uint8_t>(a.byte | b.byte)};
}

// Rounded down: C++ rounds towards zero, so a negative number with a rest is one too high.
std::int64_t floor_divided(std::int64_t number, std::int64_t divisor) {
  const std::int64_t quotient = number / divisor;
  return quotient * divisor > number ? quotient - 1 : quotient;
}

template <typename T>
T divided(T sum, std::uint32_t divisor) {
  if constexpr (std::is_floating_point_v<T>) {
    return sum / static_cast<T>(divisor);
  } else {
    return static_cast<T>(floor_divided(sum, divisor));
  }
}

// There are 256 bytes: divide each once, then look up.
template <typename T>
void divide_bytes(std::byte* output, const std::byte* accumulator, std::size_t element_count,
                  std::uint32_t divisor) {
  static_assert(sizeof(T) == 1);
  std::byte quotients[256];
  for (int bits = 0; bits < 256; ++bits) {
    quotients[bits] = static_cast<std::byte>(divided(static_cast<T>(bits), divisor));
  }
  for (std::size_t i = 0; i < element_count; ++i) {
    output[i] = quotients[std::to_integer<std::size_t>(accumulator[i])];
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

template <typename T>
void add(std::byte* accumulator, const std::byte* input, std::size_t element_count) {
  using Accumulator = typename Kind<T>::Accumulator;
  for (std::size_t i = 0; i < element_count; ++i) {
    const Accumulator sum = read<Accumulator>(accumulator, i);
    write(accumulator, i, plus(sum, Kind<T>::widen(read<T>(input, i))));
  }
}

template <typename T>
void finish(std::byte* output, const std::byte* accumulator, std::size_t element_count,
            std::uint32_t divisor) {
  using Accumulator = typename Kind<T>::Accumulator;
  constexpr bool kInPlace = std::is_same_v<Accumulator, T>;
  if (kInPlace && (divisor == 1 || std::is_same_v<T, Bool>)) {
    if (output != accumulator && element_count > 0) {
      std::memcpy(output, accumulator, element_count * sizeof(T));
    }
    return;
  }
  if constexpr (std::is_same_v<T, std::int8_t> || std::is_same_v<T, std::uint8_t>) {
    divide_bytes<T>(output, accumulator, element_count, divisor);
  } else if constexpr (!std::is_same_v<T, Bool>) {
    for (std::size_t i = 0; i < element_count; ++i) {
      write(output, i, Kind<T>::narrow(divided(read<Accumulator>(accumulator, i), divisor)));
    }
  }
}

template <typename T>
constexpr SumKernels kernels_of() {
  return {.load_elements = load<T>,
          .add_elements = add<T>,
          .finish_elements = finish<T>,
          .element_bytes = sizeof(T),
          .accumulator_element_bytes = sizeof(typename Kind<T>::Accumulator)};
}

constexpr KernelSet kScalar = {
    .target = "scalar",
    .kinds = {kernels_of<float>(), kernels_of<double>(), kernels_of<Half>(),
              kernels_of<std::uint8_t>(), kernels_of<std::int32_t>(), kernels_of<std::int8_t>(),
              kernels_of<std::int64_t>(), kernels_of<Bfloat>(), kernels_of<Bool>()}};

}  // namespace

const KernelSet& scalar_kernels() {
  return kScalar;
}

}  // namespace byteps
