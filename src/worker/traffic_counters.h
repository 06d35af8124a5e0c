// TrafficCounters: what a thread exchanges with the other ends of its connections. Counted by that thread,
// read by any.
#pragma once

#include <atomic>
#include <cstdint>

namespace byteps {

struct TrafficCounters {
  std::atomic<std::uint64_t> pushed_bytes{0};  // of tensors: handed to the transport, with repeats
  std::atomic<std::uint64_t> pulled_bytes{0};  // of answers
  std::atomic<std::uint64_t> pushed_wire_bytes{0};  // these two as they travel
  std::atomic<std::uint64_t> pulled_wire_bytes{0};
  std::atomic<std::uint64_t> encode_ns{0};  // of what is pushed coded; and decoding answers
  std::atomic<std::uint64_t> decode_ns{0};
  std::atomic<std::uint64_t> pushed_frames{0};    // with repeats
  std::atomic<std::uint64_t> wanted_messages{0};  // with which the other ends asked for frames
  std::atomic<std::uint64_t> reconnects{0};       // connections that were lost and made again
  std::atomic<std::uint64_t> shared_bytes{0};  // of those pushed and pulled: through shared memory
  std::atomic<std::uint64_t> rdma_bytes{0};    // by RDMA
  std::atomic<std::uint64_t> lost_servers{0};  // whose place another has taken
};

}  // namespace byteps
