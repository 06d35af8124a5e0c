// Exchange: what Python says of an exchange that a compiled program starts when it runs. Python gives it as text
// (Exchange.packed() of python/byteps/_core/exchange.py), which is an attribute of the program's operations: in hex the
// bytes of
//
//   byteps_tensor   with what is known before the program runs: all but name, addresses, element_count and shape
//   byteps_codec    where that has one: where its address, which is none, is not NULL
//   uint32_t        member_count times: the members
//
// So a new attribute of a tensor passes through the shims without a word here.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

#include "byteps/byteps.h"

namespace byteps::bridge {

class Exchange {
 public:
  // Takes the first one off `packed`, which ends with it or has a space behind it. nullopt: it is none.
  static std::optional<Exchange> take(std::string_view& packed) {
    const std::string_view text = packed.substr(0, packed.find(' '));
    packed.remove_prefix(std::min(packed.size(), text.size() + 1));
    const std::vector<unsigned char> content = bytes_of(text);
    Exchange taken;
    uint32_t struct_bytes = 0;
    if (content.size() < sizeof struct_bytes) return std::nullopt;
    std::memcpy(&struct_bytes, content.data(), sizeof struct_bytes);
    // That of an older Python may be shorter: what it lacks is zero.
    if (struct_bytes > std::min(sizeof taken.tensor_, content.size())) return std::nullopt;
    std::memcpy(&taken.tensor_, content.data(), struct_bytes);
    const size_t codec_bytes = taken.tensor_.codec == nullptr ? 0 : sizeof(byteps_codec);
    const size_t members_bytes = size_t{taken.tensor_.member_count} * sizeof(uint32_t);
    if (content.size() != struct_bytes + codec_bytes + members_bytes) return std::nullopt;
    if (codec_bytes > 0) {
      std::memcpy(&taken.codec_, content.data() + struct_bytes, codec_bytes);
    }
    taken.members_.resize(taken.tensor_.member_count);
    if (members_bytes > 0) {
      std::memcpy(taken.members_.data(), content.data() + struct_bytes + codec_bytes,
                  members_bytes);
    }
    return taken;
  }

  uint32_t operation() const { return tensor_.operation; }
  // The name is a prefix: each run has a number of its own, and may have a shape of its own.
  bool is_once() const { return (tensor_.flags & BYTEPS_ONCE) != 0; }

  // For one run, which adds what was not known before. Points at the codec and the members in this.
  byteps_tensor tensor() const {
    byteps_tensor tensor = tensor_;
    tensor.struct_bytes = sizeof tensor;
    tensor.codec = tensor_.codec == nullptr ? nullptr : &codec_;
    tensor.members = members_.empty() ? nullptr : members_.data();
    return tensor;
  }

 private:
  // Of lower-case hex; empty when it is none.
  static std::vector<unsigned char> bytes_of(std::string_view hex) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    std::vector<unsigned char> bytes;
    bytes.reserve(hex.size() / 2);
    if (hex.size() % 2 != 0 || hex.find_first_not_of(kDigits) != hex.npos) return bytes;
    for (size_t i = 0; i < hex.size(); i += 2) {
      bytes.push_back(
          static_cast<unsigned char>(kDigits.find(hex[i]) << 4 | kDigits.find(hex[i + 1])));
    }
    return bytes;
  }

  byteps_tensor tensor_{};
  byteps_codec codec_{};
  std::vector<uint32_t> members_;
};

}  // namespace byteps::bridge
