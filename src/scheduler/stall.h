// Stall: whether workers wait for each other for ever (docs/protocol.md, Stalls). Pure functions of what they reported.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>

#include "net/wire.h"

namespace byteps {

struct StalledWorker {
  std::uint32_t rank = 0;
  const wire::Stalled* report = nullptr;
};

// The sentence for people when it is proven that none of these workers can go on: each is stalled, and everything it
// waits for has not been begun by another of them. They must be all that have not left; `arrived` are the ranks that
// have come to the open barrier, `barrier`. Empty: not proven.
std::string stall_text(std::span<const StalledWorker> workers,
                       const std::set<std::uint32_t>& arrived, std::uint64_t barrier);

}  // namespace byteps
