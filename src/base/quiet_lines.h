// QuietLines: lines about what others do to us. Whoever can cause one can cause thousands, so each kind gets one line a
// minute, which says how many it stands for.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/time.h"

namespace byteps {

template <std::size_t kKinds>
class QuietLines {
 public:
  static constexpr TimeNs kEveryNs = 60 * kSecond;

  // What to write of this line, now; nullopt: nothing, it is only counted.
  std::optional<std::string> pass(std::size_t kind, TimeNs now, const std::string& text) {
    State& state = states_[kind];
    if (now < state.next_ns) {
      ++state.left_out;
      return std::nullopt;
    }
    state.next_ns = now + kEveryNs;
    const std::uint64_t others = std::exchange(state.left_out, 0);
    if (others == 0) return text;
    return text + " (and " + std::to_string(others) + " more like this since the last such line)";
  }

 private:
  struct State {
    TimeNs next_ns = 0;
    std::uint64_t left_out = 0;
  };
  std::array<State, kKinds> states_;
};

}  // namespace byteps
