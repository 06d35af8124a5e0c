// What Python packs (tests/python/test_exchange.py has the other half) is taken apart again.
#include "bridge/exchange.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace byteps::bridge {
namespace {

using ::testing::ElementsAreArray;

// As Exchange.packed() makes it; a struct of `struct_bytes`, as an older Python may have it.
std::string packed(byteps_tensor tensor, const std::vector<uint32_t>& members,
                   size_t struct_bytes = sizeof(byteps_tensor),
                   const byteps_codec* codec = nullptr) {
  tensor.struct_bytes = static_cast<uint32_t>(struct_bytes);
  tensor.member_count = static_cast<uint32_t>(members.size());
  std::string content(reinterpret_cast<const char*>(&tensor), struct_bytes);
  if (codec != nullptr) content.append(reinterpret_cast<const char*>(codec), sizeof *codec);
  content.append(reinterpret_cast<const char*>(members.data()), members.size() * sizeof(uint32_t));
  std::string hex;
  for (const char each : content) {
    constexpr const char* kDigits = "0123456789abcdef";
    hex += kDigits[static_cast<unsigned char>(each) >> 4];
    hex += kDigits[static_cast<unsigned char>(each) & 15];
  }
  return hex;
}

byteps_tensor summed() {
  byteps_tensor tensor{};
  tensor.dtype = BYTEPS_FLOAT16;
  tensor.operation = BYTEPS_SUM;
  tensor.root = 2;
  tensor.priority = -7;
  tensor.flags = BYTEPS_ROOT_ONLY;
  tensor.scale = 0.25;
  return tensor;
}

TEST(Exchange, everything_that_python_says_is_in_the_call) {
  const std::vector<uint32_t> members = {0, 2, 5};
  const std::string content = packed(summed(), members);
  std::string_view left = content;
  const auto exchange = Exchange::take(left);
  ASSERT_TRUE(exchange.has_value());
  EXPECT_TRUE(left.empty());
  const byteps_tensor call = exchange->tensor();
  byteps_tensor expected = summed();
  expected.struct_bytes = sizeof expected;
  expected.members = call.members;
  expected.member_count = 3;
  EXPECT_EQ(std::memcmp(&call, &expected, sizeof call), 0);
  EXPECT_THAT(std::vector<uint32_t>(call.members, call.members + call.member_count),
              ElementsAreArray(members));
}

TEST(Exchange, several_are_taken_one_after_another) {
  byteps_tensor once = summed();
  once.flags = BYTEPS_ONCE;
  const std::string content =
      packed(summed(), {1}) + " " + packed(once, {}) + " " + packed(summed(), {0, 1});
  std::string_view left = content;
  for (const size_t count : {1, 0, 2}) {
    const auto exchange = Exchange::take(left);
    ASSERT_TRUE(exchange.has_value());
    const byteps_tensor call = exchange->tensor();
    EXPECT_EQ(call.member_count, count);
    EXPECT_EQ(call.members == nullptr, count == 0);
    EXPECT_EQ(exchange->is_once(), count == 0);
  }
  EXPECT_TRUE(left.empty());
  EXPECT_FALSE(Exchange::take(left).has_value());
}

TEST(Exchange, a_codec_is_between_the_tensor_and_its_members) {
  byteps_tensor coded = summed();
  coded.format = BYTEPS_FORMAT_TOPK;
  coded.codec = reinterpret_cast<const byteps_codec*>(uintptr_t{1});
  const byteps_codec codec = {
      .k = 0.25, .seed = 7, .flags = BYTEPS_CODEC_ERROR_FEEDBACK, .reserved = 0};
  const std::string content =
      packed(coded, {0, 3}, sizeof coded, &codec) + " " + packed(summed(), {});
  std::string_view left = content;
  const auto exchange = Exchange::take(left);
  ASSERT_TRUE(exchange.has_value());
  const byteps_tensor call = exchange->tensor();
  ASSERT_NE(call.codec, coded.codec);
  EXPECT_EQ(std::memcmp(call.codec, &codec, sizeof codec), 0);
  EXPECT_THAT(std::vector<uint32_t>(call.members, call.members + call.member_count),
              ElementsAreArray({0U, 3U}));
  EXPECT_EQ(Exchange::take(left)->tensor().codec, nullptr);
  const std::string lacking = packed(coded, {0, 3});
  std::string_view without = lacking;
  EXPECT_FALSE(Exchange::take(without).has_value());
}

TEST(Exchange, what_a_shorter_struct_lacks_is_zero) {
  const size_t without_queue = offsetof(byteps_tensor, queue);
  const std::string content = packed(summed(), {3, 4}, without_queue);
  std::string_view left = content;
  const auto exchange = Exchange::take(left);
  ASSERT_TRUE(exchange.has_value());
  const byteps_tensor call = exchange->tensor();
  EXPECT_EQ(call.struct_bytes, sizeof call);
  EXPECT_EQ(call.queue, nullptr);
  EXPECT_EQ(call.members[1], 4u);
}

TEST(Exchange, a_part_of_one_is_none_nor_is_one_with_more_behind_it) {
  const std::string content = packed(summed(), {0, 2, 5});
  const auto is_one = [](std::string_view text) { return Exchange::take(text).has_value(); };
  EXPECT_TRUE(is_one(content));
  for (size_t size = 0; size < content.size(); size++) {
    EXPECT_FALSE(is_one(content.substr(0, size))) << size;
  }
  EXPECT_FALSE(is_one(content + "00"));
  EXPECT_FALSE(is_one("x" + content.substr(1)));
  // Of a newer Python, which knows more than this.
  const byteps_tensor longer[2] = {};
  std::string newer = packed(longer[0], {}) + packed(longer[0], {});
  newer[0] = 'f';
  EXPECT_FALSE(is_one(newer));
}

}  // namespace
}  // namespace byteps::bridge
