#include "base/shape.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/limits.h"

namespace byteps {

Shape::Shape(std::span<const std::uint64_t> dimensions) {
  CHECK_LE(dimensions.size(), kDimensionsMax);
  if (dimensions.size() < 2) return;
  count_ = static_cast<std::uint8_t>(dimensions.size());
  if (dimensions.size() <= kFew) {
    std::copy(dimensions.begin(), dimensions.end(), few_.begin());
  } else {
    many_.assign(dimensions.begin(), dimensions.end());
  }
}

std::span<const std::uint64_t> Shape::dimensions() const {
  return count_ > kFew ? std::span(many_) : std::span(few_).first(count_);
}

std::optional<std::uint64_t> Shape::element_count(std::span<const std::uint64_t> dimensions) {
  constexpr std::uint64_t kMax = std::numeric_limits<std::int64_t>::max();
  std::uint64_t product = 1;
  bool has_zero = false;
  for (const std::uint64_t dimension : dimensions) {
    if (dimension == 0) {
      has_zero = true;
    } else if (dimension > kMax / product) {
      return std::nullopt;
    } else {
      product *= dimension;
    }
  }
  return has_zero ? 0 : product;
}

std::string Shape::text(std::uint64_t element_count) const {
  if (is_flat()) return std::to_string(element_count);
  std::string text;
  for (const std::uint64_t dimension : dimensions()) {
    if (!text.empty()) text += 'x';
    text += std::to_string(dimension);
  }
  return text;
}

}  // namespace byteps
