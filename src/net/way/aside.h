// What two transports say to each other beside the messages: the first byte of an aside. Negotiation (negotiation.h)
// knows the two that all ways share; of the others each belongs to the way that is named beside it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace byteps::way {

enum class Aside : std::uint8_t {
  kInvite = 1,   // shared memory: its opening
  kReady = 2,    // ... and its answer
  kSwitch = 3,   // all ways
  kDecline = 4,  // all ways
  kOffer = 5,    // RDMA
  kAccept = 6,
};

// Why a side declines: the body of a refusal (net/frame/frame.h), cut to what an aside holds. Nothing is said of what
// is only not wanted, or when there is nothing to say: then it decodes as kUnsupported, "it does not want to".
std::vector<std::byte> encode_reason(const Status& why);
Status decode_reason(std::span<const std::byte> content);

// It must not say this now: the connection ends.
Status out_of_turn();

}  // namespace byteps::way
