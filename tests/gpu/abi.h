// Compares declarations of the fake with those of NVIDIA's headers, for the abi tests of this folder.
#pragma once

#include <type_traits>

namespace fake_gpu::abi {

// What a type of theirs is here: specialised by a test for each type.
template <typename Theirs>
struct Ours {
  using type = Theirs;
};
template <typename Theirs>
struct Ours<Theirs*> {
  using type = typename Ours<Theirs>::type*;
};
template <typename Result, typename... Arguments>
struct Ours<Result (*)(Arguments...)> {
  using type = typename Ours<Result>::type (*)(typename Ours<Arguments>::type...);
};

template <typename Left, typename Right>
constexpr bool same(Left left, Right right) {
  return static_cast<long>(left) == static_cast<long>(right);
}

#define OURS_IS(theirs, ours)                      \
  template <>                                      \
  struct fake_gpu::abi::Ours<theirs> {             \
    using type = ours;                             \
    static_assert(sizeof(type) == sizeof(theirs)); \
  }
#define SAME_FUNCTION(name) \
  static_assert(            \
      std::is_same_v<decltype(&declared::name), fake_gpu::abi::Ours<decltype(&::name)>::type>)

}  // namespace fake_gpu::abi
