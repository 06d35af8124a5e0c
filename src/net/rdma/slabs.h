// Slabs: memory for payloads that devices read without a copy.
//
// A slab is kSlabBytes of our own, cut into equal pieces of one size, and registered as a whole with each device that
// there is: so a gigabyte of sums is 256 registrations, each made once. A slab is given back when all its pieces are.
//
// Where registration is refused payloads are copied, as those from other memory. Where locked memory is limited there
// are no slabs: it is for the rings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/status.h"
#include "net/rdma/device.h"

namespace byteps::rdma {

class Slabs final : public BufferSource {
 public:
  static constexpr std::size_t kSlabBytes = std::size_t{4} << 20;
  static constexpr std::size_t kPieceBytesMin = std::size_t{16}
                                                << 10;  // smaller ones are better copied

  Slabs() = default;
  Slabs(const Slabs&) = delete;
  Slabs& operator=(const Slabs&) = delete;
  ~Slabs() override;

  // Sizes are powers of two. Those that fit no slab come from the C library.
  std::byte* take(std::size_t bytes) override;
  void give_back(std::byte* memory, std::size_t bytes) override;

  // From here on payloads may go by this device too.
  void add_device(std::shared_ptr<Device> device);
  bool has_device(const Device& device) const;
  // No request of this device may be under way.
  void drop_device(const Device& device);
  // Under which key the device may read these bytes; none: it may not.
  std::optional<std::uint32_t> key(const Device& device, std::span<const std::byte> bytes) const;
  // The last refusal that was not told yet; ok: none.
  Status take_refusal() { return std::exchange(refusal_, Status::ok()); }

 private:
  struct Slab {
    std::size_t piece_bytes = 0;
    std::size_t taken_count = 0;
    std::vector<abi::MemoryRegion*> regions;  // by device; null: refused
  };
  bool add_slab(std::size_t piece_bytes);
  void drop_slab(std::map<std::uintptr_t, Slab>::iterator slab);
  abi::MemoryRegion* enroll(std::uintptr_t begin, Device& device);
  std::map<std::uintptr_t, Slab>::iterator slab_of(const std::byte* at);

  std::map<std::uintptr_t, Slab> slabs_;                 // by their beginning
  std::map<std::size_t, std::vector<std::byte*>> idle_;  // pieces by size
  std::vector<std::shared_ptr<Device>> devices_;
  Status refusal_;
};

}  // namespace byteps::rdma
