#include "bridge/tf_shim.h"

#include <map>
#include <mutex>

namespace byteps::bridge {
namespace {

// How often each name of an exchange that is_once() has been used: the same on all ranks, which run the same ops.
// Graphs are built again and again under the same names, so the counts belong to the process, not to a kernel.
class Numbers {
 public:
  std::string next(const std::string& name) {
    const std::lock_guard lock(mutex_);
    const auto [count, is_new] = counts_.try_emplace(name, first_);
    return name + "." + std::to_string(count->second++);
  }

  void restart(uint64_t first) {
    const std::lock_guard lock(mutex_);
    counts_.clear();
    first_ = first;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, uint64_t> counts_;
  uint64_t first_ = 0;
};

Numbers& numbers() {
  static Numbers* const kNumbers =
      new Numbers;  // never destroyed: threads may still be there at the exit
  return *kNumbers;
}

}  // namespace

std::string set_elements(Tensor& tensor, CoreDtype known, size_t element_bytes,
                         const Exchange& exchange) {
  const bool is_moved = exchange.operation() == BYTEPS_BROADCAST;
  if (is_moved && known.count != 1) {
    if (element_bytes == 0) return "elements of no fixed size cannot be broadcast";
    known = {BYTEPS_UINT8, static_cast<uint32_t>(element_bytes), known.logical};
  }
  if (known.count == 0) return "this dtype cannot be summed";
  const bool is_linear =
      exchange.operation() == BYTEPS_SUM || exchange.operation() == BYTEPS_AVERAGE;
  if (known.count == 2 && !is_moved && !is_linear) return "complex numbers have no order";
  tensor.dtype = known.dtype | known.logical << 8;
  if (known.count > 1) {
    tensor.shape.push_back(known.count);
    tensor.element_count *= known.count;
  }
  return "";
}

int push_pull(const Tensor& tensor, const std::string& name, const Exchange& exchange,
              Bridge::Done done, void* context, byteps_error* error) {
  const std::string full_name = exchange.is_once() ? numbers().next(name) : name;
  byteps_tensor call = exchange.tensor();
  call.dtype = tensor.dtype;
  call.name = full_name.c_str();
  call.input = tensor.input;
  call.output = tensor.output;
  call.element_count = tensor.element_count;
  call.shape = tensor.shape.data();
  call.dimension_count = static_cast<uint32_t>(tensor.shape.size());
  return bridge().submit(call, done, context, error);
}

}  // namespace byteps::bridge

// Names that are numbered by run begin with `first`: a new job, or all ranks have had no more inputs.
extern "C" BYTEPS_API void byteps_tensorflow_restart_numbers(uint64_t first) {
  byteps::bridge::numbers().restart(first);
}
