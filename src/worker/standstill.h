// Standstill: what a worker at which nothing moves waits for (docs/protocol.md, Stalls).
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "net/wire.h"
#include "worker/inputs.h"
#include "worker/patience.h"
#include "worker/push.h"
#include "worker/road.h"
#include "worker/work.h"

namespace byteps {

class Standstill {
 public:
  // All outlive it.
  Standstill(Work& work, Push& push, const Inputs& inputs, const Patience& patience,
             const Road& road)
      : work_(work), push_(push), inputs_(inputs), patience_(patience), road_(road) {}

  // The handles of all that is pending, that of finish_inputs() among them; ascending.
  std::vector<HandleId> pending_handles() const;
  // Adds what those of `handles` (ascending) that are the pipeline's wait for: the round that the tensor is in; for
  // finish_inputs() those of all that is pending, or when nothing is, that the others have no more. The first parts of
  // these tensors go in spite of credit from now on, so that the others hear of them. False: one is at its end.
  bool add_awaited(std::span<const HandleId> handles, std::vector<wire::Awaited>& awaited);
  // Rounds that shards want and that have not been submitted, by key; at most so many.
  std::vector<wire::NotBegun> not_begun(std::size_t count_max) const {
    return push_.not_begun(count_max);
  }
  // What is pending, for people: the first few, with whom they miss.
  std::string pending_text() const { return patience_.pending_text(road_); }

 private:
  Work& work_;
  Push& push_;
  const Inputs& inputs_;
  const Patience& patience_;
  const Road& road_;
};

}  // namespace byteps
