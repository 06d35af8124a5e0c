// FedBack: the residuals and the momentum of one worker's coded tensors, and what they should be: what the codes leave
// of each round when each piece of it is coded once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "sim/values.h"

namespace byteps::sim {

class FedBack {
 public:
  void clear() {
    residuals_.clear();
    momenta_.clear();
  }
  // The memory of this tensor's, for a round of it.
  float* residual_of(std::uint32_t tensor, const TensorFacts& facts) {
    return residuals_[tensor].of(facts);
  }
  float* momentum_of(std::uint32_t tensor, const TensorFacts& facts) {
    return momenta_[tensor].of(facts);
  }
  // A round has ended, coded there; whether the memory is what it should be.
  bool is_right_after(std::uint32_t tensor, const TensorFacts& facts, const CodedWhere& where,
                      std::span<const std::byte> contribution) {
    Memory& residual = residuals_[tensor];
    Memory& momentum = momenta_[tensor];
    leave_residual(facts, where, contribution, residual.expected, momentum.expected);
    return residual.given == residual.expected && momentum.given == momentum.expected;
  }

 private:
  struct Memory {
    std::vector<float> given;
    std::vector<float> expected;
    float* of(const TensorFacts& facts) {
      given.resize(facts.element_count);
      expected.resize(facts.element_count);
      return given.data();
    }
  };
  std::map<std::uint32_t, Memory> residuals_;  // by tensor
  std::map<std::uint32_t, Memory> momenta_;
};

}  // namespace byteps::sim
