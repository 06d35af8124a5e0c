#include "bridge/residuals.h"

namespace byteps::bridge {

Residuals::Kept Residuals::of(std::string_view name, uint64_t element_count) {
  const std::lock_guard lock(mutex_);
  Kept& kept = kept_[std::string(name)];
  if (kept == nullptr || kept->size() != element_count) {
    kept = std::make_shared<std::vector<float>>(element_count);
  }
  return kept;
}

Residuals::Kept Residuals::find(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  const auto found = kept_.find(std::string(name));
  return found == kept_.end() ? nullptr : found->second;
}

void Residuals::drop(std::string_view name) {
  const std::lock_guard lock(mutex_);
  kept_.erase(std::string(name));
}

}  // namespace byteps::bridge
