// What the op (tensorflow.cc) and the custom call of XLA (tf_xla.cc) have in common: a tensor on its way to the core.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bridge/bridge.h"
#include "bridge/exchange.h"
#include "byteps/byteps.h"

namespace byteps::bridge {

struct Tensor {
  const void* input = nullptr;
  void* output = nullptr;
  uint32_t dtype = BYTEPS_FLOAT32;
  uint64_t element_count = 0;
  std::vector<uint64_t> shape;
};

// An element as the core sees it: `count` elements of `dtype`. count 0: the core has no such dtype. `logical`: a
// byteps_logical_type.
struct CoreDtype {
  uint32_t dtype;
  uint32_t count;
  uint32_t logical = BYTEPS_LOGICAL_SAME;
};

// Of a TF_DataType.
CoreDtype core_dtype(int tf_dtype);

// Sets the dtype, and adds a dimension to what needs several of the core's elements: complex numbers in sums and
// averages; in broadcasts dtypes that the core does not know, as bytes. Says why it cannot, or "".
std::string set_elements(Tensor& tensor, CoreDtype known, size_t element_bytes,
                         const Exchange& exchange);

// Starts it; `done` is called once on the bridge's thread unless another code than BYTEPS_OK is returned.
int push_pull(const Tensor& tensor, const std::string& name, const Exchange& exchange,
              Bridge::Done done, void* context, byteps_error* error);

// The interface by which TensorFlow's XLA takes custom calls; null when this TensorFlow has none.
const void* xla_ffi_api();

}  // namespace byteps::bridge
