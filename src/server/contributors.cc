#include "server/contributors.h"

#include <algorithm>
#include <utility>

#include "server/worker_bits.h"

namespace byteps {

Contributors::Contributors(std::shared_ptr<const Groups> groups, const Members& members,
                           std::uint32_t shard_count)
    : groups_(std::move(groups)), members_(members), shard_count_(shard_count) {
  if (groups_->most_ranks() <= 1) return;
  std::vector<Crew> crews = groups_->crews_of(members);
  is_flat_ = std::all_of(crews.begin(), crews.end(), [](const Crew& it) { return it.size() == 1; });
  if (is_flat_) return;
  crews_ = std::move(crews);
  place_of_group_.assign(groups_->count(), 0);
  for (std::uint32_t place = 0; place < crews_.size(); ++place) {
    place_of_group_[groups_->group_of(crews_[place].front())] = place;
  }
}

namespace {

Members members_of(const Crew& crew) {
  std::vector<std::uint32_t> ranks;
  for (const WorkerRank rank : crew) ranks.push_back(rank.value);
  return Members(ranks);
}

}  // namespace

Contributors::Contributors(std::shared_ptr<const Groups> apart, Crew crew,
                           std::uint32_t shard_count)
    : groups_(std::move(apart)), members_(members_of(crew)), shard_count_(shard_count) {
  crews_.push_back(std::move(crew));
}

bool Contributors::are_all_at(std::uint32_t place, std::span<const std::uint64_t> bits) const {
  if (is_flat_) return has_bit(bits, members_.at(place));
  const Crew& crew = crews_[place];
  return std::all_of(crew.begin(), crew.end(),
                     [bits](WorkerRank rank) { return has_bit(bits, rank); });
}

std::size_t Contributors::bytes_of(const Groups& groups, const Members& members) {
  std::size_t bytes = sizeof(Contributors) + members.some().size() * sizeof(std::uint32_t);
  if (groups.most_ranks() > 1) {
    bytes += groups.count() * (sizeof(Crew) + sizeof(std::uint32_t)) +
             members.count(groups.worker_count()) * sizeof(WorkerRank);
  }
  return bytes;
}

}  // namespace byteps
