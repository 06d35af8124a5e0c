#include "net/tcp/aside.h"

#include <algorithm>
#include <string>

#include "net/tcp/frame.h"

namespace byteps::tcp {
namespace {

constexpr std::size_t kReasonTextBytesMax = 240;

}  // namespace

std::vector<std::byte> encode_reason(const Status& why) {
  const std::string text = why.message().substr(0, kReasonTextBytesMax);
  const std::vector<std::byte> record = encode_refusal_record({why.code(), text});
  return {record.begin() + kRecordHeadBytes, record.end()};
}

Status decode_reason(std::span<const std::byte> content) {
  return content.empty() ? Status(Code::kUnsupported, "it does not want to")
                         : decode_refusal(content);
}

Status out_of_turn() {
  return {Code::kDisconnected, "it talks about another way for its messages out of turn"};
}

}  // namespace byteps::tcp
