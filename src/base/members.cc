#include "base/members.h"

#include <algorithm>

namespace byteps {

std::optional<Members> Members::of_bitmap(std::span<const std::byte> bitmap) {
  if (bitmap.empty() || bitmap.size() > kBitmapBytesMax || bitmap.back() == std::byte{0}) {
    return std::nullopt;
  }
  Members members;
  for (std::uint32_t rank = 0; rank < 8 * bitmap.size(); ++rank) {
    if ((bitmap[rank / 8] >> (rank % 8) & std::byte{1}) != std::byte{0}) {
      members.some_.push_back(rank);
    }
  }
  return members;
}

std::vector<std::byte> Members::bitmap() const {
  std::vector<std::byte> bitmap(is_all() ? 0 : some_.back() / 8 + 1);
  for (const std::uint32_t rank : some_) bitmap[rank / 8] |= std::byte{1} << (rank % 8);
  return bitmap;
}

bool Members::has(WorkerRank rank) const {
  return is_all() || std::binary_search(some_.begin(), some_.end(), rank.value);
}

std::uint32_t Members::place_of(WorkerRank rank) const {
  if (is_all()) return rank.value;
  const auto found = std::lower_bound(some_.begin(), some_.end(), rank.value);
  return static_cast<std::uint32_t>(found - some_.begin());
}

std::string flaw_of_members(std::span<const std::uint32_t> ranks, WorkerRank self,
                            std::uint32_t worker_count) {
  if (ranks.empty()) return "its list of members is empty; NULL means all ranks";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] >= worker_count) {
      return "its member " + std::to_string(ranks[i]) + " is not a rank of a job of " +
             std::to_string(worker_count);
    }
    if (i > 0 && ranks[i] <= ranks[i - 1]) {
      return "its members are not in ascending order: " + std::to_string(ranks[i]) +
             " comes after " + std::to_string(ranks[i - 1]);
    }
  }
  if (std::binary_search(ranks.begin(), ranks.end(), self.value)) return {};
  return "rank " + std::to_string(self.value) +
         " submits it and is not among its members: only members may";
}

}  // namespace byteps
