// Any bytes, to the decoders of net/wire.h: the first byte chooses which, the rest is the message.
//
// Beside the sanitizers, one property: what was decoded says the same when it is encoded and decoded again.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "net/wire.h"

namespace {

using byteps::Result;
using Bytes = std::span<const std::byte>;

template <typename Message>
void round_trip(Result<Message> (*decode)(Bytes), Bytes bytes) {
  const Result<Message> message = decode(bytes);
  if (!message.is_ok()) {
    CHECK(!message.status().message().empty()) << "an error says what is wrong";
    return;
  }
  const auto encoded = byteps::wire::encode(message.value());
  const Result<Message> again = decode(encoded);
  CHECK(again.is_ok()) << again.status().message();
  CHECK(again.value() == message.value()) << "decoded twice, read differently";
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  namespace wire = byteps::wire;
  const Bytes bytes = std::as_bytes(std::span(data + 1, size - 1));
  switch (data[0] % 8) {
    case 0:
      round_trip(wire::decode_header, bytes);
      break;
    case 1:
      round_trip(wire::decode_declare, bytes);
      break;
    case 2:
      round_trip(wire::decode_text, bytes);
      break;
    case 3:
      round_trip(wire::decode_join, bytes);
      break;
    case 4:
      round_trip(wire::decode_roster, bytes);
      break;
    case 5:
      round_trip(wire::decode_leave, bytes);
      break;
    case 6:
      round_trip(wire::decode_barrier, bytes);
      break;
    case 7:
      round_trip(wire::decode_hello, bytes);
      break;
  }
  return 0;
}
