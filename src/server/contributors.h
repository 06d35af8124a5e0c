// Contributors: who pushes to a shelf what its tensor's members have, and is answered. At a server: of each part one
// member of every machine's crew, its leader (base/groups.h); where every worker is a group by itself, these are the
// members. At a relay, where a machine's workers sum first: the members that are in its group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/groups.h"
#include "base/ids.h"
#include "base/members.h"

namespace byteps {

class Contributors {
 public:
  // Of tensors with these members.
  Contributors(std::shared_ptr<const Groups> groups, const Members& members,
               std::uint32_t shard_count);
  // At a relay of such a crew, which is not empty; `apart`: Groups::apart().
  Contributors(std::shared_ptr<const Groups> apart, Crew crew, std::uint32_t shard_count);

  // Of each part; each has a place below this, those of lower groups first.
  std::uint32_t count() const {
    return is_flat_ ? members_.count(groups_->worker_count())
                    : static_cast<std::uint32_t>(crews_.size());
  }
  WorkerRank at(std::uint32_t place, Key key, PartIndex part) const {
    return is_flat_ ? members_.at(place) : leader_of(crews_[place], key, part.value, shard_count_);
  }
  // The place of who contributes for this member.
  std::uint32_t place_of(WorkerRank member) const {
    return is_flat_ ? members_.place_of(member) : place_of_group_[groups_->group_of(member)];
  }
  // Who contributes what this member has.
  WorkerRank speaker_of(WorkerRank member, Key key, PartIndex part) const {
    return is_flat_ ? member : at(place_of_group_[groups_->group_of(member)], key, part);
  }
  // Whether a contributor does so for this member.
  bool speaks_for(WorkerRank contributor, WorkerRank member) const {
    return groups_->group_of(contributor) == groups_->group_of(member);
  }
  // Whether it is a member; at a relay: of its crew.
  bool has(WorkerRank member) const { return members_.has(member); }
  // At a relay: who leads the part.
  WorkerRank leader(Key key, PartIndex part) const {
    return leader_of(crews_.front(), key, part.value, shard_count_);
  }
  // The crew at this place, in which one contributes for all; of one where nobody sums first.
  Crew crew(std::uint32_t place) const {
    return is_flat_ ? Crew{members_.at(place)} : crews_[place];
  }
  // Whether all of them, for whom is contributed at this place, have their bits set.
  bool are_all_at(std::uint32_t place, std::span<const std::uint64_t> bits) const;
  // The memory that one may have.
  static std::size_t bytes_of(const Groups& groups, const Members& members);

 private:
  std::shared_ptr<const Groups> groups_;
  Members members_;
  std::uint32_t shard_count_;
  bool is_flat_ = true;  // no crew has two
  // Otherwise, by place; at a relay its crew.
  std::vector<Crew> crews_;
  std::vector<std::uint32_t> place_of_group_;
};

}  // namespace byteps
