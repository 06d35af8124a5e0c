// Which machine this process is on, which of its network cards it uses, and how fast these are: what the servers'
// shares depend on (member/shares.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/card.h"
#include "base/config.h"

namespace byteps {

// The same for all processes of one network namespace of one running kernel: they can share memory. 0 when the kernel
// does not say.
std::uint64_t machine_number();

// Of the interface that has this address (text). Number 0: none has it. Rate 0: not known, or not a card's: what a
// virtual interface says of itself means nothing.
NetworkCard card_of(const std::string& own_address);

// Which of these interfaces are a worker's own: those nearest to the CPUs that it may run on, in turn with the other
// workers of its machine (topology/machine.h).
std::vector<std::string> interfaces_of_worker(const std::vector<std::string>& interfaces,
                                              const LocalPlace& local);

// What makes the kernel answer at either of two cards of one subnet for the addresses of both, so that they are not
// used alike, with the remedy; empty: nothing.
std::string trouble_of_one_subnet(const CardList& cards);

}  // namespace byteps
