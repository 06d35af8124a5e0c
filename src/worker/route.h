// Route: which way each part of a tensor goes from here. Ways are numbered; what is at the end of each is the shell's.
//
// Without relays, and from a relay, a way leads to each of the job's shards, and a part goes to the one that owns it
// (base/placement.h). From a worker whose machine sums first, a way leads to the relay of each worker of the machine,
// in order of their ranks, and a part goes to the one that leads it (base/groups.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/groups.h"
#include "base/ids.h"
#include "base/members.h"
#include "base/placement.h"

namespace byteps {

class Route {
 public:
  explicit Route(Placement placement);
  // From a worker whose machine sums first.
  Route(Placement placement, std::shared_ptr<const Groups> groups, WorkerRank self);

  const Placement& placement() const { return placement_; }
  std::uint32_t way_count() const { return static_cast<std::uint32_t>(weights_.size()); }
  // By way: the share of a large tensor that goes there, in proportion to the others'.
  const std::vector<std::uint32_t>& weights() const { return weights_; }

  // The ways of one tensor's parts.
  class OfTensor {
   public:
    OfTensor(const Route& route, Key key, const Members& members);
    ShardIndex way_of(std::uint32_t part, const Placement::Part& place) const;
    // Behind relays: where workers that disagree about the tensor meet, for it does not depend on what they say.
    // nullopt: where the first part goes.
    std::optional<ShardIndex> meeting() const;

   private:
    const Route& route_;
    Key key_;
    Crew crew_;  // behind relays: the members of this machine
  };

 private:
  ShardIndex way_to(WorkerRank relay) const;

  Placement placement_;
  std::vector<std::uint32_t> weights_;
  std::shared_ptr<const Groups> groups_;  // null: no relays
  std::uint32_t group_ = 0;
  Crew machine_;  // all workers of this machine
};

}  // namespace byteps
