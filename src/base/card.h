// Network cards, as the processes of a job know them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace byteps {

struct NetworkCard {
  std::uint64_t number = 0;  // the same for all processes of its machine that use it; 0: not known
  std::uint32_t rate_mbps = 0;  // in each direction; 0: not known
  bool operator==(const NetworkCard&) const = default;
};

// The interfaces of a machine that connections are to be spread over (net/cards.h); empty: where they go is for the
// machine's routes to say.
struct CardList {
  std::vector<std::string> all;  // as they were named
  std::vector<std::string>
      own;  // of these, the ones that this process uses where it has the choice
  bool empty() const { return all.empty(); }
};

}  // namespace byteps
