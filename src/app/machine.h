// Which machine this process is on, which of its network cards it uses, and how fast that is: what the servers' shares
// depend on (member/shares.h).
#pragma once

#include <cstdint>
#include <string>

namespace byteps {

// The same for all processes of one network namespace of one running kernel: they can share memory. 0 when the kernel
// does not say.
std::uint64_t machine_number();

struct NetworkCard {
  std::uint64_t number =
      0;  // the same for all processes of this machine that use it; 0: no interface has the address
  std::uint32_t rate_mbps =
      0;  // 0: not known, or not a card's: what a virtual interface says of itself means nothing
};
// Of the interface that has this address (text).
NetworkCard card_of(const std::string& own_address);

}  // namespace byteps
