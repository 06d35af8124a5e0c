#include "member/shares.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <utility>

#include "base/placement.h"
#include "member/summing.h"

namespace byteps {
namespace {

// The tensor M of the formulas. Times and capacities stay below 2^56: 2^20, 2^12 workers, and the factors below.
constexpr std::int64_t kTensor = kShareUnit;
constexpr std::int64_t kRateUnit = 1024;  // rates in parts of the fastest card's
constexpr std::uint64_t kMeanWeight = 256;

// The share that lets a machine finish within a time: any from least to most.
struct Range {
  std::int64_t least = 0;
  std::int64_t most = 0;
};

// `capacity`: what the card carries in that time. None (least > most) when even the best share is too slow.
Range range_of(const MachineLoad& machine, std::int64_t workers, std::int64_t capacity) {
  const std::int64_t own = machine.worker_count;
  const std::int64_t spare = capacity - own * kTensor;
  if (machine.server_count == 0) return spare < 0 ? Range{1, 0} : Range{0, 0};
  const std::int64_t slope = workers - 2 * own;
  if (slope < 0) {  // its servers serve mostly its own workers: the more, the less the card carries
    const std::int64_t least = spare >= 0 ? 0 : (-spare - slope - 1) / -slope;
    return {least, kTensor};
  }
  if (spare < 0) return {1, 0};
  // With a slope of 0 any share takes the same time. As if it took a little: then machines without workers get most.
  const std::int64_t most = slope > 0 ? spare / slope : spare * 1024 / workers;
  return {0, std::min(most, kTensor)};
}

// The highest rate that is told of a card, by its number.
using CardRates = std::map<std::uint64_t, std::uint32_t>;

void note_cards(const wire::RosterMember& member, CardRates& cards) {
  const auto note = [&](std::uint64_t number, std::uint32_t rate_mbps) {
    cards[number] = std::max(cards[number], rate_mbps);
  };
  note(member.card, member.rate_mbps);
  for (const NetworkCard& card : member.more_cards) note(card.number, card.rate_mbps);
}

// Who does not name its card uses one of the others, or one that nobody names.
std::uint32_t rate_of(const CardRates& cards) {
  std::uint64_t named = 0;
  std::uint64_t unnamed = 0;
  for (const auto& [card, mbps] : cards) (card == 0 ? unnamed : named) += mbps;
  return static_cast<std::uint32_t>(
      std::min<std::uint64_t>(std::max(named, unnamed), std::numeric_limits<std::int32_t>::max()));
}

bool is_first_of_group(const Groups& groups, WorkerRank rank) {
  return groups.crew_of(groups.group_of(rank), Members()).front() == rank;
}

}  // namespace

std::vector<std::int64_t> shares_of(const std::vector<MachineLoad>& machines) {
  std::vector<std::int64_t> shares(machines.size(), 0);
  std::int64_t workers = 0;
  std::int64_t fastest = 0;
  bool any_server = false;
  for (const MachineLoad& machine : machines) {
    workers += machine.worker_count;
    fastest = std::max<std::int64_t>(fastest, machine.rate_mbps);
    any_server = any_server || machine.server_count > 0;
  }
  if (!any_server) return shares;
  if (fastest == 0) fastest = 1;
  workers = std::max<std::int64_t>(workers, 1);

  const auto ranges_within = [&](std::int64_t time) {
    std::vector<Range> ranges;
    for (const MachineLoad& machine : machines) {
      const std::int64_t rate =
          machine.rate_mbps == 0
              ? kRateUnit
              : std::max<std::int64_t>(1, machine.rate_mbps * kRateUnit / fastest);
      ranges.push_back(range_of(machine, workers, time * rate / kRateUnit));
    }
    return ranges;
  };
  const auto is_enough = [](const std::vector<Range>& ranges) {
    std::int64_t least = 0;
    std::int64_t most = 0;
    for (const Range& range : ranges) {
      if (range.least > range.most) return false;
      least += range.least;
      most += range.most;
    }
    return least <= kTensor && kTensor <= most;
  };
  std::int64_t too_short = 0;
  std::int64_t enough =
      2 * workers * kTensor * kRateUnit;  // the slowest card could carry everything
  while (enough - too_short > 1) {
    const std::int64_t middle = too_short + (enough - too_short) / 2;
    (is_enough(ranges_within(middle)) ? enough : too_short) = middle;
  }
  const std::vector<Range> ranges = ranges_within(enough);
  std::int64_t least = 0;
  std::int64_t slack = 0;
  for (const Range& range : ranges) {
    least += range.least;
    slack += range.most - range.least;
  }
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const std::int64_t room = ranges[i].most - ranges[i].least;
    shares[i] = ranges[i].least + (slack == 0 ? 0 : room * (kTensor - least) / slack);
  }
  return shares;
}

std::vector<wire::Slot> slots_of(const wire::Roster& roster) {
  const Groups groups = groups_of(roster);
  // Members that do not say where they are have machines of their own.
  std::map<std::uint64_t, std::size_t> known;
  std::vector<MachineLoad> machines;
  std::vector<std::size_t> machine_of;   // by member
  std::vector<std::uint64_t> shards_on;  // by machine
  std::vector<CardRates> cards_of;       // by machine
  std::uint64_t shard_count = 0;
  for (const wire::RosterMember& member : roster.members) {
    const auto found = known.find(member.machine);
    std::size_t place = machines.size();
    if (member.machine != 0 && found != known.end()) {
      place = found->second;
    } else {
      known[member.machine] = place;
      machines.emplace_back();
      shards_on.push_back(0);
      cards_of.emplace_back();
    }
    machine_of.push_back(place);
    note_cards(member, cards_of[place]);
    if (member.role == Role::kWorker && is_first_of_group(groups, WorkerRank(member.rank))) {
      ++machines[place].worker_count;
    }
    if (member.role == Role::kServer) ++machines[place].server_count;
    shards_on[place] += member.endpoints.size();
    shard_count += member.endpoints.size();
  }
  for (std::size_t place = 0; place < machines.size(); ++place) {
    machines[place].rate_mbps = rate_of(cards_of[place]);
  }
  const std::vector<std::int64_t> shares = shares_of(machines);
  const auto weight_of = [&](std::size_t machine) {
    const std::uint64_t unit = kShareUnit * shards_on[machine];
    const std::uint64_t share = static_cast<std::uint64_t>(shares[machine]);
    return std::min<std::uint64_t>((share * kMeanWeight * shard_count + unit / 2) / unit,
                                   Placement::kWeightMax);
  };

  std::vector<wire::Slot> slots;
  bool any = true;
  for (std::uint32_t shard = 0; std::exchange(any, false); ++shard) {
    for (std::size_t i = 0; i < roster.members.size(); ++i) {
      const wire::RosterMember& member = roster.members[i];
      if (member.role != Role::kServer || shard >= member.endpoints.size()) continue;
      any = true;
      const auto weight = static_cast<std::uint32_t>(weight_of(machine_of[i]));
      if (weight > 0) slots.push_back({member.rank, shard, weight});
    }
  }
  return slots;
}

std::vector<ShardPlace> shards_of(const wire::Roster& roster) {
  std::vector<const wire::RosterMember*> servers;
  for (const wire::RosterMember& member : roster.members) {
    if (member.role == Role::kServer) servers.push_back(&member);
  }
  std::vector<ShardPlace> places;
  for (const wire::Slot& slot : roster.slots) {
    const wire::RosterMember& server = *servers[slot.server];
    places.push_back({.relay = std::nullopt,
                      .server = ServerRank(slot.server),
                      .shard_of_server = slot.shard,
                      .endpoint = server.endpoints[slot.shard],
                      .host = server.host,
                      .weight = slot.weight,
                      .since = slot.since});
  }
  return places;
}

std::vector<std::uint32_t> weights_of(const std::vector<ShardPlace>& places) {
  std::vector<std::uint32_t> weights;
  for (const ShardPlace& place : places) weights.push_back(place.weight);
  return weights;
}

}  // namespace byteps
