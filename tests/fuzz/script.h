// Script: the bytes of a fuzz input, read as a list of actions with their arguments. Past the end every value
// is 0, so that any cut of an input is an input too.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace byteps::fuzz {

class Script {
 public:
  Script(const std::uint8_t* data, std::size_t size) : rest_(data, size) {}

  bool done() const { return rest_.empty(); }
  std::uint8_t byte() {
    if (rest_.empty()) return 0;
    const std::uint8_t value = rest_[0];
    rest_ = rest_.subspan(1);
    return value;
  }
  // One of `count` choices.
  std::uint32_t below(std::uint32_t count) { return byte() % count; }
  bool flag() { return (byte() & 1) != 0; }
  // Mostly small; sometimes at the edges; sometimes anything.
  std::uint64_t number() {
    const std::uint8_t choice = byte();
    if (choice < 240) return choice % 16;
    if (choice < 252) return kEdges[choice - 240];
    std::uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value = value << 8 | byte();
    return value;
  }
  std::uint32_t number32() { return static_cast<std::uint32_t>(number()); }
  // At most bytes_max, as they stand in the input; one byte says how many.
  std::vector<std::byte> bytes(std::size_t bytes_max = 255) {
    const std::size_t count = std::min({std::size_t{byte()}, bytes_max, rest_.size()});
    const auto raw = std::as_bytes(rest_.first(count));
    rest_ = rest_.subspan(count);
    return {raw.begin(), raw.end()};
  }
  // Changes some bytes of a valid message, or its length.
  void mutate(std::vector<std::byte>& message) {
    for (std::uint32_t change = 1 + below(3); change > 0; --change) {
      const std::size_t at = message.empty() ? 0 : byte() % message.size();
      switch (below(4)) {
        case 0:
          if (!message.empty()) message[at] = std::byte{byte()};
          break;
        case 1:
          message.resize(at);
          break;
        case 2: {
          const std::vector<std::byte> more = bytes(32);
          message.insert(message.begin() + static_cast<std::ptrdiff_t>(at), more.begin(),
                         more.end());
          break;
        }
        case 3:
          if (!message.empty()) message[at] ^= std::byte{1} << below(8);
          break;
      }
    }
  }

 private:
  static constexpr std::uint64_t kEdges[12] = {63,
                                               64,
                                               255,
                                               256,
                                               4096,
                                               65535,
                                               65536,
                                               0x7fffffff,
                                               0xfffffffe,
                                               0xffffffff,
                                               ~std::uint64_t{0},
                                               std::uint64_t{1} << 63};
  std::span<const std::uint8_t> rest_;
};

}  // namespace byteps::fuzz
