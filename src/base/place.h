// Place: where a worker's device and its network card are in its machine, as the kernel and the driver say it. A worker
// puts its place into its Join, and the roster has those of all; topology/machine.h makes a machine of the places of
// its workers. So whoever has the roster makes the same plan.
//
// Encoded, in at most kPlaceBytesMax bytes; numbers are little-endian:
//
//     u8   form, 1
//     u8   hops of the device's path, then each     u32 domain, u8 bus, u8 device * 8 + function, u32 Mbit/s
//     u8   hops of the card's path, then each       the same
//     i16  NUMA node of the device, i16 of the card; -1: not known
//     u32  the card's rate in Mbit/s; 0: not known
//     u8   peers, then each                          u32 domain, u8 bus, u8 device * 8 + function, u8 links
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace byteps::topology {

// 0000:03:08.0, or 00000000:03:08.0 as NVML writes it.
struct PciAddress {
  std::uint32_t domain = 0;
  std::uint8_t bus = 0;
  std::uint8_t slot = 0;  // device * 8 + function

  auto operator<=>(const PciAddress&) const = default;
  std::string text() const;
  static std::optional<PciAddress> parse(std::string_view text);
};

// A function on the way from the root complex to a device, and the link that it is an end of: below a root port and the
// lower ports of a switch, above all others.
struct Hop {
  PciAddress address;
  std::uint32_t rate_mbps = 0;  // what this end of it could do, in each direction; 0: not known

  bool operator==(const Hop&) const = default;
};

// A device's neighbour on NVLink: another one, or an NVSwitch.
struct Peer {
  PciAddress address;
  std::uint8_t links = 0;

  bool operator==(const Peer&) const = default;
};

struct Place {
  // From below the root complex to the device itself; empty: there is none, or it is not known.
  std::vector<Hop> device;
  std::vector<Hop> card;
  std::int16_t device_node = -1;
  std::int16_t card_node = -1;
  std::uint32_t card_mbps = 0;
  std::vector<Peer> peers;  // in order of address

  bool operator==(const Place&) const = default;
};

inline constexpr std::size_t kHopsMax = 14;
inline constexpr std::size_t kPeersMax = 24;
inline constexpr std::size_t kPlaceBytesMax = 512;
inline constexpr std::int16_t kNodeMax = 4095;
inline constexpr std::uint32_t kRateMbpsMax = 100'000'000;

// Of a place within those limits.
std::vector<std::byte> encode(const Place& place);
// Nothing for bytes that encode() does not give.
std::optional<Place> decode(std::span<const std::byte> bytes);

}  // namespace byteps::topology
