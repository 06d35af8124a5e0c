#include "worker/tensor_table.h"

#include <array>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "net/wire.h"

namespace byteps {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
const Placement kSmall(256, 64, {1, 1, 1});

Spec floats(std::uint64_t bytes) {
  return {.dtype = DType::kFloat32, .operation = Operation::kSum, .total_bytes = bytes};
}

TEST(TensorTable, a_name_keeps_its_declaration_and_the_error_has_both) {
  TensorTable table(kSmall);
  const TensorIndex index = table.find_or_add("w", floats(400)).value();
  EXPECT_EQ(table.find_or_add("w", floats(400)).value(), index);
  const Status size = table.find_or_add("w", floats(404)).status();
  EXPECT_TRUE(size.is(Code::kInvalidArgument));
  EXPECT_THAT(size.message(), HasSubstr("'w'"));
  EXPECT_THAT(size.message(), HasSubstr("shape 100"));
  EXPECT_THAT(size.message(), HasSubstr("shape 101"));

  Spec other = floats(400);
  const std::array<std::uint64_t, 2> square = {10, 10};
  other.shape = Shape(square);
  EXPECT_THAT(
      table.find_or_add("w", other).status().message(),
      HasSubstr("was float32, shape 100, 400 bytes, sum before and is float32, shape 10x10"));
  other = floats(400);
  other.dtype = DType::kInt32;
  EXPECT_TRUE(table.find_or_add("w", other).status().is(Code::kInvalidArgument));
  other = floats(400);
  other.operation = Operation::kAverage;
  EXPECT_TRUE(table.find_or_add("w", other).status().is(Code::kInvalidArgument));
  other.operation = Operation::kBroadcast;
  ASSERT_TRUE(table.find_or_add("b", other).is_ok());
  other.root = WorkerRank(1);
  EXPECT_THAT(table.find_or_add("b", other).status().message(), HasSubstr("from worker 1"));
}

TEST(TensorTable, a_name_that_was_given_up_is_refused_as_long_as_it_is_remembered) {
  TensorTable table(kSmall);
  table.give_up(table.find_or_add("w", floats(400)).value());
  EXPECT_EQ(table.size(), 0u);
  EXPECT_EQ(table.find(key_of("w")), kNoTensor);
  EXPECT_THAT(table.find_or_add("w", floats(400)).status().message(), HasSubstr("used once"));
  for (std::size_t i = 0; i < TensorTable::kGivenUpMax; ++i) {
    table.give_up(table.find_or_add("other " + std::to_string(i), floats(8)).value());
  }
  EXPECT_TRUE(table.find_or_add("w", floats(8)).is_ok()) << "so long ago that all ranks have it";
  EXPECT_FALSE(table.find_or_add("other 0", floats(8)).is_ok());
  EXPECT_EQ(table.slot_count(), 1u) << "memory is used again";
}

TEST(TensorTable, parts_and_frames_cover_the_tensor_exactly) {
  TensorTable table(kSmall);
  for (const std::uint64_t total : {1u, 63u, 64u, 65u, 255u, 256u, 257u, 1000u, 1024u}) {
    const Spec spec{.dtype = DType::kUint8, .operation = Operation::kSum, .total_bytes = total};
    const Tensor& tensor = table[table.find_or_add(std::to_string(total), spec).value()];
    std::uint64_t covered = 0;
    for (std::uint32_t part = 0; part < tensor.parts.size(); ++part) {
      EXPECT_EQ(tensor.parts[part].offset, covered);
      ASSERT_GT(tensor.parts[part].frame_count, 0u);
      ASSERT_LE(tensor.parts[part].frame_count, tensor.frames_per_part);
      for (std::uint32_t frame = 0; frame < tensor.parts[part].frame_count; ++frame) {
        ASSERT_GT(table.frame_bytes(tensor.parts[part], frame), 0u);
        ASSERT_LE(table.frame_bytes(tensor.parts[part], frame), kSmall.frame_bytes());
        covered += table.frame_bytes(tensor.parts[part], frame);
      }
    }
    EXPECT_EQ(covered, total);
  }
}

TEST(TensorTable, an_empty_tensor_has_one_part_with_one_empty_frame) {
  TensorTable table(kSmall);
  const Tensor& tensor = table[table.find_or_add("empty", floats(0)).value()];
  ASSERT_EQ(tensor.parts.size(), 1u);
  EXPECT_EQ(tensor.parts[0].frame_count, 1u);
  EXPECT_EQ(table.frame_bytes(tensor.parts[0], 0), 0u);
}

TEST(TensorTable, sizes_beyond_4_gib_are_cut_without_losing_a_bit) {
  TensorTable table(Placement(4'096'000, 32 << 10, {1, 1, 1, 1, 1}));
  const std::uint64_t total = 5 * kGiB + 12;
  const Tensor& tensor = table[table.find_or_add("huge", floats(total)).value()];
  const std::uint32_t last = static_cast<std::uint32_t>(tensor.parts.size() - 1);
  EXPECT_GE(tensor.parts.size(), (total + 4'095'999) / 4'096'000);
  EXPECT_GT(tensor.parts[last].offset, 4 * kGiB);
  EXPECT_EQ(tensor.parts[last].offset + tensor.parts[last].bytes, total);
  std::uint64_t covered = 0;
  for (std::uint32_t part = 0; part <= last; ++part) covered += tensor.parts[part].bytes;
  EXPECT_EQ(covered, total);
}

TEST(TensorTable, a_part_beyond_4_gib_has_frames_beyond_4_gib) {
  TensorTable table(Placement(8 * kGiB, 4 << 20, {1}));
  const Tensor& tensor = table[table.find_or_add("huge", floats(6 * kGiB + 4)).value()];
  ASSERT_EQ(tensor.parts.size(), 1u);
  const std::uint32_t count = tensor.parts[0].frame_count;
  EXPECT_EQ(count, 6 * 256 + 1);
  EXPECT_EQ(table.frame_bytes(tensor.parts[0], count - 1), 4u);
  EXPECT_EQ(table.frame_bytes(tensor.parts[0], count - 2), 4u << 20);
}

TEST(TensorTable, a_tensor_of_too_many_parts_is_refused_with_the_remedy) {
  TensorTable table(Placement(64, 64, {1}));
  const Status status = table.find_or_add("huge", floats(8 * kGiB)).status();
  EXPECT_TRUE(status.is(Code::kInvalidArgument));
  EXPECT_THAT(status.message(), HasSubstr("BYTEPS_PARTITION_BYTES"));
}

TEST(TensorTable, the_declaration_is_what_the_wire_says) {
  TensorTable table(kSmall);
  Spec spec = floats(400);
  spec.operation = Operation::kBroadcast;
  spec.root = WorkerRank(2);
  spec.shape = Shape(std::array<std::uint64_t, 2>{4, 25});
  const Tensor& tensor = table[table.find_or_add("w", spec).value()];
  const wire::Declare declared = wire::decode_declare(tensor.declaration).value();
  EXPECT_EQ(declared.name, "w");
  EXPECT_EQ(declared.dtype, DType::kFloat32);
  EXPECT_EQ(declared.operation, Operation::kBroadcast);
  EXPECT_EQ(declared.total_bytes, 400u);
  EXPECT_EQ(declared.root, WorkerRank(2));
  EXPECT_EQ(declared.shape, spec.shape);
}

}  // namespace
}  // namespace byteps
