// Where this worker is in its machine: what it tells the others in its Join (base/place.h).
#pragma once

#include <optional>
#include <string>

#include "app/env.h"
#include "base/config.h"
#include "base/place.h"
#include "base/time.h"

namespace byteps {

struct PlaceQuestion {
  LocalPlace local;
  std::optional<std::string> visible;  // CUDA_VISIBLE_DEVICES
  std::string interface;               // DMLC_INTERFACE; empty: none, or several
  std::uint32_t card_mbps = 0;         // BYTEPS_NIC_MBPS; 0: not said
  std::string sys = "/sys";
  std::string nvml_library{};  // empty: where the system has it
};
// Of what a worker's settings say.
PlaceQuestion place_question(const ParsedEnvironment& parsed, const Environment& environment);

// Without a device: it has none, or that cannot be told. Nothing here is an error, for a job can do without. Whoever
// has to be asked may not answer: it takes at most so long, and then there is no place.
inline constexpr TimeNs kPlaceNs = 2 * kSecond;
topology::Place own_place(const PlaceQuestion& question, TimeNs at_most_ns = kPlaceNs);

}  // namespace byteps
