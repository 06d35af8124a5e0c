// What the kernel says of a machine's devices: /sys under a root that is given, so that tests have machines of others
// (tests/topology/machines).
//
// Nothing here is an error: what is not there, or is not what it should be, is not known.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/place.h"

namespace byteps::topology {

// A device, or the card of a network interface.
struct Found {
  std::string name;       // of the interface; of a GPU "GPU"
  std::vector<Hop> path;  // from below the root complex to it
  std::int16_t node = -1;
  std::uint32_t rate_mbps = 0;  // what the interface says of itself
};

class Sysfs {
 public:
  // "/sys", or a folder that looks like it.
  explicit Sysfs(std::string root) : root_(std::move(root)) {}

  // The device at this address (as drivers write it); empty path: the kernel knows no such device.
  Found device(const std::string& pci_address) const;
  // The card of this interface; empty path: it has none, or none at PCI.
  Found card(const std::string& interface) const;

  // All GPUs (PCI's class of displays, of vendors who make those that compute) and all cards, in order of address. What
  // virtual functions of a card are is left out.
  std::vector<Found> gpus() const;
  std::vector<Found> cards() const;

  // The NUMA node that has all of these CPUs; -1: none has.
  std::int16_t node_of(const std::vector<std::uint32_t>& cpus) const;

 private:
  Found at(const std::string& folder) const;
  std::uint32_t rate_at(const std::string& folder) const;
  std::string line(const std::string& file) const;

  std::string root_;
};

}  // namespace byteps::topology
