// Survey: all GPUs and cards of a machine, and the places that ranks would have, one for each GPU; and a drawing of it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/place.h"
#include "topology/sysfs.h"

namespace byteps::topology {

// What NVLink joins a device with: peers_of() of nvml.h, or nothing.
using PeersOf = std::function<std::vector<Peer>(const PciAddress&)>;

struct Survey {
  std::vector<Found> gpus;
  std::vector<Found> cards;
  std::vector<Place> places;  // of each GPU, with the card nearest to it
};

Place place_of(const Found& gpu, const Found& card, std::vector<Peer> peers);
// Of a worker whose device has this address, and which reaches others by this interface; empty: by the card nearest to
// its device. Of a device of which the kernel tells nothing, as in some containers, the address alone.
Place place_at(const Sysfs& sysfs, const PciAddress& device, const std::string& interface,
               const PeersOf& peers_of);
Survey survey_of(const Sysfs& sysfs, const PeersOf& peers_of);

// A line for each node, each switch that several of them are behind, each GPU and each card:
//
//     node 0
//       switch 0000:03:00.0, wire of 126 Gbit/s
//         card ib0 0000:05:00.0, 100 Gbit/s, wire of 126 Gbit/s
//         GPU 0 0000:06:00.0, wire of 126 Gbit/s, 6 NVLinks
std::vector<std::string> drawing_of(const Survey& survey);

}  // namespace byteps::topology
