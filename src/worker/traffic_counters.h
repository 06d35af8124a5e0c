// TrafficCounters: tensor bytes that a thread exchanges with the other ends of its connections. Counted by that thread,
// read by any.
#pragma once

#include <atomic>
#include <cstdint>

namespace byteps {

struct TrafficCounters {
  std::atomic<std::uint64_t> pushed_bytes{0};  // handed to the transport, repeats included
  std::atomic<std::uint64_t> pulled_bytes{0};  // of answers
  std::atomic<std::uint64_t> reconnects{0};    // connections that were lost and made again
  std::atomic<std::uint64_t> shared_bytes{0};  // of those pushed and pulled: through shared memory
  std::atomic<std::uint64_t> rdma_bytes{0};    // by RDMA
};

}  // namespace byteps
