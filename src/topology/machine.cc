#include "topology/machine.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "topology/sysfs.h"

namespace byteps::topology {
namespace {

constexpr std::size_t kRingMax = 16;  // longer ones are not looked for

std::size_t in_common(const std::vector<Hop>& a, const std::vector<Hop>& b) {
  std::size_t hops = 0;
  while (hops < a.size() && hops < b.size() && a[hops].address == b[hops].address) ++hops;
  return hops;
}

// Below one root complex, or on the one bus that a virtual machine makes of a switch.
bool are_of_one_bus(const std::vector<Hop>& a, const std::vector<Hop>& b) {
  return !a.empty() && !b.empty() && a[0].address.domain == b[0].address.domain &&
         a[0].address.bus == b[0].address.bus;
}

// Places of the best by `merit`, which can be compared.
template <typename Merit>
std::vector<std::size_t> best_of(const std::vector<Found>& cards, Merit&& merit) {
  std::vector<std::size_t> best;
  for (std::size_t i = 0; i < cards.size(); ++i) {
    if (!best.empty() && merit(cards[i]) < merit(cards[best.front()])) continue;
    if (!best.empty() && merit(cards[best.front()]) < merit(cards[i])) best.clear();
    best.push_back(i);
  }
  return best;
}

// Nearer is larger.
auto nearness(const std::vector<Hop>& device, std::int16_t node, const Found& card) {
  const bool is_of_node = card.node >= 0 && card.node == node;
  return std::tuple(in_common(device, card.path), are_of_one_bus(device, card.path), is_of_node);
}

// A ring of NVLink through all of an island's ranks, by trying.
class RingSearch {
 public:
  explicit RingSearch(std::vector<std::vector<bool>> is_joined)
      : is_joined_(std::move(is_joined)) {}

  bool find() {
    ring_ = {0};
    return extend();
  }
  const std::vector<std::uint32_t>& ring() const { return ring_; }

 private:
  bool extend() {
    const auto size = static_cast<std::uint32_t>(is_joined_.size());
    if (ring_.size() == size) return size <= 2 || is_joined_[ring_.back()][ring_.front()];
    if (++steps_ > kStepsMax) return false;
    for (std::uint32_t next = 1; next < size; ++next) {
      if (!is_joined_[ring_.back()][next]) continue;
      if (std::find(ring_.begin(), ring_.end(), next) != ring_.end()) continue;
      ring_.push_back(next);
      if (extend()) return true;
      ring_.pop_back();
    }
    return false;
  }

  static constexpr std::uint32_t kStepsMax = 100'000;
  std::vector<std::vector<bool>> is_joined_;
  std::vector<std::uint32_t> ring_;
  std::uint32_t steps_ = 0;
};

class Builder {
 public:
  Builder(const std::vector<Place>& places, const Assumed& assumed)
      : places_(places), assumed_(assumed) {}

  Machine build() {
    for (const Place& place : places_) add(place);
    find_shared();
    find_islands();
    std::set<std::string> devices;
    for (const Machine::Rank& rank : machine_.ranks) devices.insert(rank.device);
    machine_.can_group = devices.size() == places_.size() && !devices.contains("");
    return std::move(machine_);
  }

 private:
  struct Wire {
    LinkIndex up;
    LinkIndex down;
    LinkIndex across_out;
    LinkIndex across_in;
    std::set<PciAddress> ends;  // devices and cards behind it
  };

  LinkIndex link(std::string name, std::uint64_t rate_mbps) {
    const auto rate = std::clamp<std::uint64_t>(rate_mbps, 1, kRateMbpsMax);
    machine_.links.push_back({std::move(name), static_cast<std::uint32_t>(rate)});
    return static_cast<LinkIndex>(machine_.links.size() - 1);
  }

  // The wire above this function, whose other end may say less.
  Wire& wire(const Hop& below, const Hop* above, bool is_first) {
    const auto found = wires_.find(below.address);
    if (found != wires_.end()) return found->second;
    std::uint64_t mbps = below.rate_mbps;
    if (above != nullptr && above->rate_mbps > 0) {
      mbps = mbps == 0 ? above->rate_mbps : std::min<std::uint64_t>(mbps, above->rate_mbps);
    }
    if (mbps == 0) mbps = assumed_.unknown_wire;
    mbps = mbps * assumed_.wire_percent / 100;
    const std::string name = below.address.text();
    Wire wire{.up = link(name + " up", mbps),
              .down = link(name + " down", mbps),
              .across_out = 0,
              .across_in = 0,
              .ends = {}};
    if (is_first) {
      wire.across_out = link(name + " across, out", mbps * assumed_.across_percent / 100);
      wire.across_in = link(name + " across, in", mbps * assumed_.across_percent / 100);
    }
    return wires_.emplace(below.address, std::move(wire)).first->second;
  }

  // The wires of a path from the host on. Of a device within a switch, or on a bus without ports, the own one.
  std::vector<Wire*> wires_of(const std::vector<Hop>& path) {
    std::vector<Wire*> wires;
    for (std::size_t i = 0; i < path.size(); i += 2) {
      const bool is_last = i + 1 == path.size();
      const Hop& below = is_last ? path[i] : path[i + 1];
      wires.push_back(&wire(below, is_last ? nullptr : &path[i], i == 0));
      wires.back()->ends.insert(path.back().address);
    }
    return wires;
  }

  static void route(const std::vector<Wire*>& wires, Route& up, Route& down) {
    for (const Wire* wire : wires) {
      up.insert(up.begin(), wire->up);
      down.push_back(wire->down);
    }
  }

  std::optional<std::uint32_t> card_of(const Place& place) {
    if (place.card.empty() && place.card_mbps == 0) return std::nullopt;
    const PciAddress address = place.card.empty() ? PciAddress() : place.card.back().address;
    const auto [known, is_new] =
        cards_.emplace(address, static_cast<std::uint32_t>(machine_.cards.size()));
    if (!is_new) return known->second;
    Machine::Card card;
    card.node = place.card_node;
    Route up;
    route(wires_of(place.card), up, card.send);
    card.rate_mbps = place.card_mbps;
    const std::uint32_t rate =
        card.rate_mbps > 0 ? card.rate_mbps : machine_.links[up.front()].rate_mbps;
    const std::string name = place.card.empty() ? "the network" : "card " + address.text();
    card.send.push_back(link(name + " sends", rate));
    card.receive = up;
    card.receive.insert(card.receive.begin(), link(name + " receives", rate));
    machine_.cards.push_back(std::move(card));
    card_paths_.push_back(place.card);
    return known->second;
  }

  void add(const Place& place) {
    Machine::Rank rank;
    const std::string number = std::to_string(machine_.ranks.size());
    rank.has_device = !place.device.empty();
    rank.node = place.device_node;
    if (rank.has_device) {
      rank.device = place.device.back().address.text();
      const std::vector<Wire*> wires = wires_of(place.device);
      route(wires, rank.up, rank.down);
      rank.across_out = {wires.front()->across_out};
      rank.across_in = {wires.front()->across_in};
    }
    rank.card = card_of(place);
    rank.sums = link("sums of rank " + number, assumed_.sum_mbps);
    nodes_.insert(rank.node);
    if (rank.card) nodes_.insert(machine_.cards[*rank.card].node);
    machine_.ranks.push_back(std::move(rank));
  }

  void find_shared() {
    const auto shared = [&](const std::vector<Hop>& path) -> std::optional<LinkIndex> {
      if (path.size() < 3) return std::nullopt;
      return wires_.at(path[1].address).up;
    };
    for (std::size_t i = 0; i < places_.size(); ++i) {
      machine_.ranks[i].shared = shared(places_[i].device);
    }
    for (std::size_t i = 0; i < machine_.cards.size(); ++i) {
      machine_.cards[i].shared = shared(card_paths_[i]);
    }
    nodes_.erase(-1);
    for (const std::int16_t from : nodes_) {
      for (const std::int16_t to : nodes_) {
        if (from == to) continue;
        const std::string name = "node " + std::to_string(from) + " to " + std::to_string(to);
        machine_.node_pairs.push_back({from, to, link(name, assumed_.between_nodes)});
      }
    }
  }

  bool are_joined(std::size_t a, std::size_t b) const {
    if (places_[a].device.empty() || places_[b].device.empty()) return false;
    for (const Peer& peer : places_[a].peers) {
      if (peer.address == places_[b].device.back().address) return true;
      const bool is_device = std::any_of(places_.begin(), places_.end(), [&](const Place& place) {
        return !place.device.empty() && place.device.back().address == peer.address;
      });
      if (is_device) continue;  // otherwise it is a switch, or a device that is no rank's
      for (const Peer& other : places_[b].peers) {
        if (other.address == peer.address) return true;
      }
    }
    return false;
  }

  // Ranks that NVLink joins, each an island if a ring goes through it.
  void find_islands() {
    std::vector<bool> is_seen(places_.size(), false);
    for (std::uint32_t first = 0; first < places_.size(); ++first) {
      if (is_seen[first]) continue;
      std::vector<std::uint32_t> island = {first};
      is_seen[first] = true;
      for (std::size_t i = 0; i < island.size(); ++i) {
        for (std::uint32_t other = 0; other < places_.size(); ++other) {
          if (is_seen[other] || !are_joined(island[i], other)) continue;
          is_seen[other] = true;
          island.push_back(other);
        }
      }
      std::sort(island.begin(), island.end());
      if (island.size() > 1 && island.size() <= kRingMax) add_island(island);
    }
  }

  void add_island(const std::vector<std::uint32_t>& island) {
    std::vector<std::vector<bool>> is_joined;
    for (const std::uint32_t a : island) {
      is_joined.emplace_back();
      for (const std::uint32_t b : island) is_joined.back().push_back(are_joined(a, b));
    }
    RingSearch search(std::move(is_joined));
    if (!search.find()) return;
    std::vector<std::uint32_t> ring;
    for (const std::uint32_t place : search.ring()) ring.push_back(island[place]);
    for (const std::uint32_t rank : ring) {
      std::uint64_t links = 0;
      for (const Peer& peer : places_[rank].peers) links += peer.links;
      Machine::Rank& member = machine_.ranks[rank];
      member.island = static_cast<std::uint32_t>(machine_.islands.size());
      member.nvlink_out =
          link("NVLink of " + member.device + ", out", links * assumed_.nvlink_mbps);
      member.nvlink_in = link("NVLink of " + member.device + ", in", links * assumed_.nvlink_mbps);
    }
    machine_.islands.push_back(std::move(ring));
  }

  const std::vector<Place>& places_;
  const Assumed assumed_;
  Machine machine_;
  std::map<PciAddress, Wire> wires_;  // by the function below
  std::map<PciAddress, std::uint32_t> cards_;
  std::vector<std::vector<Hop>> card_paths_;
  std::set<std::int16_t> nodes_;
};

}  // namespace

Machine machine_of(const std::vector<Place>& places, const Assumed& assumed) {
  return Builder(places, assumed).build();
}

Route Machine::between(std::uint32_t from, std::uint32_t to) const {
  const Rank& a = ranks[from];
  const Rank& b = ranks[to];
  if (a.island && a.island == b.island) return {a.nvlink_out, b.nvlink_in};
  std::size_t common = 0;  // wires above the switch that both are behind
  while (common < a.up.size() && common < b.up.size() &&
         a.up[a.up.size() - 1 - common] == b.up[b.up.size() - 1 - common]) {
    ++common;
  }
  Route route(a.up.begin(), a.up.end() - static_cast<std::ptrdiff_t>(common));
  if (common == 0) {
    route.insert(route.end(), a.across_out.begin(), a.across_out.end());
    const Route nodes = between_nodes(a.node, b.node);
    route.insert(route.end(), nodes.begin(), nodes.end());
    route.insert(route.end(), b.across_in.begin(), b.across_in.end());
  }
  route.insert(route.end(), b.down.begin() + static_cast<std::ptrdiff_t>(common), b.down.end());
  return route;
}

Route Machine::between_nodes(std::int16_t from, std::int16_t to) const {
  for (const NodePair& pair : node_pairs) {
    if (pair.from == from && pair.to == to) return {pair.link};
  }
  return {};
}

std::size_t nearest_card(const std::vector<Hop>& device, std::int16_t node,
                         const std::vector<Found>& cards, std::size_t turn) {
  const std::vector<std::size_t> best = best_of(cards, [&](const Found& card) {
    return std::tuple(nearness(device, node, card), card.rate_mbps);
  });
  return best[turn % best.size()];
}

std::vector<std::size_t> cards_of_rank(const RankHere& rank, const std::vector<Found>& cards) {
  std::vector<std::size_t> near =
      best_of(cards, [&](const Found& card) { return nearness(rank.device, rank.node, card); });
  if (near.size() * rank.count < cards.size()) {
    near.resize(cards.size());
    std::iota(near.begin(), near.end(), std::size_t{0});
  }
  const std::size_t takers = std::min(rank.count, near.size());
  std::vector<std::size_t> own;
  for (std::size_t at = rank.index % takers; at < near.size(); at += takers) {
    own.push_back(near[at]);
  }
  return own;
}

}  // namespace byteps::topology
