#include "device/slabs.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"

namespace byteps::device {

Slabs::Slabs(std::span<std::byte> memory)
    : memory_(memory.first(memory.size() / kSlabAlignment * kSlabAlignment)) {
  if (!memory_.empty()) free_.emplace(0, memory_.size());
}

std::span<std::byte> Slabs::lend(std::size_t bytes) {
  CHECK_GT(bytes, 0U);
  const std::size_t needed = rounded(bytes);
  const auto found = std::find_if(free_.begin(), free_.end(),
                                  [&](const auto& piece) { return piece.second >= needed; });
  if (found == free_.end()) return {};
  const auto [offset, size] = *found;
  free_.erase(found);
  if (size > needed) free_.emplace(offset + needed, size - needed);
  lent_bytes_ += needed;
  return memory_.subspan(offset, bytes);
}

void Slabs::give_back(std::span<std::byte> slab) {
  auto offset = static_cast<std::size_t>(slab.data() - memory_.data());
  std::size_t size = rounded(slab.size());
  CHECK_LE(offset + size, memory_.size());
  CHECK_GE(lent_bytes_, size);
  lent_bytes_ -= size;
  const auto next = free_.lower_bound(offset);
  CHECK(next == free_.end() || next->first >= offset + size) << "a slab came back twice";
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    CHECK_LE(before->first + before->second, offset) << "a slab came back twice";
    if (before->first + before->second == offset) {
      offset = before->first;
      size += before->second;
      free_.erase(before);
    }
  }
  if (next != free_.end() && next->first == offset + size) {
    size += next->second;
    free_.erase(next);
  }
  free_.emplace(offset, size);
}

}  // namespace byteps::device
