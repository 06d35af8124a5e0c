#include "server/declaration.h"

#include <vector>

#include <gtest/gtest.h>

namespace byteps {
namespace {

TEST(Declaration, a_name_in_a_message_cannot_disturb_the_terminal) {
  EXPECT_EQ(quoted_name("plain"), "\"plain\"");
  EXPECT_EQ(quoted_name("a\x1b[2J\nb"), "\"a?[2J?b\"");
}

TEST(Declaration, a_long_name_is_cut_between_characters) {
  std::string name(255, 'a');
  name += "\xc3\xa4 and more";  // a two-byte letter at the place of the cut
  EXPECT_EQ(quoted_name(name), "\"" + std::string(255, 'a') + "...\"");
}

TEST(Declaration, two_names_with_one_key_are_told_to_rename) {
  wire::Declare a;
  a.name = "a";
  wire::Declare b;
  b.name = "b";
  EXPECT_NE(a, b);
  EXPECT_EQ(difference_text(WorkerRank(0), a, WorkerRank(1), b),
            "the names of tensor \"a\" (worker 0) and tensor \"b\" (worker 1) have the same key. "
            "Rename one of them on all ranks");
}

TEST(Declaration, another_shape_of_the_same_size_is_another_tensor) {
  wire::Declare a{{DType::kFloat32, Operation::kSum, 24}, "w"};
  const auto shaped = [&](std::vector<std::uint64_t> dimensions) {
    wire::Declare declared = a;
    declared.shape = Shape(dimensions);
    return declared;
  };
  EXPECT_EQ(a, shaped({6}));
  EXPECT_EQ(shaped({2, 3}), shaped({2, 3}));
  EXPECT_NE(a, shaped({6, 1}));
  EXPECT_NE(shaped({2, 3}), shaped({3, 2}));
  EXPECT_EQ(described(a), "(float32, shape 6, 24 bytes, sum)");
  EXPECT_EQ(
      difference_text(WorkerRank(0), shaped({2, 3}), WorkerRank(1), shaped({3, 2})),
      "tensor \"w\" differs between ranks: worker 0 (float32, shape 2x3, 24 bytes, sum), but "
      "worker 1 (float32, shape 3x2, 24 bytes, sum). Give it the same shape, element type and "
      "operation on all ranks, or different names");
}

TEST(Declaration, what_travels_alike_is_told_apart_by_its_logical_type) {
  const auto of = [](int logical) {
    wire::Declare declared{{DType::kUint8, Operation::kBroadcast, 6}, "w"};
    declared.logical = static_cast<LogicalType>(logical);
    return declared;
  };
  EXPECT_NE(of(0), of(4));
  EXPECT_NE(of(4), of(5));
  EXPECT_EQ(of(5), of(5));
  EXPECT_EQ(described(of(4)),
            "(float8_e4m3fn as uint8, shape 6, 6 bytes, broadcast from worker 0)");
  EXPECT_EQ(described(of(200)), "(dtype 200 as uint8, shape 6, 6 bytes, broadcast from worker 0)");
}

TEST(Declaration, a_difference_that_compression_may_have_made_names_its_variables) {
  wire::Declare plain{{DType::kFloat32, Operation::kAverage, 24}, "w"};
  wire::Declare coded = plain;
  coded.format = Format::kInt8;
  wire::Declare cast = plain;
  cast.dtype = DType::kFloat16;
  cast.total_bytes = 12;
  wire::Declare whole = plain;
  whole.dtype = DType::kInt32;
  const auto told = [&](const wire::Declare& other) {
    return difference_text(WorkerRank(0), plain, WorkerRank(1), other);
  };
  const std::string variables = "set BYTEPS_COMPRESSION and BYTEPS_MIN_COMPRESS_BYTES alike";
  EXPECT_EQ(
      told(coded),
      "tensor \"w\" differs between ranks: worker 0 (float32, shape 6, 24 bytes, average), but "
      "worker 1 (float32, shape 6, 24 bytes, average, coded as int8). Ask for the same "
      "compression on all ranks, and " +
          variables);
  EXPECT_TRUE(told(cast).ends_with("ask for the same on all ranks, and " + variables));
  EXPECT_EQ(told(whole).find("COMPRESS"), std::string::npos);
}

TEST(Declaration, scale_members_and_who_gets_it_belong_to_the_tensor) {
  const wire::Declare plain{{DType::kFloat32, Operation::kSum, 24, WorkerRank(2)}, "w"};
  wire::Declare scaled = plain;
  scaled.scale = 0.1;
  wire::Declare some = plain;
  some.members = Members(std::vector<std::uint32_t>{0, 1, 2, 5});
  wire::Declare reduced = plain;
  reduced.root_only = true;
  EXPECT_NE(plain, scaled);
  EXPECT_NE(plain, some);
  EXPECT_NE(plain, reduced);
  wire::Declare other_root = reduced;
  other_root.root = WorkerRank(1);
  EXPECT_NE(reduced, other_root);
  EXPECT_EQ(described(scaled), "(float32, shape 6, 24 bytes, sum times 0.1)");
  EXPECT_EQ(described(some), "(float32, shape 6, 24 bytes, sum, of workers 0-2 and 5)");
  EXPECT_EQ(described(reduced), "(float32, shape 6, 24 bytes, sum for worker 2 alone)");
  EXPECT_EQ(difference_text(WorkerRank(0), some, WorkerRank(3), plain),
            "tensor \"w\" differs between ranks: worker 0 (float32, shape 6, 24 bytes, sum, of "
            "workers 0-2 and 5), but worker 3 (float32, shape 6, 24 bytes, sum). Give the tensors "
            "of different process sets different names, on all ranks");
}

}  // namespace
}  // namespace byteps
