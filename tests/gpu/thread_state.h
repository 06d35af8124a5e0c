// What CUDA keeps per thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace fake_gpu {

struct Context;

// Trivially destroyed: it is used while the process ends.
struct ThreadState {
  static constexpr std::size_t kDepthMax = 64;

  std::uint64_t generation = 0;  // of the engine whose contexts these are
  std::array<Context*, kDepthMax> contexts{};
  std::size_t depth = 0;      // the last of so many is current
  unsigned capture_mode = 0;  // global
  bool is_in_host_function = false;
};

// The calling thread's, as new where the engine was reset.
ThreadState& thread_state(std::uint64_t generation);

}  // namespace fake_gpu
