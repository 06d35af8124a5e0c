#include "topology/plan.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace byteps::topology {
namespace {

std::int64_t part_of(std::int64_t one, std::int64_t other) {
  return one * other / kWhole;
}

class Loads {
 public:
  Loads(const Machine& machine, const Plan& plan)
      : machine_(machine), plan_(plan), loads_(machine.links.size(), 0) {}

  std::vector<std::int64_t> count() {
    reduced_ = kWhole - plan_.direct;
    rank_count_ = static_cast<std::int64_t>(machine_.ranks.size());
    for (std::size_t group = 0; group < plan_.groups.size(); ++group) {
      count_ring(plan_.groups[group]);
      for (const std::uint32_t rank : plan_.groups[group]) {
        count_copies(rank);
        count_sums(group, rank);
        count_card(machine_.ranks[rank], plan_.lead(group, rank));
      }
    }
    return std::move(loads_);
  }

 private:
  void carry(const Route& route, std::int64_t load) {
    for (const LinkIndex link : route) loads_[link] += load;
  }

  void count_ring(const std::vector<std::uint32_t>& ring) {
    if (ring.size() < 2) return;
    for (std::size_t i = 0; i < ring.size(); ++i) {
      const std::uint32_t rank = ring[i];
      const std::uint32_t next = ring[(i + 1) % ring.size()];
      const std::int64_t not_led = 2 * kWhole - plan_.weights[rank] - plan_.weights[next];
      carry(machine_.between(rank, next), part_of(reduced_, not_led));
    }
  }

  void count_copies(std::uint32_t rank) {
    const std::int64_t load = part_of(reduced_, plan_.weights[rank]) + plan_.direct;
    carry(machine_.ranks[rank].up, load);
    carry(machine_.ranks[rank].down, load);
  }

  void count_sums(std::size_t own_group, std::uint32_t rank) {
    const std::int64_t lead = plan_.lead(own_group, rank);
    const auto group_count = static_cast<std::int64_t>(plan_.groups.size());
    if (group_count > 1) loads_[machine_.ranks[rank].sums] += part_of(lead, reduced_) * group_count;
    if (rank_count_ > 1) {
      loads_[machine_.ranks[rank].sums] += part_of(lead, plan_.direct) * rank_count_;
    }
    if (machine_.node_pairs.empty()) return;
    for (std::size_t group = 0; group < plan_.groups.size(); ++group) {
      for (const std::uint32_t other : plan_.groups[group]) {
        const std::int64_t grouped =
            group == own_group ? 0 : part_of(reduced_, plan_.weights[other]);
        const std::int64_t load = part_of(lead, grouped + plan_.direct);
        const std::int16_t here = machine_.ranks[rank].node;
        const std::int16_t there = machine_.ranks[other].node;
        carry(machine_.between_nodes(there, here), load);
        carry(machine_.between_nodes(here, there), load);
      }
    }
  }

  void count_card(const Machine::Rank& rank, std::int64_t lead) {
    if (!rank.card) return;
    const Machine::Card& card = machine_.cards[*rank.card];
    carry(card.send, lead);
    carry(card.receive, lead);
    carry(machine_.between_nodes(rank.node, card.node), lead);
    carry(machine_.between_nodes(card.node, rank.node), lead);
  }

  const Machine& machine_;
  const Plan& plan_;
  std::vector<std::int64_t> loads_;
  std::int64_t reduced_ = 0;
  std::int64_t rank_count_ = 0;
};

}  // namespace

// With M of 2^20, 4096 ranks and 1 Mbit/s it stays below 2^58.
std::int64_t time_of(std::int64_t load, std::uint32_t rate_mbps) {
  return (load << kTimeBits) / rate_mbps;
}

std::int64_t Plan::copies() const {
  std::int64_t rank_count = 0;
  for (const auto& group : groups) rank_count += static_cast<std::int64_t>(group.size());
  return (kWhole - direct) * static_cast<std::int64_t>(groups.size()) + direct * rank_count;
}

std::vector<std::int64_t> loads_of(const Machine& machine, const Plan& plan) {
  return Loads(machine, plan).count();
}

Plan rated(const Machine& machine, Plan plan) {
  const std::vector<std::int64_t> loads = loads_of(machine, plan);
  std::int64_t longest = 0;
  for (std::size_t i = 0; i < loads.size(); ++i) {
    const std::int64_t time = time_of(loads[i], machine.links[i].rate_mbps);
    if (time <= longest) continue;
    longest = time;
    plan.slowest = machine.links[i].name;
  }
  const std::int64_t rate = longest == 0 ? kRateMbpsMax : (kWhole << kTimeBits) / longest;
  plan.rate_mbps = static_cast<std::uint32_t>(std::clamp<std::int64_t>(rate, 1, kRateMbpsMax));
  return plan;
}

}  // namespace byteps::topology
