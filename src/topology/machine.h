// Machine: the links of a machine, and which of them its ranks' bytes cross on their way. Made of the ranks' places,
// and of what nobody tells (Assumed): a pure function, the same for all who have the places.
//
// A link is one direction of something that carries so much a second, or of somebody who does so much:
//
//     a wire of PCIe      up (to the host) and down. A path of functions is
//                             root port | upper port . lower port | upper port . lower port | device
//                         where | is a wire, and . the inside of a switch
//     across              what a root complex passes on from one of its wires to another: into it and out of it. Less
//                         than the wires carry (80 of 105 Gbit/s between two GPUs of two switches, OSDI'20, section
// 4.2)
//     NVLink              of each device, out and in: all its links together
//     between two nodes   from the memory of one NUMA node to the other
//     a card              sends and receives
//     a rank's sums       bytes of contributions that it reads
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/place.h"

namespace byteps::topology {

// What /sys does not say. None of it was measured by us (docs/topology.md).
struct Assumed {
  std::uint32_t wire_percent = 83;        // of what a wire's lanes carry: 105 of 126 Gbit/s
  std::uint32_t unknown_wire = 126'030;   // of lanes that are not told: 16 of PCIe 3.0
  std::uint32_t across_percent = 76;      // of a wire's rate: 80 of 105
  std::uint32_t nvlink_mbps = 200'000;    // of one link
  std::uint32_t between_nodes = 160'000;  // one QPI of 9.6 GT/s has 154, one UPI of 10.4 166
  std::uint32_t sum_mbps = 80'000;        // of one rank
};

using LinkIndex = std::uint32_t;
using Route = std::vector<LinkIndex>;

struct Link {
  std::string name;
  std::uint32_t rate_mbps = 0;  // above 0
};

struct Machine {
  struct Rank {
    bool has_device = false;
    std::string device;  // its address
    Route up;            // device to host; empty: there is no device
    Route down;
    // The wire below the root complex, where devices share it: they are behind one switch.
    std::optional<LinkIndex> shared;
    Route across_out;  // from the device's wires through the root complex to others of them
    Route across_in;
    std::optional<std::uint32_t> island;  // of NVLink
    LinkIndex nvlink_out = 0;             // if it has one
    LinkIndex nvlink_in = 0;
    std::int16_t node = -1;
    std::optional<std::uint32_t> card;
    LinkIndex sums = 0;
  };
  struct Card {
    Route send;  // host to network
    Route receive;
    std::int16_t node = -1;
    std::uint32_t rate_mbps = 0;      // 0: not known; it is taken to be its wire's
    std::optional<LinkIndex> shared;  // as a rank's
  };
  struct NodePair {
    std::int16_t from, to;
    LinkIndex link;
  };

  std::vector<Link> links;
  std::vector<Rank> ranks;
  std::vector<Card> cards;
  std::vector<NodePair> node_pairs;
  std::vector<std::vector<std::uint32_t>>
      islands;             // ranks, in an order in which NVLink closes a ring
  bool can_group = false;  // each rank has a device of its own

  // From device to device: by NVLink, within a switch, or through the root complex.
  Route between(std::uint32_t from, std::uint32_t to) const;
  // From one node's memory to another's, or to a device there; empty: it is the same, or one is not known.
  Route between_nodes(std::int16_t from, std::int16_t to) const;
};

// Of the ranks of one machine, in order of rank.
Machine machine_of(const std::vector<Place>& places, const Assumed& assumed = {});

// Which of the cards a device should use: most of the way in common, then the same bus, the same node, the fastest; of
// equal ones devices take turns, this one being the `turn`-th. `cards` is not empty.
struct Found;
std::size_t nearest_card(const std::vector<Hop>& device, std::int16_t node,
                         const std::vector<Found>& cards, std::size_t turn);

// A rank, of as many as its machine has.
struct RankHere {
  std::size_t index = 0;
  std::size_t count = 1;
  std::vector<Hop> device;  // empty: it has none, or none is known
  std::int16_t node = -1;   // of its device or its CPUs; -1: of several, or not known
};
// Which of the cards are its own, at least one. `cards` is not empty, and they are meant to be used all, whatever their
// rates. Of the nearest ones, where these are at least a rank's equal share, else of all, ranks take one each, in turn;
// fewer ranks than cards take several.
std::vector<std::size_t> cards_of_rank(const RankHere& rank, const std::vector<Found>& cards);

}  // namespace byteps::topology
