#include "worker/route.h"

#include <algorithm>
#include <utility>

#include "base/planted.h"
namespace byteps {

Route::Route(Placement placement)
    : placement_(std::move(placement)), weights_(placement_.weights()) {}

Route::Route(Placement placement, std::shared_ptr<const Groups> groups, WorkerRank self)
    : placement_(std::move(placement)),
      groups_(std::move(groups)),
      group_(groups_->group_of(self)),
      machine_(groups_->crew_of(group_, Members())) {
  weights_.assign(machine_.size(), 1);
}

ShardIndex Route::way_to(WorkerRank relay) const {
  const auto found = std::lower_bound(machine_.begin(), machine_.end(), relay);
  return ShardIndex(static_cast<std::uint32_t>(found - machine_.begin()));
}

Route::OfTensor::OfTensor(const Route& route, Key key, const Members& members)
    : route_(route), key_(key) {
  if (route_.groups_) crew_ = route_.groups_->crew_of(route_.group_, members);
}

ShardIndex Route::OfTensor::way_of(std::uint32_t part, const Placement::Part& place) const {
  if (!route_.groups_) return place.shard;
  if (PLANTED(leader_without_key)) return route_.way_to(crew_[part % crew_.size()]);
  return route_.way_to(leader_of(crew_, key_, part, route_.placement_.shard_count()));
}

std::optional<ShardIndex> Route::OfTensor::meeting() const {
  if (!route_.groups_) return std::nullopt;
  const std::uint32_t shard_count = route_.placement_.shard_count();
  const WorkerRank there = leader_of(route_.machine_, key_, 0, shard_count);
  if (there == leader_of(crew_, key_, 0, shard_count)) return std::nullopt;
  return route_.way_to(there);
}

}  // namespace byteps
