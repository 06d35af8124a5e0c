#include "base/shape.h"

#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/limits.h"

namespace byteps {
namespace {

using Dimensions = std::vector<std::uint64_t>;

TEST(Shape, no_dimension_and_one_dimension_are_flat) {
  EXPECT_TRUE(Shape().is_flat());
  EXPECT_EQ(Shape(Dimensions{}), Shape());
  EXPECT_EQ(Shape(Dimensions{7}), Shape());
  EXPECT_EQ(Shape().text(7), "7");
  EXPECT_TRUE(Shape(Dimensions{7}).dimensions().empty());
}

TEST(Shape, keeps_2_to_64_dimensions_and_tells_them_apart) {
  for (const std::size_t count : {2, 3, 4, 5, 64}) {
    Dimensions dimensions(count, 2);
    dimensions.back() = 3;
    const Shape shape(dimensions);
    EXPECT_EQ(Dimensions(shape.dimensions().begin(), shape.dimensions().end()), dimensions);
    EXPECT_EQ(shape, Shape(dimensions));
    Dimensions other = dimensions;
    std::swap(other.front(), other.back());
    EXPECT_NE(shape, Shape(other));
    other = dimensions;
    other.push_back(1);
    if (other.size() <= kDimensionsMax) {
      EXPECT_NE(shape, Shape(other));
    }
  }
  EXPECT_EQ(Shape(Dimensions{2, 0, 3}).text(0), "2x0x3");
}

TEST(Shape, counts_elements_up_to_what_memory_can_have) {
  const std::uint64_t large = std::uint64_t{1} << 62;
  EXPECT_EQ(Shape::element_count({}), 1U);
  EXPECT_EQ(Shape::element_count(Dimensions{2, 3, 5}), 30U);
  EXPECT_EQ(Shape::element_count(Dimensions{large, 0, 1}), 0U);
  EXPECT_EQ(Shape::element_count(Dimensions{large, 1}), large);
  EXPECT_EQ(Shape::element_count(Dimensions{large, 2}), std::nullopt);
  EXPECT_EQ(Shape::element_count(Dimensions{0, large, 2}), std::nullopt);
  EXPECT_EQ(Shape::element_count(Dimensions{~std::uint64_t{0}}), std::nullopt);
}

}  // namespace
}  // namespace byteps
