// Every way to compute a CRC32C against the definition, bit by bit, and against the vectors of RFC 3720.
// Messages are heap blocks that end where the message ends, so that a sanitizer sees any read behind it.
#include "kernels/crc32c.h"

#include <algorithm>
#include <memory>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "base/prng.h"

namespace byteps {
namespace {

// The definition: a register of ones; each bit of the message, lowest first, may subtract the polynomial; the
// register inverted.
std::uint32_t model(std::uint32_t crc, std::span<const std::byte> bytes) {
  std::uint32_t state = ~crc;
  for (const std::byte byte : bytes) {
    for (int bit = 0; bit < 8; ++bit) {
      const bool subtract = ((state ^ (static_cast<std::uint32_t>(byte) >> bit)) & 1) != 0;
      state = (state >> 1) ^ (subtract ? 0x82F63B78u : 0);
    }
  }
  return ~state;
}

std::vector<std::byte> random_bytes(Prng& prng, std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(prng.next() >> 56);
  return bytes;
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

struct Crc32c : testing::TestWithParam<Crc32cKernel> {
  std::uint32_t crc(std::uint32_t before, std::span<const std::byte> bytes) const {
    return GetParam().update(before, bytes);
  }
};

INSTANTIATE_TEST_SUITE_P(of, Crc32c, testing::ValuesIn(available_crc32c()),
                         [](const auto& way) { return way.param.target; });

// RFC 3720, appendix B.4. Its digests are listed byte by byte, the lowest first.
TEST_P(Crc32c, agrees_with_the_examples_of_RFC_3720) {
  EXPECT_EQ(crc(0, std::vector<std::byte>(32, std::byte{0})), 0x8A9136AAu);
  EXPECT_EQ(crc(0, std::vector<std::byte>(32, std::byte{0xff})), 0x62A8AB43u);
  std::vector<std::byte> rising(32);
  for (std::size_t i = 0; i < rising.size(); ++i) rising[i] = static_cast<std::byte>(i);
  EXPECT_EQ(crc(0, rising), 0x46DD794Eu);
  std::reverse(rising.begin(), rising.end());
  EXPECT_EQ(crc(0, rising), 0x113FDB5Cu);
  constexpr unsigned char kReadCommand[48] = {
      0x01, 0xc0, 0, 0,    0, 0, 0, 0,    0,    0, 0, 0, 0, 0, 0, 0, 0x14, 0, 0, 0, 0, 0, 0x04, 0,
      0,    0,    0, 0x14, 0, 0, 0, 0x18, 0x28, 0, 0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0, 0, 0, 0,    0};
  EXPECT_EQ(crc(0, std::as_bytes(std::span(kReadCommand))), 0xD9963A56u);
}

TEST_P(Crc32c, of_the_digits_is_the_check_value_of_the_catalogues) {
  EXPECT_EQ(crc(0, bytes_of("123456789")), 0xE3069283u);
}

TEST_P(Crc32c, of_nothing_is_what_was_before) {
  EXPECT_EQ(crc(0, {}), 0u);
  EXPECT_EQ(crc(0x12345678, {}), 0x12345678u);
}

TEST_P(Crc32c, agrees_with_the_definition_for_all_lengths_to_1100) {
  Prng prng(1);
  for (std::size_t length = 0; length <= 1100; ++length) {
    const std::vector<std::byte> bytes = random_bytes(prng, length);
    const auto before = static_cast<std::uint32_t>(prng.next());
    ASSERT_EQ(crc(before, bytes), model(before, bytes)) << length << " bytes";
  }
}

TEST_P(Crc32c, agrees_with_the_definition_at_all_alignments) {
  Prng prng(2);
  for (std::size_t offset = 0; offset < 64; ++offset) {
    for (const std::size_t length : {1, 7, 8, 63, 64, 95, 96, 97, 255, 256, 257, 767, 768, 1023}) {
      const std::unique_ptr<std::byte[]> memory(new std::byte[offset + length]);
      const std::span<std::byte> bytes(memory.get() + offset, length);
      std::ranges::copy(random_bytes(prng, length), bytes.begin());
      ASSERT_EQ(crc(0, bytes), model(0, bytes)) << length << " bytes, " << offset << " further";
    }
  }
}

TEST_P(Crc32c, agrees_with_the_definition_for_long_messages) {
  Prng prng(3);
  for (const std::size_t length : {6143, 6144, 6145, 65536, 100'003, 1 << 20}) {
    const std::vector<std::byte> bytes = random_bytes(prng, length);
    ASSERT_EQ(crc(0, bytes), model(0, bytes)) << length << " bytes";
  }
}

TEST_P(Crc32c, of_pieces_one_after_the_other_is_that_of_the_whole) {
  Prng prng(4);
  const std::vector<std::byte> bytes = random_bytes(prng, 20'000);
  const std::uint32_t whole = model(0, bytes);
  for (int trial = 0; trial < 300; ++trial) {
    std::span<const std::byte> left = bytes;
    std::uint32_t sum = 0;
    while (!left.empty()) {
      const std::uint64_t longest = prng.below(2) == 0 ? 100 : 10'000;
      const std::size_t piece = std::min<std::size_t>(left.size(), prng.below(longest));
      sum = crc(sum, left.first(piece));
      left = left.subspan(piece);
    }
    ASSERT_EQ(sum, whole) << "trial " << trial;
  }
}

TEST_P(Crc32c, sees_each_single_bit_that_is_wrong) {
  Prng prng(5);
  std::vector<std::byte> bytes = random_bytes(prng, 700);
  const std::uint32_t right = crc(0, bytes);
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    const auto mask = static_cast<std::byte>(1u << (bit % 8));
    bytes[bit / 8] ^= mask;
    ASSERT_NE(crc(0, bytes), right) << "bit " << bit;
    bytes[bit / 8] ^= mask;
  }
}

TEST(Crc32cChoice, takes_the_best_way_of_this_CPU) {
  const std::vector<Crc32cKernel> kernels = available_crc32c();
  EXPECT_STREQ(kernels.front().target, "portable");
  EXPECT_EQ(crc32c(0, bytes_of("123456789")), 0xE3069283u);
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul")) {
    EXPECT_STRNE(kernels.back().target, "portable");
  }
#endif
}

}  // namespace
}  // namespace byteps
