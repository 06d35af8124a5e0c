// What a worker's thread asks of the thread that speaks with devices, and what that one reports (device_loop.h). What
// is ordered is begun in its order; each order has one report, when it is over.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "device/device.h"

namespace byteps::device {

// A tensor on a device, as a call gives it away.
struct Place {
  Device* device = nullptr;  // null: the tensor is in host memory
  std::uint64_t lane = 0;    // the call's stream: what is recorded on one happens in order
  Event ready;               // what that had to do before
};

struct Order {
  enum class Kind : std::uint8_t {
    kAwait,   // reports when `ready` has happened
    kOut,     // from the device to the host
    kIn,      // from the host to the device
    kWithin,  // from `source` to `address`, both on the device
  };
  Kind kind = Kind::kAwait;
  std::uint64_t operation = 0;  // repeated in the report, as the next two
  std::uint32_t part = 0;
  std::uint32_t chunk = 0;
  Device* device = nullptr;
  std::uint64_t lane = 0;  // kAwait: the Place's
  Event ready;
  abi::DeviceAddress address = 0;
  abi::DeviceAddress source = 0;
  std::byte* host = nullptr;
  std::size_t bytes = 0;
};

inline constexpr std::uint64_t kNoOperation =
    0;  // of a report: of none that was ordered here; it has failed

struct Report {
  Order::Kind kind = Order::Kind::kAwait;
  std::uint64_t operation = 0;
  std::uint32_t part = 0;
  std::uint32_t chunk = 0;
  Status result;  // not ok: the device has failed
};

}  // namespace byteps::device
