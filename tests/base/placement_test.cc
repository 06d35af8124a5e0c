#include "base/placement.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/prng.h"

namespace byteps {
namespace {

using Weights = std::vector<std::uint32_t>;

std::vector<Placement::Part> parts_of(const Placement& placement, Key key, std::uint64_t bytes) {
  std::vector<Placement::Part> parts;
  for (std::uint64_t i = 0; i < placement.part_count(bytes); ++i) {
    parts.push_back(placement.part(key, bytes, i));
  }
  return parts;
}

std::vector<std::uint64_t> bytes_by_shard(const Placement& placement, Key key,
                                          std::uint64_t bytes) {
  std::vector<std::uint64_t> load(placement.shard_count(), 0);
  for (const Placement::Part& part : parts_of(placement, key, bytes)) {
    load[part.shard.value] += part.bytes;
  }
  return load;
}

TEST(Placement, parts_cover_the_tensor_in_order_whatever_the_sizes_and_weights) {
  Prng prng(7);
  for (int round = 0; round < 2000; ++round) {
    Weights weights(1 + prng.below(9));
    for (std::uint32_t& weight : weights) {
      weight = 1 + static_cast<std::uint32_t>(prng.below(prng.chance(0.1) ? 65536 : 9));
    }
    const std::uint64_t partition = 64 * (1 + prng.below(64));
    const Placement placement(partition, 64 * (1 + prng.below(8)), weights);
    const std::uint64_t bytes = prng.below(prng.chance(0.5) ? 600 : 100'000);
    const Key key(prng.below(UINT64_MAX));
    std::uint64_t end = 0;
    std::uint32_t shard = placement.first_shard(key).value;
    for (const Placement::Part& part : parts_of(placement, key, bytes)) {
      ASSERT_EQ(part.offset, end);
      ASSERT_EQ(part.bytes > 0 ? part.offset % 64 : 0, 0u) << "no element is divided";
      ASSERT_LE(part.bytes, partition);
      ASSERT_EQ(part.shard, ShardIndex(shard)) << "successive parts are on successive shards";
      shard = (shard + 1) % placement.shard_count();
      end += part.bytes;
    }
    ASSERT_EQ(end, bytes);
  }
}

TEST(Placement, a_large_tensor_is_spread_exactly_by_the_weights) {
  constexpr std::uint64_t kBytes = 64 << 20;
  const Weights weights = {6, 3, 3, 3,
                           3};  // the paper's split for four workers and one more machine
  const Placement placement(4'096'000, 32 << 10, weights);
  for (const char* name : {"a", "b", "c", "d"}) {
    const std::vector<std::uint64_t> load = bytes_by_shard(placement, key_of(name), kBytes);
    for (std::size_t shard = 0; shard < weights.size(); ++shard) {
      EXPECT_NEAR(static_cast<double>(load[shard]), weights[shard] / 18.0 * kBytes, 0.001 * kBytes);
    }
  }
}

TEST(Placement, equal_shards_get_equal_bytes_also_when_parts_do_not_divide_the_tensor) {
  const Placement placement(4'096'000, 32 << 10, Weights(4, 1));
  for (const std::uint64_t load : bytes_by_shard(placement, key_of("w"), 64 << 20)) {
    EXPECT_NEAR(static_cast<double>(load), 16 << 20, 64);
  }
}

TEST(Placement, what_is_at_most_a_frame_per_shard_is_cut_into_single_frames) {
  const Placement placement(4'096'000, 8 << 10, Weights(4, 1));
  EXPECT_EQ(placement.part_count(4096), 1u) << "a small tensor goes whole to one shard";
  EXPECT_EQ(placement.part_count(8 << 10), 1u);
  const auto parts = parts_of(placement, key_of("w"), (24 << 10) + 4);
  ASSERT_EQ(parts.size(), 4u);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(parts[i].bytes, 8u << 10);
  EXPECT_EQ(parts[3].bytes, 4u);
  for (const std::uint64_t load : bytes_by_shard(placement, key_of("w"), 1 << 20)) {
    EXPECT_EQ(load, 256u << 10);
  }
}

TEST(Placement, a_usual_frame_with_its_head_fits_a_packet_of_64_kib_and_shrinks_with_many_shards) {
  const auto equal = [](std::uint32_t count) { return std::vector<std::uint32_t>(count, 1); };
  constexpr std::uint64_t kHeads = 512;  // of the frame, TCP and IP
  std::uint64_t last = 65536 - kHeads;
  for (std::uint32_t shard_count = 1; shard_count <= 1024; ++shard_count) {
    const std::uint64_t bytes = Placement::usual_frame_bytes(equal(shard_count));
    EXPECT_LE(bytes, last) << shard_count;
    EXPECT_EQ(bytes % 64, 0U) << shard_count;
    EXPECT_GE(bytes, 8U << 10) << shard_count;
    last = bytes;
  }
  EXPECT_EQ(Placement::usual_frame_bytes(equal(12)), 60U << 10);
  EXPECT_LE(2 * 24 * Placement::usual_frame_bytes(equal(24)), 3U << 19) << "two to each";
  EXPECT_EQ(Placement::usual_frame_bytes({1, 1, 1, 1, 6, 6, 6}),
            Placement::usual_frame_bytes(equal(22)));
}

TEST(Placement, a_usual_frame_takes_a_slow_line_1250_us_at_most_and_has_15_kib_at_least) {
  const std::vector<std::uint32_t> four(4, 1);
  EXPECT_EQ(Placement::usual_frame_bytes(four, 0), 60U << 10) << "not known";
  EXPECT_EQ(Placement::usual_frame_bytes(four, 1000), 60U << 10);
  EXPECT_EQ(Placement::usual_frame_bytes(four, 400), 60U << 10);
  EXPECT_EQ(Placement::usual_frame_bytes(four, 390), 30U << 10);
  EXPECT_EQ(Placement::usual_frame_bytes(four, 200), 30U << 10);
  EXPECT_EQ(Placement::usual_frame_bytes(four, 100), 15U << 10);
  EXPECT_EQ(Placement::usual_frame_bytes(four, 1), 15U << 10);
  EXPECT_EQ(Placement::usual_frame_bytes(std::vector<std::uint32_t>(99, 1), 1), 15U << 10);
}

TEST(Placement, a_tensor_of_few_frames_has_shorter_ones) {
  const Placement placement(4'096'000, 60 << 10, {1, 1, 1, 1});
  const auto frame_bytes = [&](std::uint64_t bytes) {
    return placement.part(key_of("w"), bytes, 0).frame_bytes;
  };
  EXPECT_EQ(frame_bytes(64), 15U << 10);
  EXPECT_EQ(frame_bytes(24 * (40 << 10)), 40U << 10) << "six for each shard";
  EXPECT_EQ(frame_bytes((1 << 20) + 1) % 64, 0U);
  EXPECT_EQ(frame_bytes(64 << 20), 60U << 10);
  EXPECT_EQ(Placement(4'096'000, 6400, {1, 1}).part(key_of("w"), 1 << 20, 0).frame_bytes, 6400U)
      << "who wants short frames has them";
  EXPECT_EQ(placement.part_count(60 << 10), 4U) << "single frames, one a shard";
  EXPECT_EQ(placement.part_count(15 << 10), 1U);
}

TEST(Placement, frames_of_coded_elements_are_whole_blocks_whose_payload_is_a_frame) {
  const Placement placement(4'096'000, 60 << 10, {1, 1, 1, 1});
  const auto frame_bytes = [&](Format format, std::uint64_t bytes) {
    return placement.part(key_of("w"), {bytes, format}, 0).frame_bytes;
  };
  EXPECT_EQ(frame_bytes(Format::kBfloat16, 64 << 20), 120U << 10);
  EXPECT_EQ(frame_bytes(Format::kInt8, 64 << 20), 236U << 10) << "61,360 bytes of payload";
  EXPECT_EQ(frame_bytes(Format::kInt4, 64 << 20), 240U << 10) << "that many elements fit a cache";
  EXPECT_EQ(frame_bytes(Format::kInt8, 64), 59U << 10) << "15 KiB of payload";
  EXPECT_EQ(placement.part_count({60 << 10, Format::kInt8}), 2U);
  EXPECT_EQ(placement.part_count({48 << 10, Format::kInt4}), 1U);
  const Placement long_frames(64 << 20, 4 << 20, {1});
  EXPECT_EQ(long_frames.part(key_of("w"), {1ULL << 30, Format::kInt8}, 0).frame_bytes, 4U << 20)
      << "relays get them as they are";
  const Placement tiny(4096, 64, {1});
  EXPECT_EQ(tiny.part(key_of("w"), {4096, Format::kInt8}, 0).frame_bytes, 1024U) << "one block";
}

TEST(Placement, coded_tensors_are_cut_into_frames_of_whole_blocks_whatever_the_sizes) {
  Prng prng(8);
  for (int round = 0; round < 2000; ++round) {
    const Weights weights(1 + prng.below(5), 1);
    const std::uint64_t frame = 64 * (1 + prng.below(64));
    const Placement placement(frame * (1 + prng.below(8)), frame, weights);
    const Extent extent(4 * prng.below(100'000), static_cast<Format>(1 + prng.below(4)));
    const std::uint64_t block = block_elements(extent.format);
    std::uint64_t end = 0;
    for (std::uint64_t i = 0; i < placement.part_count(extent); ++i) {
      const Placement::Part part = placement.part(Key(round), extent, i);
      ASSERT_EQ(part.offset, end);
      ASSERT_EQ(part.frame_bytes % (4 * block), 0U);
      const std::uint64_t payload = payload_bytes(extent.format, part.frame_bytes / 4);
      ASSERT_LE(payload, std::max(frame, payload_bytes(extent.format, block)));
      end += part.bytes;
    }
    ASSERT_EQ(end, extent.bytes);
  }
}

TEST(Placement, a_part_that_is_coded_together_is_one_frame_of_4_mib_at_most) {
  const Placement placement(std::uint64_t{1} << 31, 61440, {1, 1, 1});
  constexpr std::uint64_t kMost = kPartElementsMax * 4;
  const Extent whole(kMost, Format::kOnebit);
  EXPECT_EQ(placement.part_count(whole), 1U) << "however many shards there are";
  EXPECT_EQ(Placement::frame_count(placement.part(Key(9), whole, 0)), 1U);
  const Extent larger(kMost * 3 + 4, Format::kTopk);
  ASSERT_EQ(placement.part_count(larger), 4U);
  EXPECT_EQ(placement.part(Key(9), larger, 3).bytes, 4U);
  EXPECT_EQ(placement.part_count({larger.bytes, Format::kInt8}), 3U) << "as ever";
  const Placement small(4'096'000, 61440, {1, 1});
  EXPECT_EQ(small.part(Key(9), {larger.bytes, Format::kRandomk}, 0).bytes, 4'096'000U);
  Prng prng(8);
  for (int round = 0; round < 2000; ++round) {
    Weights weights(1 + prng.below(5));
    for (std::uint32_t& each : weights) each = static_cast<std::uint32_t>(1 + prng.below(9));
    const std::uint64_t frame = 64 * (1 + prng.below(64));
    const Placement drawn(frame * (1 + prng.below(8)), frame, weights);
    const Extent extent(4 * prng.below(100'000), static_cast<Format>(5 + prng.below(4)));
    std::uint64_t end = 0;
    for (std::uint64_t i = 0; i < drawn.part_count(extent); ++i) {
      const Placement::Part part = drawn.part(Key(round), extent, i);
      ASSERT_EQ(part.offset, end);
      ASSERT_EQ(Placement::frame_count(part), 1U);
      ASSERT_LE(part.bytes, drawn.partition_bytes());
      end += part.bytes;
    }
    ASSERT_EQ(end, extent.bytes);
  }
}

TEST(Placement, an_empty_tensor_has_one_empty_part_with_one_empty_frame) {
  const Placement placement(4'096'000, 32 << 10, {3, 1});
  ASSERT_EQ(placement.part_count(0), 1u);
  EXPECT_EQ(placement.part(key_of("w"), 0, 0).bytes, 0u);
  EXPECT_EQ(Placement::frame_count(placement.part(key_of("w"), 0, 0)), 1u);
}

TEST(Placement, sizes_beyond_4_gib_lose_no_bit) {
  constexpr std::uint64_t kBytes = (std::uint64_t{5} << 30) + 12;
  const Placement placement(4'096'000, 32 << 10, {5, 65536, 77});
  const auto parts = parts_of(placement, key_of("huge"), kBytes);
  EXPECT_EQ(parts.back().offset + parts.back().bytes, kBytes);
  EXPECT_EQ(Placement(64, 64, {1}).part_count(UINT64_MAX), std::uint64_t{1} << 58);
}

TEST(Placement, part_0_is_where_the_key_says_whatever_the_size) {
  const Placement placement(4096, 64, {1, 7, 3});
  for (const std::uint64_t bytes : {0, 4, 100, 5000, 1 << 20}) {
    EXPECT_EQ(placement.part(key_of("w"), bytes, 0).shard, placement.first_shard(key_of("w")));
  }
}

TEST(Placement, small_tensors_are_spread_by_the_weights_within_ten_percent) {
  const Weights weights = {4, 1, 2, 1};
  const Placement placement(4'096'000, 32 << 10, weights);
  constexpr int kTensors = 40'000;
  std::vector<int> load(weights.size(), 0);
  for (int tensor = 0; tensor < kTensors; ++tensor) {
    ++load[placement.first_shard(key_of("layer." + std::to_string(tensor) + ".weight")).value];
  }
  for (std::size_t shard = 0; shard < weights.size(); ++shard) {
    const int share = kTensors * static_cast<int>(weights[shard]) / 8;
    EXPECT_NEAR(load[shard], share, share / 10);
  }
}

TEST(Placement, is_part_of_the_protocol_and_does_not_change) {
  const Placement equal(64, 64, Weights(7, 3));
  EXPECT_EQ(equal.first_shard(key_of("byteps")).value, stable_mix(key_of("byteps").value) % 7);
  EXPECT_EQ(key_of("byteps").value, stable_hash("byteps"));
  const Placement weighted(4096, 64, {6, 3, 3});
  const Placement::Part part = weighted.part(Key(5), 10'000, 4);
  EXPECT_EQ(stable_mix(5) % 4, 0u) << "so it begins with the heaviest";
  EXPECT_EQ(part.offset, 9152u);
  EXPECT_EQ(part.bytes, 448u);
  const Placement::Part of_few =
      Placement(4'096'000, 60 << 10, Weights(4, 1)).part(Key(5), 1 << 20, 2);
  EXPECT_EQ(of_few.frame_bytes, 43'712u) << "six frames for each shard";
  EXPECT_EQ(of_few.offset, 512u << 10);
}

}  // namespace
}  // namespace byteps
