#include "net/tcp/record.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "net/wire.h"

namespace byteps::tcp {
namespace {

static_assert(std::endian::native == std::endian::little,
              "records are copied as they are in memory");

constexpr std::uint32_t kMagic = 0x31535042;  // "BPS1" in memory

template <typename Number>
void put(std::byte* at, Number number) {
  std::memcpy(at, &number, sizeof number);
}
template <typename Number>
Number get(const std::byte* at) {
  Number number;
  std::memcpy(&number, at, sizeof number);
  return number;
}

std::vector<std::byte> record(RecordKind kind, std::span<const std::byte> body) {
  std::vector<std::byte> out(kRecordHeadBytes);
  put(out.data(), kMagic);
  put(out.data() + 4, static_cast<std::uint16_t>(kind));
  put(out.data() + 6, static_cast<std::uint16_t>(body.size()));
  out.insert(out.end(), body.begin(), body.end());
  return out;
}

}  // namespace

std::vector<std::byte> encode_hello_record(const Hello& hello, const auth::Nonce& nonce) {
  std::vector<std::byte> body(nonce.begin(), nonce.end());
  const std::vector<std::byte> fields = wire::encode(hello);
  body.insert(body.end(), fields.begin(), fields.end());
  CHECK_LE(body.size(), kHelloBodyBytesMax);
  return record(RecordKind::kHello, body);
}

std::vector<std::byte> encode_proof_record(const auth::Proof& proof) {
  return record(RecordKind::kProof, proof);
}

std::vector<std::byte> encode_refusal_record(const Status& why) {
  return record(RecordKind::kRefusal, frame::encode_refusal(why));
}

bool begins_a_record(std::span<const std::byte> bytes) {
  const std::size_t compared = std::min(bytes.size(), sizeof kMagic);
  return compared == 0 || std::memcmp(bytes.data(), &kMagic, compared) == 0;
}

Result<RecordHead> decode_record_head(std::span<const std::byte> bytes) {
  CHECK_EQ(bytes.size(), kRecordHeadBytes);
  if (!begins_a_record(bytes)) return Status(Code::kMismatch, "it does not speak our protocol");
  const RecordHead head{static_cast<RecordKind>(get<std::uint16_t>(bytes.data() + 4)),
                        get<std::uint16_t>(bytes.data() + 6)};
  bool is_fine = false;
  switch (head.kind) {
    case RecordKind::kHello:
      is_fine = head.body_bytes <= kHelloBodyBytesMax;
      break;
    case RecordKind::kRefusal:
      is_fine = head.body_bytes <= frame::kRefusalBodyBytesMax;
      break;
    case RecordKind::kProof:
      is_fine = head.body_bytes == sizeof(auth::Proof);
      break;
    default:
      return Status(Code::kMismatch, "it began with an unknown record");
  }
  if (!is_fine)
    return Status(Code::kMismatch, "a record of its handshake is too long, or too short");
  return head;
}

Result<Hello> decode_hello_body(std::span<const std::byte> body) {
  if (body.size() < sizeof(auth::Nonce)) return Status(Code::kMismatch, "its Hello has no nonce");
  Result<Hello> hello = wire::decode_hello(body.subspan(sizeof(auth::Nonce)));
  if (!hello.is_ok()) return Status(Code::kMismatch, hello.status().message());
  return hello;
}

}  // namespace byteps::tcp
