// Which machine this process is on, and how fast its network card is: what the servers' shares depend on
// (member/shares.h).
#pragma once

#include <cstdint>
#include <string>

namespace byteps {

// The same for all processes of one network namespace of one running kernel: they share a card. 0 when the kernel does
// not say.
std::uint64_t machine_number();

// Of the interface that has this address (text): the card's rate, Mbit/s. 0 when it is not known, or not a card's:
// what a virtual interface says of itself means nothing.
std::uint32_t card_mbps(const std::string& own_address);

}  // namespace byteps
