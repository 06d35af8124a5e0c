#include "net/auth.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <string_view>

// SHA256_Init and its like are marked as deprecated since OpenSSL 3.0 in favour of EVP, but they are plain
// functions without state: EVP brings 3.8 MB, reads a configuration file, registers exit handlers and keeps
// itself from being unloaded. docs/design/0004-authentication.md has the figures.
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace byteps::auth {
namespace {

constexpr std::size_t kBlockBytes = 64;  // of SHA-256
constexpr std::string_view kJobIdLabel = "byteps job id";
constexpr std::string_view kConnectingLabel = "byteps proof of the connecting side";
constexpr std::string_view kAcceptingLabel = "byteps proof of the accepting side";
constexpr std::string_view kSealLabel = "byteps seal";

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

// Everything that is equal for all members of one life of a job and for nobody else, then whose seal it is.
struct SealHead {
  Incarnation incarnation;
  std::uint32_t epoch;
  std::uint32_t rank;
  std::uint32_t name_bytes;
};
static_assert(sizeof(SealHead) == 28 && std::endian::native == std::endian::little);

std::array<std::byte, sizeof(SealHead)> head_of(const SealedFor& bound) {
  return std::bit_cast<std::array<std::byte, sizeof(SealHead)>>(
      SealHead{bound.incarnation, bound.epoch.value, bound.rank.value,
               static_cast<std::uint32_t>(bound.name.size())});
}

class Sha256 {
 public:
  Sha256() { SHA256_Init(&state_); }
  ~Sha256() { OPENSSL_cleanse(&state_, sizeof state_); }
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void add(std::span<const std::byte> bytes) { SHA256_Update(&state_, bytes.data(), bytes.size()); }
  Proof finish() {
    Proof digest;
    SHA256_Final(reinterpret_cast<unsigned char*>(digest.data()), &state_);
    return digest;
  }

 private:
  SHA256_CTX state_;
};

// The key as a block, with every byte of it changed by `pad`.
class PaddedKey {
 public:
  PaddedKey(std::span<const std::byte> key, std::byte pad) {
    if (key.size() > kBlockBytes) {
      Sha256 hash;
      hash.add(key);
      const Proof digest = hash.finish();
      std::copy(digest.begin(), digest.end(), block_.begin());
    } else {
      std::copy(key.begin(), key.end(), block_.begin());
    }
    for (std::byte& byte : block_) byte ^= pad;
  }
  ~PaddedKey() { OPENSSL_cleanse(block_.data(), block_.size()); }
  PaddedKey(const PaddedKey&) = delete;
  PaddedKey& operator=(const PaddedKey&) = delete;

  std::span<const std::byte> block() const { return block_; }

 private:
  std::array<std::byte, kBlockBytes> block_{};
};

}  // namespace

Proof hmac_sha256(std::span<const std::byte> key,
                  std::initializer_list<std::span<const std::byte>> pieces) {
  Sha256 inner;
  inner.add(PaddedKey(key, std::byte{0x36}).block());
  for (const std::span<const std::byte> piece : pieces) inner.add(piece);
  const Proof digest = inner.finish();
  Sha256 outer;
  outer.add(PaddedKey(key, std::byte{0x5c}).block());
  outer.add(digest);
  return outer.finish();
}

JobId job_id_of(const JobKey& key) {
  JobId id{};
  if (key.empty()) return id;
  const Proof digest = hmac_sha256(key.secret(), {bytes_of(kJobIdLabel)});
  std::copy_n(digest.begin(), id.size(), id.begin());
  return id;
}

Status fill_random(std::span<std::byte> bytes) {
  ssize_t count = 0;
  do {
    // So few bytes come at once. By its number: glibc has a function for it since 2.25 only.
    count = ::syscall(SYS_getrandom, bytes.data(), bytes.size(), 0);
  } while (count < 0 && errno == EINTR);
  if (count != static_cast<ssize_t>(bytes.size())) return system_error("getrandom", errno);
  return Status::ok();
}

Result<Nonce> fresh_nonce() {
  Nonce nonce;
  const Status filled = fill_random(nonce);
  if (!filled.is_ok()) return filled;
  return nonce;
}

Proof prove(const JobKey& key, Side side, std::span<const std::byte> connecting_hello,
            std::span<const std::byte> accepting_hello) {
  const std::string_view label = side == Side::kConnecting ? kConnectingLabel : kAcceptingLabel;
  return hmac_sha256(key.secret(), {bytes_of(label), connecting_hello, accepting_hello});
}

Proof seal(const JobKey& key, const SealedFor& bound, std::span<const std::byte> payload) {
  return hmac_sha256(key.secret(),
                     {bytes_of(kSealLabel), head_of(bound), bytes_of(bound.name), payload});
}

bool is_equal(const Proof& expected, std::span<const std::byte> said) {
  return said.size() == expected.size() &&
         CRYPTO_memcmp(expected.data(), said.data(), expected.size()) == 0;
}

}  // namespace byteps::auth
