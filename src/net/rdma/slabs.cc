#include "net/rdma/slabs.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include <sys/mman.h>

#include "base/check.h"
#include "net/rdma/memory.h"

namespace byteps::rdma {
namespace {

bool fits_slab(std::size_t bytes) {
  return bytes >= Slabs::kPieceBytesMin && bytes <= Slabs::kSlabBytes;
}

std::byte* at(std::uintptr_t place) {
  return reinterpret_cast<std::byte*>(place);
}

}  // namespace

Slabs::~Slabs() {
  while (!slabs_.empty()) drop_slab(slabs_.begin());
}

std::byte* Slabs::take(std::size_t bytes) {
  if (!fits_slab(bytes)) {
    return static_cast<std::byte*>(std::aligned_alloc(kBufferAlignment, bytes));
  }
  std::vector<std::byte*>& idle = idle_[bytes];
  if (idle.empty() && !add_slab(bytes)) return nullptr;
  std::byte* const piece = idle.back();
  idle.pop_back();
  ++slab_of(piece)->second.taken_count;
  return piece;
}

void Slabs::give_back(std::byte* memory, std::size_t bytes) {
  if (!fits_slab(bytes)) return std::free(memory);
  const auto slab = slab_of(memory);
  CHECK(slab->second.piece_bytes == bytes && slab->second.taken_count > 0);
  idle_[bytes].push_back(memory);
  if (--slab->second.taken_count == 0) drop_slab(slab);
}

std::map<std::uintptr_t, Slabs::Slab>::iterator Slabs::slab_of(const std::byte* piece) {
  const auto next = slabs_.upper_bound(reinterpret_cast<std::uintptr_t>(piece));
  CHECK(next != slabs_.begin()) << "not of a slab";
  return std::prev(next);
}

bool Slabs::add_slab(std::size_t piece_bytes) {
  void* const memory =
      ::mmap(nullptr, kSlabBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return false;
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  Slab& slab = slabs_[begin];
  slab.piece_bytes = piece_bytes;
  for (const std::shared_ptr<Device>& device : devices_) {
    slab.regions.push_back(enroll(begin, *device));
  }
  for (std::size_t place = kSlabBytes; place > 0; place -= piece_bytes) {
    idle_[piece_bytes].push_back(at(begin + place - piece_bytes));
  }
  return true;
}

void Slabs::drop_slab(std::map<std::uintptr_t, Slab>::iterator slab) {
  const std::uintptr_t begin = slab->first;
  for (std::size_t i = 0; i < slab->second.regions.size(); ++i) {
    abi::MemoryRegion* const region = slab->second.regions[i];
    if (region != nullptr) devices_[i]->verbs().dereg_mr(region);
  }
  std::erase_if(idle_[slab->second.piece_bytes], [begin](const std::byte* piece) {
    return reinterpret_cast<std::uintptr_t>(piece) - begin < kSlabBytes;
  });
  slabs_.erase(slab);
  ::munmap(at(begin), kSlabBytes);
}

abi::MemoryRegion* Slabs::enroll(std::uintptr_t begin, Device& device) {
  // Only our own device reads it: no right for others.
  abi::MemoryRegion* const region =
      device.verbs().reg_mr(device.domain(), at(begin), kSlabBytes, abi::kAccessLocalWrite);
  if (region == nullptr) refusal_ = cannot_register(device, kSlabBytes, errno, "");
  return region;
}

void Slabs::add_device(std::shared_ptr<Device> device) {
  devices_.push_back(std::move(device));
  for (auto& [begin, slab] : slabs_) slab.regions.push_back(enroll(begin, *devices_.back()));
}

bool Slabs::has_device(const Device& device) const {
  return std::any_of(devices_.begin(), devices_.end(),
                     [&](const auto& known) { return known.get() == &device; });
}

void Slabs::drop_device(const Device& device) {
  const auto found = std::find_if(devices_.begin(), devices_.end(),
                                  [&](const auto& known) { return known.get() == &device; });
  CHECK(found != devices_.end());
  const auto index = found - devices_.begin();
  for (auto& [begin, slab] : slabs_) {
    const auto region = slab.regions.begin() + index;
    if (*region != nullptr) device.verbs().dereg_mr(*region);
    slab.regions.erase(region);
  }
  devices_.erase(found);
}

std::optional<std::uint32_t> Slabs::key(const Device& device,
                                        std::span<const std::byte> bytes) const {
  const auto begin = reinterpret_cast<std::uintptr_t>(bytes.data());
  const auto next = slabs_.upper_bound(begin);
  if (next == slabs_.begin()) return std::nullopt;
  const auto& [slab_begin, slab] = *std::prev(next);
  if (begin - slab_begin + bytes.size() > kSlabBytes) return std::nullopt;
  for (std::size_t i = 0; i < slab.regions.size(); ++i) {
    if (devices_[i].get() == &device && slab.regions[i] != nullptr) return slab.regions[i]->lkey;
  }
  return std::nullopt;
}

}  // namespace byteps::rdma
