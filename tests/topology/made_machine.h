// Machines as tests describe them: switches with devices, NVLink, cards, two nodes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/place.h"
#include "base/prng.h"
#include "topology/machine.h"

namespace byteps::topology {

// So many Mbit/s of lanes that a wire of this rate is what machine_of() makes of it.
inline std::uint32_t lanes_of(std::uint32_t mbps) {
  return (mbps * 100 + Assumed().wire_percent - 1) / Assumed().wire_percent;
}

struct MadeCard {
  int at_switch = -1;  // -1: at a root port of its own
  std::int16_t node = 0;
  std::uint32_t mbps = 100'000;
};

struct MadeMachine {
  struct Switch {
    std::uint32_t devices = 4;
    std::int16_t node = 0;
    std::uint32_t wire_mbps = 105'000;    // to the host
    std::uint32_t device_mbps = 105'000;  // of each device
  };
  std::vector<Switch> switches;
  std::vector<MadeCard> cards;
  bool has_switches = true;   // false: each device has a root port of its own
  std::uint32_t nvlinks = 0;  // of each device, through a common NVSwitch
  Assumed assumed;

  // A rank for each device. Ranks use the card of their switch, else one of their node, else the first.
  std::vector<Place> places() const {
    std::vector<Place> places;
    for (std::size_t i = 0; i < switches.size(); ++i) {
      for (std::uint32_t device = 0; device < switches[i].devices; ++device) {
        Place place;
        place.device = path(i, 16 + device, switches[i].device_mbps);
        if (!has_switches) {
          place.device = {
              {{.domain = 1, .bus = bus(i), .slot = static_cast<std::uint8_t>(device)}, 0},
              {{.domain = 2, .bus = bus(i), .slot = static_cast<std::uint8_t>(device)},
               lanes_of(switches[i].device_mbps)}};
        }
        place.device_node = switches[i].node;
        if (nvlinks > 0) {
          place.peers = {{{.domain = 9, .bus = 0, .slot = 0}, static_cast<std::uint8_t>(nvlinks)}};
        }
        set_card(i, device, place);
        places.push_back(place);
      }
    }
    return places;
  }
  Machine machine() const { return machine_of(places(), assumed); }

 private:
  static std::uint8_t bus(std::size_t place) { return static_cast<std::uint8_t>(8 * (place + 1)); }

  // Root port, upper port, lower port, device.
  std::vector<Hop> path(std::size_t place, std::uint32_t slot, std::uint32_t mbps) const {
    const auto number = static_cast<std::uint8_t>(slot);
    const std::uint32_t wire = lanes_of(switches[place].wire_mbps);
    return {{{.domain = 0, .bus = bus(place), .slot = 0}, wire},
            {{.domain = 0, .bus = static_cast<std::uint8_t>(bus(place) + 1), .slot = 0}, wire},
            {{.domain = 0, .bus = static_cast<std::uint8_t>(bus(place) + 2), .slot = number}, 0},
            {{.domain = 0, .bus = static_cast<std::uint8_t>(bus(place) + 3), .slot = number},
             lanes_of(mbps)}};
  }

  void set_card(std::size_t place, std::uint32_t device, Place& rank) const {
    if (cards.empty()) return;
    std::vector<std::size_t> near;
    const auto find = [&](auto is_near) {
      for (std::size_t i = 0; near.empty() && i < cards.size(); ++i) {
        for (std::size_t j = i; j < cards.size(); ++j) {
          if (is_near(cards[j])) near.push_back(j);
        }
        break;
      }
    };
    if (has_switches)
      find([&](const MadeCard& card) { return card.at_switch == static_cast<int>(place); });
    find([&](const MadeCard& card) { return card.node == switches[place].node; });
    find([&](const MadeCard&) { return true; });
    const std::size_t chosen = near[device % near.size()];
    const MadeCard& card = cards[chosen];
    constexpr std::uint32_t kEnough = 1'000'000;  // its wire is no limit
    if (card.at_switch >= 0 && has_switches) {
      rank.card = path(static_cast<std::size_t>(card.at_switch), static_cast<std::uint32_t>(chosen),
                       kEnough);
    } else {
      rank.card = {
          {{.domain = 3, .bus = static_cast<std::uint8_t>(chosen), .slot = 0}, lanes_of(kEnough)},
          {{.domain = 4, .bus = static_cast<std::uint8_t>(chosen), .slot = 0}, lanes_of(kEnough)}};
    }
    rank.card_node = card.node;
    rank.card_mbps = card.mbps;
  }
};

// ---- the machines of the table in docs/topology.md

inline MadeMachine two_switches_of_four() {
  return {.switches = {{.node = 0}, {.node = 1}}, .cards = {{.mbps = 100'000}}, .assumed = {}};
}

inline MadeMachine nvlink_of_eight() {
  return {.switches = {{.devices = 2, .node = 0},
                       {.devices = 2, .node = 0},
                       {.devices = 2, .node = 1},
                       {.devices = 2, .node = 1}},
          .cards = {{.at_switch = 0, .mbps = 100'000}},
          .nvlinks = 6,
          .assumed = {}};
}

inline MadeMachine two_cards() {
  MadeMachine machine = nvlink_of_eight();
  machine.cards = {{.node = 0, .mbps = 100'000}, {.node = 1, .mbps = 100'000}};
  return machine;
}

inline MadeMachine drawn_machine(Prng& prng) {
  constexpr std::uint32_t kWires[] = {52'000, 105'000, 105'000, 210'000, 420'000};
  constexpr std::uint32_t kCards[] = {10'000, 25'000, 50'000, 100'000, 100'000, 200'000, 400'000};
  MadeMachine made;
  const std::uint32_t wire = kWires[prng.below(5)];
  const std::uint64_t switch_count = 1 + prng.below(4);
  const std::uint32_t devices =
      static_cast<std::uint32_t>(1 + prng.below(switch_count > 2 ? 3 : 5));
  const bool is_even = prng.below(4) != 0;
  const std::uint64_t node_count = 1 + prng.below(2);
  for (std::uint64_t i = 0; i < switch_count; ++i) {
    MadeMachine::Switch one{.devices = devices, .wire_mbps = wire, .device_mbps = wire};
    one.node = static_cast<std::int16_t>(i * node_count / switch_count);
    if (!is_even) {
      one.devices = static_cast<std::uint32_t>(1 + prng.below(4));
      one.wire_mbps = kWires[prng.below(5)];
      one.device_mbps = kWires[prng.below(5)];
    }
    made.switches.push_back(one);
  }
  const std::uint64_t card_count = prng.below(3) == 0 ? 1 + prng.below(4) : 1;
  const std::uint32_t rate = kCards[prng.below(7)];
  for (std::uint64_t i = 0; i < card_count; ++i) {
    MadeCard card{.mbps = is_even ? rate : kCards[prng.below(7)]};
    if (prng.below(2) == 0) card.at_switch = static_cast<int>(prng.below(switch_count));
    const std::uint64_t node = prng.below(node_count);
    card.node = card.at_switch >= 0 ? made.switches[static_cast<std::size_t>(card.at_switch)].node
                                    : static_cast<std::int16_t>(node);
    made.cards.push_back(card);
  }
  made.has_switches = prng.below(8) != 0;
  made.nvlinks = prng.below(4) == 0 ? 6 : 0;
  constexpr std::uint32_t kSums[] = {40'000, 80'000, 160'000};
  made.assumed.sum_mbps = kSums[prng.below(3)];
  return made;
}

}  // namespace byteps::topology
