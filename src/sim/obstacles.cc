#include "sim/obstacles.h"

#include <algorithm>

namespace byteps::sim {

void Obstacles::block(Pair pair, TimeNs until, bool silent, TimeNs now) {
  std::erase_if(blocks_, [now](const Block& block) { return block.until <= now; });
  blocks_.push_back({pair, until, silent});
}

Obstacles::Passage Obstacles::passage(std::uint32_t a, std::uint32_t b, TimeNs now) const {
  for (const Block& block : blocks_) {
    if (block.until <= now) continue;
    if ((block.pair.a == a && block.pair.b == b) || (block.pair.a == b && block.pair.b == a)) {
      return block.silent ? Passage::kSilent : Passage::kRefused;
    }
  }
  return Passage::kFree;
}

std::uint64_t Obstacles::put_up(const Wall& wall, TimeNs now) {
  std::erase_if(walls_, [now](const StandingWall& each) { return each.wall.until <= now; });
  walls_.push_back({++last_wall_, wall});
  return last_wall_;
}

bool Obstacles::stands(std::uint64_t wall, TimeNs now) const {
  return std::any_of(walls_.begin(), walls_.end(), [&](const StandingWall& each) {
    return each.number == wall && each.wall.until > now;
  });
}

TimeNs Obstacles::wall_until(HostIndex from, HostIndex to, TimeNs now) const {
  const auto has = [](const std::vector<HostIndex>& hosts, HostIndex host) {
    return std::find(hosts.begin(), hosts.end(), host) != hosts.end();
  };
  TimeNs until = 0;
  for (const auto& [number, wall] : walls_) {
    if (wall.until <= now) continue;
    const bool straight = has(wall.from, from) && has(wall.to, to);
    const bool back = wall.both && has(wall.from, to) && has(wall.to, from);
    if (straight || back) until = std::max(until, wall.until);
  }
  return until;
}

bool Obstacles::is_walled(HostIndex a, HostIndex b, TimeNs now) const {
  return wall_until(a, b, now) > 0 || wall_until(b, a, now) > 0;
}

void Obstacles::freeze(std::uint32_t number, TimeNs until) {
  TimeNs& frozen = frozen_until_[number];
  frozen = std::max(frozen, until);
}

TimeNs Obstacles::frozen_until(std::uint32_t number) const {
  const auto found = frozen_until_.find(number);
  return found == frozen_until_.end() ? 0 : found->second;
}

}  // namespace byteps::sim
