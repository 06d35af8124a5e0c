// Residuals: where error feedback keeps what the codes of one round leave for the next (byteps_tensor.residual), of
// tensors that a bridge submits. A compiled program runs when it likes, perhaps in another process than the one that
// has compiled it, so it knows no address: it says that there is a residual, and whose that is follows from the
// tensor's name. Python says when one is not needed any more, and takes and gives what checkpoints have.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace byteps::bridge {

class Residuals {
 public:
  // Of so many elements. Whoever uses one shares it: it may be dropped meanwhile.
  using Kept = std::shared_ptr<std::vector<float>>;

  // Any thread. That of this tensor: zeros at first, and when it has another number of elements.
  Kept of(std::string_view name, uint64_t element_count);
  // nullptr: there is none.
  Kept find(std::string_view name) const;
  void drop(std::string_view name);

 private:
  mutable std::mutex mutex_;  // guards kept_, not what is in the vectors
  std::unordered_map<std::string, Kept> kept_;
};

}  // namespace byteps::bridge
