// What the fake GPU is told to do wrong, what it finds wrong, and how often it was called.
//
// Settings come from the environment, and are read when the engine begins (or begins again, fake_gpu_reset):
//
//   FAKE_GPU_COUNT         devices of the machine (2)
//   FAKE_GPU_OUT_MBPS      10^6 bytes/s of each device's engine for copies to the host (0: as fast as memory)
//   FAKE_GPU_IN_MBPS       the same for copies from the host
//   FAKE_GPU_LATENCY_US    time of every copy beside its bytes (5)
//   FAKE_GPU_KERNEL_US     time of each operation that Python computes for a kernel (0)
//   FAKE_GPU_MEMORY_MB     memory of a device (4096)
//   FAKE_GPU_SEED          of the moments at which copies happen (1)
//   FAKE_GPU_ON_VIOLATION  exit (86, at once), abort, or count
//   FAKE_GPU_FAIL          symbol:n=code,...   the n-th call of the symbol does nothing but return the code. One that
//                          leaves a context unusable (is_sticky) comes back from all later calls in it
//   FAKE_GPU_HANG          symbol:n,...        what the n-th call puts on a stream never ends
//   FAKE_GPU_KILL          n                   the process kills itself (SIGKILL) at its n-th call of the driver
//   FAKE_GPU_COUNTS        file, written at exit: "symbol calls" for each symbol, and "total calls" for the driver's;
//                          %p in its name is the process
//   FAKE_GPU_LEAKS         1: at exit, what the driver's callers have not given back is a violation
//   FAKE_NCCL_WAIT_S       how long a rank of NCCL waits for others (60 s); then it is a violation
//   FAKE_GPU_TRACE         1: says which functions are called that the fake has not
//   CUDA_VISIBLE_DEVICES   as CUDA has it, by numbers
//
// A symbol may be written with or without its _v2.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

// What the fake's libcudart finds in its libcuda.
#define FAKE_GPU_API __attribute__((visibility("default")))

namespace fake_gpu {

using TimeNs = std::int64_t;
using Code = std::uint32_t;  // CUresult and cudaError_t: the values are the same

struct Settings {
  int devices = 2;
  double out_bytes_per_ns = 0;  // 0: at once
  double in_bytes_per_ns = 0;
  TimeNs latency_ns = 5'000;
  TimeNs kernel_ns = 0;
  std::size_t memory_bytes = std::size_t{4} << 30;
  std::uint64_t seed = 1;
  std::uint64_t kill_at = 0;  // 0: never
  bool leaks_at_exit = false;
  std::string counts_file;
  std::string visible;  // CUDA_VISIBLE_DEVICES
  bool has_visible = false;
};
Settings settings_of_environment();

enum class OnViolation { kExit, kAbort, kCount };

// The n-th call of a symbol, counted from the first that there was.
struct Planned {
  std::string symbol;
  std::uint64_t call = 0;
  Code code = 0;  // 0: what it puts on a stream hangs
};

// Calls, and what is planned for them. The engine's lock protects it.
class Calls {
 public:
  explicit Calls(const Settings& settings);

  // A call begins. Returns what is planned for it, or null. Does not return at the call that kills the process.
  const Planned* begin(std::string_view symbol, bool is_driver);
  void plan(std::string_view symbol, std::uint64_t from_now, Code code);
  std::uint64_t count(std::string_view symbol) const;
  std::uint64_t total() const { return driver_calls_; }
  std::string text() const;

 private:
  std::uint64_t kill_at_;
  std::uint64_t driver_calls_ = 0;
  std::map<std::string, std::uint64_t, std::less<>> counts_;
  std::vector<Planned> planned_;
};

// Says what rule was broken, and ends the process or counts. Within an Unseen (tsan.h); with the engine's lock or
// without.
FAKE_GPU_API void violation(const char* rule, const char* format, ...)
    __attribute__((format(printf, 2, 3)));
std::uint64_t violations();
std::string last_violation();
void clear_violations();
void set_on_violation(OnViolation);

}  // namespace fake_gpu
