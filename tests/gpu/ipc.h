// Memory and events that processes share, as the fake has them.
//
// A handle names a file of the process that made it, as /proc/PID/fd/N: the bytes of a block, and behind them, or for
// an event alone, one of the structs below. Each process has actors of its own (order.h), so what is shared names an
// actor by its process, too. Uses of shared memory are noted there for the others: the last kUsesMax of them.
//
// Processes have no order among them but by events; and what a process knows to be done is before all that others do
// from then on (as if it had told them: too lenient).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/gpu/order.h"

namespace fake_gpu {

inline constexpr std::size_t kHandleBytes = 64;

// What cuIpcGetMemHandle and cuIpcGetEventHandle give.
struct IpcHandle {
  std::uint64_t magic = 0;
  std::int32_t process = 0;
  std::int32_t file = -1;
  std::uint64_t bytes = 0;  // of memory
  std::int32_t physical = 0;
  std::array<char, kHandleBytes - 28> unused{};
};
static_assert(sizeof(IpcHandle) == kHandleBytes);
inline constexpr std::uint64_t kMemoryMagic = 0x66616b6d656d6f72;
inline constexpr std::uint64_t kEventMagic = 0x66616b6576656e74;

// Between processes, of which one may die while it has it.
class SharedLock {
 public:
  explicit SharedLock(std::atomic<std::int32_t>& owner);
  ~SharedLock() { owner_ = 0; }
  SharedLock(const SharedLock&) = delete;
  SharedLock& operator=(const SharedLock&) = delete;

 private:
  std::atomic<std::int32_t>& owner_;
};
bool is_alive(std::int32_t process);

struct SharedTick {
  std::int32_t process;
  ActorId actor;
  Tick tick;
};

struct SharedUse {
  SharedTick by;
  bool is_write;
  bool is_known;  // its process knows that it is done
  std::uint64_t begin, end;
  std::array<char, 40> what;
};

struct SharedBlock {
  static constexpr std::size_t kUsesMax = 128;
  static constexpr std::size_t kOpenersMax = 16;
  std::atomic<std::int32_t> lock;
  std::array<std::atomic<std::int32_t>, kOpenersMax> openers;  // processes
  std::uint64_t next;  // of uses, of which the last are kept
  std::array<SharedUse, kUsesMax> uses;
};

struct SharedEvent {
  static constexpr std::size_t kTicksMax = 256;
  std::atomic<std::int32_t> lock;
  std::atomic<std::int32_t> recorder;  // the process of the last record
  std::atomic<std::uint64_t> recorded, done;
  std::uint32_t ticks;
  std::array<SharedTick, kTicksMax> clock;  // of the last record
};

// A file of `bytes`; -1: none.
int shared_file(std::size_t bytes);
// The file of a handle, opened anew; -1: it is not there any more.
int open_handle(const IpcHandle&);
void* map_shared(int file, std::size_t offset, std::size_t bytes);

}  // namespace fake_gpu
