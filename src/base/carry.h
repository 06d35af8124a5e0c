// Carry: what a rank's codes carry from one round of a tensor to the next. It is the caller's memory, float32, zeros at
// first; each may be empty: then there is none.
#pragma once

#include <cstddef>
#include <span>

namespace byteps {

struct Carry {
  std::span<std::byte> residual{};  // what the codes left of the elements: error feedback
  std::span<std::byte> momentum{};  // Nesterov's
  float ratio = 1;                  // the residual times this is added

  bool empty() const { return residual.empty() && momentum.empty(); }
  // Of these of its elements.
  Carry of(std::size_t offset_bytes, std::size_t bytes) const {
    const auto piece = [&](std::span<std::byte> all) {
      return all.empty() ? all : all.subspan(offset_bytes, bytes);
    };
    return {piece(residual), piece(momentum), ratio};
  }
};

}  // namespace byteps
