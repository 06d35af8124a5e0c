// Slabs: pieces of one span of memory, lent and given back: the pinned memory that parts of tensors pass through.
// Pieces begin at multiples of kSlabAlignment. First fit, and neighbours that are free become one again.
#pragma once

#include <cstddef>
#include <map>
#include <span>

namespace byteps::device {

inline constexpr std::size_t kSlabAlignment =
    4096;  // a page: what a device copies to shares none with anything else

class Slabs {
 public:
  // The memory outlives it, and begins at a page.
  explicit Slabs(std::span<std::byte> memory);

  // Empty: there is no piece of so many bytes. At least one byte.
  std::span<std::byte> lend(std::size_t bytes);
  // What lend() gave.
  void give_back(std::span<std::byte> slab);

  bool all_is_free() const { return lent_bytes_ == 0; }
  std::size_t lent_bytes() const { return lent_bytes_; }  // with what alignment costs
  std::size_t capacity() const { return memory_.size(); }

 private:
  static std::size_t rounded(std::size_t bytes) {
    return (bytes + kSlabAlignment - 1) / kSlabAlignment * kSlabAlignment;
  }

  const std::span<std::byte> memory_;
  std::map<std::size_t, std::size_t> free_;  // offset, bytes; no two touch each other
  std::size_t lent_bytes_ = 0;
};

}  // namespace byteps::device
