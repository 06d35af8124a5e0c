// Testimony: what a member was told by schedulers, for one that is begun anew (docs/design/0013-recovery.md, The
// scheduler). Of a job that does not recover it says nothing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "base/ids.h"
#include "net/wire.h"

namespace byteps {

class Testimony {
 public:
  // This roster is the newest now, under a scheduler's term; `encoded` is what came. Of a new epoch nothing else is
  // known yet.
  void take(const wire::Roster& roster, std::uint32_t term, std::span<const std::byte> encoded);
  // A worker has left the epoch. False: that was known.
  bool note_left(std::uint32_t rank, bool final) { return left_.emplace(rank, final).second; }
  // So many barriers of the epoch are done at least.
  void note_barriers(std::uint64_t done) { heard_.barriers = std::max(heard_.barriers, done); }

  // The epoch's job goes on when its scheduler is lost.
  bool recovers() const { return heard_.term > 0; }
  std::uint32_t term() const { return heard_.term; }
  wire::Join::Heard heard() const;
  const std::vector<std::byte>& roster() const { return roster_; }  // encoded; empty: none

 private:
  wire::Join::Heard heard_;  // without those who have left
  std::map<std::uint32_t, bool> left_;
  std::vector<std::byte> roster_;
};

}  // namespace byteps
