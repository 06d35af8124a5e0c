// Segment: the memory that two processes of one host share for one connection. Two rings, one for each direction.
//
// It is a memfd: it has no name in any file system, and the kernel frees it with the last process that maps it, however
// that ends. All of it is allocated when it is made, so that a lack of memory is an error then and not a signal later.
//
//   0             control page(s): a RingControl for ring 0 and one for ring 1
//   kControlBytes ring 0, ring_bytes
//   ...           ring 1, ring_bytes
//
// Each ring is mapped twice in a row, so what wraps around its end is one span all the same.
//
// Seals (fcntl(2), F_ADD_SEALS): whoever makes it forbids shrinking and growing; whoever opens it then forbids further
// writable mappings and holes as well, and further seals. With all of them no act of the other side can take a page
// away from under us (SIGBUS); each side checks for itself that they are there.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace byteps::shm {

// What the two sides of one ring tell each other. Positions count bytes since the beginning and never go back. Every
// field may hold anything at any time: the other side can write to all of it.
struct RingControl {
  alignas(64) std::atomic<std::uint64_t> written;
  alignas(64) std::atomic<std::uint64_t> read;
  // 1: wants a wake-up when `written` (or `read`) has moved; whoever wakes sets it back. kDozes: see ring.h.
  alignas(64) std::atomic<std::uint32_t> reader_sleeps;
  alignas(64) std::atomic<std::uint32_t> writer_sleeps;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "positions are shared by processes");

// One direction, as this process has it mapped.
struct RingMemory {
  RingControl* control = nullptr;
  std::byte* bytes = nullptr;  // ring_bytes, and then the same again
  std::size_t ring_bytes = 0;  // a power of two
};

class Segment {
 public:
  static constexpr std::size_t kControlBytes = 64 << 10;  // the largest page that Linux has
  static constexpr std::size_t kRingBytesMin = 64 << 10;
  static constexpr std::size_t kRingBytesMax = 64 << 20;

  static bool is_ring_size(std::size_t bytes);  // a power of two within the limits

  // kSystem: there is not so much memory, or no such memory here.
  static Result<Segment> create(std::size_t ring_bytes);
  // One that the other side has made; takes the descriptor over. kDisconnected: it is not as it must be.
  static Result<Segment> open(int descriptor);

  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();

  // To be passed on by whoever made it; -1 once it is closed.
  int descriptor() const { return descriptor_; }
  // Whoever made it, when the other side says that it has opened it: checks that all seals are there, and closes the
  // descriptor. kDisconnected: they are not.
  Status seal_checked();

  RingMemory ring(std::size_t index) const;  // 0: written by who made it; 1: by who opened it
  std::size_t ring_bytes() const { return ring_bytes_; }

 private:
  Segment(int descriptor, std::size_t ring_bytes)
      : descriptor_(descriptor), ring_bytes_(ring_bytes) {}
  Status map();
  void close_descriptor();
  std::size_t file_bytes() const { return kControlBytes + 2 * ring_bytes_; }
  std::size_t mapped_bytes() const { return kControlBytes + 4 * ring_bytes_; }

  int descriptor_ = -1;
  std::size_t ring_bytes_ = 0;
  std::byte* base_ = nullptr;
};

}  // namespace byteps::shm
