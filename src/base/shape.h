// Shape: the dimensions of a tensor. All that has one dimension, or none, counts as flat: the number of its elements
// says everything, and the shape is empty. So who gives no shape and who gives one dimension mean the same.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace byteps {

class Shape {
 public:
  Shape() = default;  // flat
  // At most kDimensionsMax dimensions, outermost first.
  explicit Shape(std::span<const std::uint64_t> dimensions);

  bool is_flat() const { return count_ == 0; }
  // Empty when flat; otherwise 2 or more.
  std::span<const std::uint64_t> dimensions() const;
  // The product. nullopt: the dimensions other than 0 have one of 2^63 or more, which no memory holds. That also bounds
  // the length of the text. 1 when flat, for there is nothing to multiply.
  static std::optional<std::uint64_t> element_count(std::span<const std::uint64_t> dimensions);
  // "2x3"; of a flat tensor its number of elements.
  std::string text(std::uint64_t element_count) const;

  bool operator==(const Shape&) const = default;

 private:
  static constexpr std::size_t kFew = 4;  // so many need no memory of their own

  std::uint8_t count_ = 0;
  std::array<std::uint64_t, kFew> few_{};  // zero when not used
  std::vector<std::uint64_t> many_;        // all of them when there are more than kFew
};

}  // namespace byteps
