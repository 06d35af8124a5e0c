#include "net/auth.h"

#include <string>
#include <string_view>

#include <gtest/gtest.h>

namespace byteps::auth {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::string hex(std::span<const std::byte> bytes) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : bytes) {
    text += kDigits[static_cast<unsigned>(byte) >> 4];
    text += kDigits[static_cast<unsigned>(byte) & 15];
  }
  return text;
}

// RFC 4231, test cases 1, 2, 6 and 7.
TEST(HmacSha256, gives_the_digests_of_rfc_4231) {
  EXPECT_EQ(hex(hmac_sha256(bytes_of(std::string(20, '\x0b')), {bytes_of("Hi There")})),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hex(hmac_sha256(bytes_of("Jefe"), {bytes_of("what do ya want for nothing?")})),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  const std::string long_key(131, '\xaa');
  EXPECT_EQ(hex(hmac_sha256(bytes_of(long_key),
                            {bytes_of("Test Using Larger Than Block-Size Key - Hash Key First")})),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  const std::string_view data =
      "This is a test using a larger than block-size key and a larger than block-size data. The "
      "key "
      "needs to be hashed before being used by the HMAC algorithm.";
  EXPECT_EQ(hex(hmac_sha256(bytes_of(long_key), {bytes_of(data)})),
            "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

TEST(HmacSha256, takes_its_text_in_any_pieces) {
  const auto key = bytes_of("key");
  EXPECT_EQ(hmac_sha256(key, {bytes_of("ab"), {}, bytes_of("c")}),
            hmac_sha256(key, {bytes_of("abc")}));
  EXPECT_NE(hmac_sha256(key, {bytes_of("abc")}), hmac_sha256({}, {bytes_of("abc")}));
}

TEST(Proof, is_compared_whole) {
  Proof proof = hmac_sha256({}, {});
  const Proof same = proof;
  EXPECT_TRUE(is_equal(proof, same));
  EXPECT_FALSE(is_equal(proof, std::span(same).first(31)));
  EXPECT_FALSE(is_equal(proof, {}));
  for (std::size_t i = 0; i < proof.size(); ++i) {
    Proof other = same;
    other[i] ^= std::byte{1};
    EXPECT_FALSE(is_equal(proof, other)) << i;
  }
}

TEST(JobIdOf, is_zero_without_a_key_and_of_one_key_only) {
  EXPECT_EQ(job_id_of(JobKey()), JobId{});
  EXPECT_EQ(job_id_of(JobKey("one")), job_id_of(JobKey("one")));
  EXPECT_NE(job_id_of(JobKey("one")), job_id_of(JobKey("two")));
}

TEST(Seal, fits_one_payload_of_one_rank_under_one_name_in_one_epoch_of_one_job) {
  const JobKey key("key");
  const auto payload = bytes_of("payload");
  const SealedFor bound{.epoch = Epoch(1), .rank = WorkerRank(2), .name = "a.1"};
  const Proof one = seal(key, bound, payload);
  EXPECT_EQ(seal(key, bound, payload), one);
  EXPECT_NE(seal(JobKey("other"), bound, payload), one);
  EXPECT_NE(seal(key, {Epoch(2), WorkerRank(2), "a.1"}, payload), one);
  EXPECT_NE(seal(key, {Epoch(1), WorkerRank(3), "a.1"}, payload), one);
  EXPECT_NE(seal(key, {Epoch(2), WorkerRank(1), "a.1"}, payload), one);
  EXPECT_NE(seal(key, {Epoch(1), WorkerRank(2), "a.2"}, payload), one);
  EXPECT_NE(seal(key, bound, bytes_of("Payload")), one);
  EXPECT_NE(seal(key, {Epoch(1), WorkerRank(2), "a.1p"}, bytes_of("ayload")), one);
  EXPECT_NE(seal(key, {Epoch(1), WorkerRank(2), "a.1", {std::byte{1}}}, payload), one);
}

}  // namespace
}  // namespace byteps::auth
