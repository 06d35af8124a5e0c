// RingMemory: memory of our own, registered with a device, as a ring.
//
// It is mapped twice in a row, so that what wraps around its end is one span for us; registered is the first mapping
// only, so a write that wraps is two for the device. A forked child does not get it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "net/rdma/device.h"

namespace byteps::rdma {

// A power of two from 64 KiB to 64 MiB.
bool is_ring_size(std::size_t bytes);

class RingMemory {
 public:
  // kSystem: no memory, or not so much may be registered; the text says which limit to raise.
  static Result<RingMemory> create(Device& device, std::size_t bytes, bool remote_writes);
  RingMemory() = default;
  RingMemory(RingMemory&& other) noexcept;
  RingMemory& operator=(RingMemory&& other) noexcept;
  ~RingMemory();

  std::size_t bytes() const { return bytes_; }
  // Where a position is; from there, `bytes()` bytes are in a row.
  std::byte* at(std::uint64_t position) const { return base_ + (position & (bytes_ - 1)); }
  std::byte* begin() const { return base_; }
  std::uint32_t local_key() const { return region_->lkey; }
  std::uint32_t remote_key() const { return region_->rkey; }

 private:
  Status map();

  const Verbs* verbs_ = nullptr;
  abi::MemoryRegion* region_ = nullptr;
  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
};

// This process may register as much memory as there is: it has no limit of locked memory, or the right to pass it.
bool may_lock_all_memory();

// What a refused registration comes from and what to do, for one of so many bytes; `or_else` is what helps besides.
Status cannot_register(const Device& device, std::size_t bytes, int error_number,
                       const char* or_else);

}  // namespace byteps::rdma
