#include "net/way/aside.h"

#include <algorithm>
#include <string>

#include "net/frame/frame.h"

namespace byteps::way {
namespace {

constexpr std::size_t kReasonTextBytesMax = 240;

}  // namespace

std::vector<std::byte> encode_reason(const Status& why) {
  return frame::encode_refusal(why.in_words(why.message().substr(0, kReasonTextBytesMax)));
}

Status decode_reason(std::span<const std::byte> content) {
  return content.empty() ? Status(Code::kUnsupported, "it does not want to")
                         : frame::decode_refusal(content);
}

Status out_of_turn() {
  return {Code::kDisconnected, "it talks about another way for its messages out of turn"};
}

}  // namespace byteps::way
