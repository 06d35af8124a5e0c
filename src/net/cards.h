// Cards: by which of this machine's network cards a connection goes, where DMLC_INTERFACE names several.
//
// It goes by a card in whose subnet the other side is: one of this process's own, else another of the list. If no
// subnet has it, it is behind a router, and goes from the address of one; which card its packets leave by then is for
// the machine's routes to say (ip rule). Of several cards it takes the one with the fewest connections, so that those
// to the shards of a server take turns, also when some are made again. A card that is down is left out.
//
// Its address chooses the card, as long as no other interface is in the same subnet: the kernel then sends by the first
// of these, whatever the address. There the socket is held to the device as well (SO_BINDTODEVICE). What stays within
// the machine goes by no card.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/card.h"
#include "base/status.h"
#include "net/address.h"

namespace byteps {

// One that an interface has; none of link scope, which say by themselves where they lead.
struct InterfaceAddress {
  std::string interface;
  SocketAddress address;          // without a port
  std::uint32_t subnet_bits = 0;  // so many from the front are those of its subnet
  bool is_up = true;
};
// Of all interfaces. Empty where the kernel does not tell.
std::vector<InterfaceAddress> interface_addresses();

struct CardChoice {
  std::string interface;
  SocketAddress from;
};
using ConnectionsOf = std::function<std::size_t(const std::string& interface)>;
// For a connection to `to`; nullopt: by none, for it stays within the machine, or no card of the list is up and has an
// address of that family.
std::optional<CardChoice> choose_card(const CardList& cards,
                                      const std::vector<InterfaceAddress>& machine,
                                      const SocketAddress& to, const ConnectionsOf& connections_of);

// The card of the list that has the address `here` of a connection, if that does not choose it by itself; else empty.
std::string card_to_hold(const CardList& cards, const std::vector<InterfaceAddress>& machine,
                         const SocketAddress& here, const SocketAddress& there);

// Two cards of the list that are in one subnet, by IPv4: which the kernel must be told to keep apart, for by itself it
// answers at either card for the addresses of both.
std::optional<std::pair<std::string, std::string>> cards_of_one_subnet(
    const CardList& cards, const std::vector<InterfaceAddress>& machine);

}  // namespace byteps
