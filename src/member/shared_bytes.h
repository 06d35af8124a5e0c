// SharedBytes: what several messages have in common, a roster for thousands of members say: made once, never changed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace byteps {

class SharedBytes {
 public:
  SharedBytes() = default;
  // Not explicit: most payloads have one owner.
  SharedBytes(std::vector<std::byte> bytes)  // NOLINT(google-explicit-constructor)
      : shared_(bytes.empty() ? nullptr : std::make_shared<Shared>(Shared{std::move(bytes), {}})) {}

  operator std::span<const std::byte>() const {  // NOLINT(google-explicit-constructor)
    return shared_ ? std::span<const std::byte>(shared_->bytes) : std::span<const std::byte>();
  }
  std::size_t size() const { return shared_ ? shared_->bytes.size() : 0; }
  bool empty() const { return size() == 0; }
  // Whether both are the same memory, not only equal.
  bool is_same(const SharedBytes& other) const { return shared_ == other.shared_; }
  // For Outgoing::payload_crc; null when empty. The loop that sends is the only one that uses it.
  std::optional<std::uint32_t>* crc() const { return shared_ ? &shared_->crc : nullptr; }

 private:
  struct Shared {
    const std::vector<std::byte> bytes;
    std::optional<std::uint32_t> crc;
  };
  std::shared_ptr<Shared> shared_;
};

}  // namespace byteps
