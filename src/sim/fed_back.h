// FedBack: the residuals of one worker's coded tensors, and what they should be: what the codes leave of each round
// when each piece of it is coded once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "base/placement.h"
#include "sim/values.h"

namespace byteps::sim {

class FedBack {
 public:
  void clear() { residuals_.clear(); }
  // The memory of this tensor's, for a round of it.
  float* residual_of(std::uint32_t tensor, const TensorFacts& facts) {
    Residual& residual = residuals_[tensor];
    residual.given.resize(facts.element_count);
    residual.expected.resize(facts.element_count);
    return residual.given.data();
  }
  // A round has ended, cut so; whether the memory is what it should be.
  bool is_right_after(std::uint32_t tensor, const TensorFacts& facts, const Placement& placement,
                      std::span<const std::byte> contribution) {
    Residual& residual = residuals_[tensor];
    leave_residual(facts, placement, contribution, residual.expected);
    return residual.given == residual.expected;
  }

 private:
  struct Residual {
    std::vector<float> given;
    std::vector<float> expected;
  };
  std::map<std::uint32_t, Residual> residuals_;  // by tensor
};

}  // namespace byteps::sim
