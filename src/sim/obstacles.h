// Obstacles: what is in the way of connections and messages for a while: blocks between two transports, walls between
// hosts, and processes that stand still. Transports are named by their number, see SimTransport::number().
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "base/time.h"
#include "sim/network_options.h"

namespace byteps::sim {

class Obstacles {
 public:
  struct Pair {
    std::uint32_t a = 0;
    std::uint32_t b = 0;
  };
  // A partition. Nothing departs from hosts of `from` to hosts of `to`, nor the other way when `both`.
  struct Wall {
    std::vector<HostIndex> from;
    std::vector<HostIndex> to;
    bool both = true;
    TimeNs until = 0;  // kNever: for ever
  };

  // Nobody connects between these two until then; whoever tries is refused, or hears nothing.
  void block(Pair pair, TimeNs until, bool silent, TimeNs now);
  enum class Passage : std::uint8_t { kFree, kRefused, kSilent };
  Passage passage(std::uint32_t a, std::uint32_t b, TimeNs now) const;

  // Returns the number of the wall.
  std::uint64_t put_up(const Wall& wall, TimeNs now);
  bool stands(std::uint64_t wall, TimeNs now) const;
  // Until when nothing goes from one host to the other; 0 when it may.
  TimeNs wall_until(HostIndex from, HostIndex to, TimeNs now) const;
  // One way or the other.
  bool is_walled(HostIndex a, HostIndex b, TimeNs now) const;

  // The process of this transport stands still until then.
  void freeze(std::uint32_t number, TimeNs until);
  TimeNs frozen_until(std::uint32_t number) const;  // 0: it never did

 private:
  struct Block {
    Pair pair;
    TimeNs until;
    bool silent;
  };
  struct StandingWall {
    std::uint64_t number;
    Wall wall;
  };

  std::vector<Block> blocks_;
  std::vector<StandingWall> walls_;
  std::uint64_t last_wall_ = 0;
  std::map<std::uint32_t, TimeNs> frozen_until_;  // by number
};

}  // namespace byteps::sim
