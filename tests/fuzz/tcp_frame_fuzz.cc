// Any bytes, to the parsers of net/tcp/frame.h: as a record, as a refusal, and as the prefix of a frame.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "net/tcp/frame.h"

namespace {

using namespace byteps::tcp;
using Bytes = std::span<const std::byte>;

void read_record(Bytes bytes) {
  if (bytes.size() < kRecordHeadBytes) return;
  const auto head = decode_record_head(bytes.first(kRecordHeadBytes));
  if (head.is_ok()) CHECK_LE(head.value().body_bytes, kRecordBodyBytesMax);
}

void read_refusal(Bytes bytes) {
  const byteps::Status why = decode_refusal(bytes);
  CHECK(!why.is_ok()) << "a refusal is never ok";
  for (const char c : why.message()) CHECK(c >= ' ' && c <= '~') << "a character for no log";
}

void read_prefix(Bytes bytes) {
  if (bytes.size() < kPrefixBytes) return;
  const auto raw = bytes.first<kPrefixBytes>();
  Prefix prefix;
  if (!decode(raw, prefix).is_ok()) return;
  CHECK_LE(prefix.payload_bytes, byteps::kPayloadBytesMax);
  CHECK_LE(prefix.header_bytes, byteps::kHeaderBytesMax);
  std::array<std::byte, kPrefixBytes> encoded{};
  encode(prefix, encoded);
  CHECK(std::equal(raw.begin(), raw.end(), encoded.begin())) << "encoded to other bytes";
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const Bytes bytes = std::as_bytes(std::span(data, size));
  read_record(bytes);
  read_refusal(bytes);
  read_prefix(bytes);
  return 0;
}
