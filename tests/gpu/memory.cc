// Memory, copies and kernels.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <utility>

#include <sys/mman.h>
#include <unistd.h>

#include "tests/gpu/engine.h"

namespace fake_gpu {

namespace {

constexpr std::size_t kPage = 4096;
constexpr int kPoison = 0xCB;  // what the target of a copy to the host has until it is done

std::size_t whole_pages(std::size_t bytes) {
  return (std::max<std::size_t>(bytes, 1) + kPage - 1) / kPage * kPage;
}

std::uint64_t checksum(const char* bytes, std::size_t size) {
  constexpr std::uint64_t kFactor = 0x9E3779B97F4A7C15ULL;
  std::uint64_t sum = size;
  std::uint64_t word = 0;
  for (; size >= sizeof word; bytes += sizeof word, size -= sizeof word) {
    std::memcpy(&word, bytes, sizeof word);
    sum = (sum ^ word) * kFactor;
    sum ^= sum >> 29;
  }
  word = 0;
  std::memcpy(&word, bytes, size);
  return (sum ^ word) * kFactor;
}

bool is_poison(const char* bytes, std::size_t size) {
  return std::all_of(bytes, bytes + size,
                     [](char one) { return static_cast<unsigned char>(one) == kPoison; });
}

// Bytes of the host go over as the thread sanitizer should see it.
void move(char* to, const char* from, std::size_t bytes) {
  const Seen seen;
  std::memmove(to, from, bytes);
}

bool overlap(const Range& a, const Range& b) {
  return a.bytes > 0 && b.bytes > 0 && a.at < b.at + b.bytes && b.at < a.at + a.bytes;
}

const char* verb(bool is_write) {
  return is_write ? "writes" : "reads";
}

void report(const char* what, ActorId actor, const Range& range, const Conflict& conflict) {
  const auto name = [](ActorId one) {
    return one == kHost ? std::string("the host") : "stream #" + std::to_string(one);
  };
  violation("work is ordered by streams and events",
            "%s of %s %s %zu bytes of %s memory at offset %zu, and is not ordered after %s of %s, "
            "which %s "
            "some of them",
            what, name(actor).c_str(), verb(range.is_written), range.bytes,
            range.block != nullptr ? "device" : "pinned", range.offset, conflict.earlier.what,
            name(conflict.earlier.actor).c_str(), verb(conflict.earlier_wrote));
}

}  // namespace

bool is_mapped(const void* begin, std::size_t bytes) {
  const auto first = reinterpret_cast<std::uintptr_t>(begin) / kPage * kPage;
  const auto last = reinterpret_cast<std::uintptr_t>(begin) + bytes;
  return msync(reinterpret_cast<void*>(first), last - first, MS_ASYNC) == 0;
}

// ---- blocks of device memory

Block::Block(Device* device_of_it, std::size_t size, int file_of_it)
    : device(device_of_it),
      bytes(size),
      mapped_bytes(whole_pages(size)),
      is_imported(file_of_it >= 0),
      file(is_imported ? file_of_it : shared_file(mapped_bytes)) {
  if (file < 0) return;
  void* const given = mmap(nullptr, mapped_bytes, PROT_NONE, MAP_SHARED, file, 0);
  if (given != MAP_FAILED) address = static_cast<char*>(given);
  alias = static_cast<char*>(map_shared(file, 0, mapped_bytes));
}

Block::~Block() {
  if (shared != nullptr) munmap(shared, whole_pages(sizeof(SharedBlock)));
  if (file >= 0) close(file);
  if (address != nullptr) munmap(address, mapped_bytes);
  if (alias != nullptr) munmap(alias, mapped_bytes);
}

Code Engine::allocate(void** address, std::size_t bytes, bool by_driver) {
  if (const Code code = prohibit_in_capture(); code != kSuccess) return code;
  if (bytes == 0) return kInvalidValue;
  Device& device = *current()->device;
  if (device.used_bytes + whole_pages(bytes) > settings_.memory_bytes) return kOutOfMemory;
  auto block = std::make_shared<Block>(&device, bytes);
  if (block->address == nullptr || block->alias == nullptr) return kOutOfMemory;
  block->by_driver = by_driver;
  device.used_bytes += block->mapped_bytes;
  *address = block->address;
  blocks_.emplace(block->address, std::move(block));
  return kSuccess;
}

Code Engine::free(void* address, bool by_driver, Lock& lock) {
  if (address == nullptr) return kSuccess;
  if (const Code code = prohibit_in_capture(); code != kSuccess) return code;
  auto entry = blocks_.find(static_cast<char*>(address));
  if (entry == blocks_.end()) {
    violation("device memory is used while it is there", "free of %p, which is no block", address);
    return kInvalidValue;
  }
  const auto block = entry->second;
  if (block->is_imported) {
    violation("device memory is used while it is there", "free of %p, which is another process's",
              address);
    return kInvalidValue;
  }
  check_openers(*block);
  const Range whole{block, nullptr, block->alias, 0, block->bytes, true};
  if (by_driver) {
    touch_by_host(address, block->bytes, true, "the free of memory");
  } else {
    drain(whole, lock);
  }
  block->device->used_bytes -= block->mapped_bytes;
  blocks_.erase(static_cast<char*>(address));
  return kSuccess;
}

std::shared_ptr<Block> Engine::block_at(const void* address) {
  char* const at = static_cast<char*>(const_cast<void*>(address));
  auto entry = blocks_.upper_bound(at);
  if (entry == blocks_.begin()) return nullptr;
  --entry;
  return at < entry->first + entry->second->mapped_bytes ? entry->second : nullptr;
}

// ---- pinned memory

Code Engine::pin(void* begin, std::size_t bytes, bool by_driver, bool is_ours) {
  if (const Code code = prohibit_in_capture(); code != kSuccess) return code;
  char* const first = static_cast<char*>(begin);
  if (begin == nullptr || bytes == 0 || block_at(begin) != nullptr) return kInvalidValue;
  if (!is_mapped(begin, bytes)) return kInvalidValue;
  const auto next = pinned_.lower_bound(first);
  const bool overlaps_next = next != pinned_.end() && next->first < first + bytes;
  if (overlaps_next || pinned_at(begin) != nullptr) return kHostMemoryAlreadyRegistered;
  auto pinned = std::make_shared<Pinned>();
  pinned->begin = first;
  pinned->bytes = bytes;
  pinned->context = current();
  pinned->by_driver = by_driver;
  pinned->is_ours = is_ours;
  pinned_.emplace(first, std::move(pinned));
  return kSuccess;
}

Code Engine::unpin(void* begin, bool is_ours, Lock& lock) {
  if (const Code code = prohibit_in_capture(); code != kSuccess) return code;
  auto entry = pinned_.find(static_cast<char*>(begin));
  if (entry == pinned_.end() || entry->second->is_ours != is_ours) {
    return kHostMemoryNotRegistered;
  }
  const auto pinned = entry->second;
  if (is_ours) {
    drain(Range{nullptr, pinned, pinned->begin, 0, pinned->bytes, true}, lock);
  } else {
    touch_by_host(begin, pinned->bytes, true, "the end of a registration");
  }
  pinned_.erase(static_cast<char*>(begin));
  return kSuccess;
}

std::shared_ptr<Pinned> Engine::pinned_at(const void* address) {
  char* const at = static_cast<char*>(const_cast<void*>(address));
  auto entry = pinned_.upper_bound(at);
  if (entry == pinned_.begin()) return nullptr;
  --entry;
  return at < entry->first + entry->second->bytes ? entry->second : nullptr;
}

// ---- what uses what

const Work* Engine::user_of(const Range& range, bool writes_only) const {
  for (const StreamRef& stream : busy_) {
    for (const auto& work : stream->queue) {
      if (work->is_done && !work->is_held) continue;
      for (const Range& used : work->ranges) {
        if (overlap(used, range) && (used.is_written || !writes_only)) return work.get();
      }
    }
  }
  return nullptr;
}

void Engine::drain(const Range& range, Lock& lock) {
  changed_.wait(lock, [&] {
    return user_of(range, false) == nullptr || is_ending_ || is_stopping_ ||
           current()->lost != kSuccess;
  });
}

void Engine::touch(Stream& stream, const Work& work) {
  const Use use{stream.actor, stream.clock.at(stream.actor), work.what};
  for (const Range& range : work.ranges) {
    if (range.block == nullptr && range.pinned == nullptr) continue;
    History& history = range.block != nullptr ? range.block->history : range.pinned->history;
    const std::size_t end = range.offset + range.bytes;
    const auto conflict = range.is_written ? history.write(range.offset, end, use, stream.clock)
                                           : history.read(range.offset, end, use, stream.clock);
    if (conflict) report(work.what, stream.actor, range, *conflict);
    if (range.block != nullptr && range.block->shared != nullptr)
      touch_shared(range, use, stream.clock);
  }
}

void Engine::touch_by_host(const void* address, std::size_t bytes, bool is_write,
                           const char* what) {
  Range range;
  range.block = block_at(address);
  if (range.block == nullptr) range.pinned = pinned_at(address);
  if (range.block == nullptr && range.pinned == nullptr) return;
  History& history = range.block != nullptr ? range.block->history : range.pinned->history;
  const char* const begin = range.block != nullptr ? range.block->address : range.pinned->begin;
  range.offset = static_cast<std::size_t>(static_cast<const char*>(address) - begin);
  range.bytes = bytes;
  range.is_written = is_write;
  host_.advance(kHost);
  const Use use{kHost, host_.at(kHost), what};
  const auto conflict = is_write ? history.write(range.offset, range.offset + bytes, use, host_)
                                 : history.read(range.offset, range.offset + bytes, use, host_);
  if (conflict) report(what, kHost, range, *conflict);
}

bool Engine::find(const void* at, std::size_t bytes, bool is_written, const char* what,
                  Range* range) {
  constexpr const char* kRule = "device memory is used while it is there";
  range->block = block_at(at);
  if (range->block == nullptr) {
    violation(kRule, "%s %s %p, which is no memory of a device, or is not any more", what,
              verb(is_written), at);
    return false;
  }
  range->offset = static_cast<std::size_t>(static_cast<const char*>(at) - range->block->address);
  if (range->offset + bytes > range->block->bytes) {
    violation(kRule, "%s %s %zu bytes at offset %zu of a block of %zu", what, verb(is_written),
              bytes, range->offset, range->block->bytes);
    return false;
  }
  range->at = range->block->alias + range->offset;
  range->bytes = bytes;
  range->is_written = is_written;
  return true;
}

bool Engine::find_host(const void* at, std::size_t bytes, bool is_written, const char* what,
                       Range* range) {
  constexpr const char* kRule = "host memory is used while it is there";
  char* const begin = static_cast<char*>(const_cast<void*>(at));
  if (block_at(at) != nullptr) {
    violation(kRule, "%s %s %p as memory of the host; it is a device's", what, verb(is_written),
              at);
    return false;
  }
  if (!is_mapped(at, bytes)) {
    violation(kRule, "%s %s %zu bytes at %p, and not all of them are there", what, verb(is_written),
              bytes, at);
    return false;
  }
  range->pinned = pinned_at(at);
  const auto next = pinned_.lower_bound(begin);
  const bool runs_into_one = next != pinned_.end() && next->first < begin + bytes;
  if (range->pinned != nullptr) {
    range->offset = static_cast<std::size_t>(begin - range->pinned->begin);
  }
  const bool runs_out = range->pinned != nullptr && range->offset + bytes > range->pinned->bytes;
  if (runs_out || (range->pinned == nullptr && runs_into_one)) {
    violation(kRule, "%s %s %zu bytes at %p, which are registered in part", what, verb(is_written),
              bytes, at);
    return false;
  }
  range->at = begin;
  range->bytes = bytes;
  range->is_written = is_written;
  return true;
}

// ---- copies

bool Engine::find_both(const Copy& copy, Range* to, Range* from) {
  const bool to_host = copy.direction == Direction::kToHost || copy.direction == Direction::kOnHost;
  const bool from_host =
      copy.direction == Direction::kToDevice || copy.direction == Direction::kOnHost;
  const bool has_to = to_host ? find_host(copy.to, copy.bytes, true, copy.what, to)
                              : find(copy.to, copy.bytes, true, copy.what, to);
  return has_to && (from_host ? find_host(copy.from, copy.bytes, false, copy.what, from)
                              : find(copy.from, copy.bytes, false, copy.what, from));
}

bool Engine::fits_stream(const Copy& copy, const Stream& stream, const Range& to,
                         const Range& from) const {
  if (!copy.is_strict) return true;
  const Device* const device = stream.context->device;
  const auto is_of = [&](const Range& range) {
    return range.block != nullptr && range.block->device == device;
  };
  if (is_of(to) || is_of(from)) return true;
  violation("a copy is on a stream of its device",
            "%s on a stream of device %d: the memory is another's", copy.what, device->number);
  return false;
}

Lane* Engine::lane_of(Direction direction, const Stream& stream, const Range& to,
                      const Range& from) const {
  if (direction == Direction::kToHost) return &from.block->device->out;
  if (direction == Direction::kToDevice) return &to.block->device->in;
  return &stream.context->device->within;
}

Code Engine::copy(const Copy& copy, const StreamRef& stream, Lock& lock) {
  if (copy.is_sync) {
    if (const Code code = prohibit_in_capture(); code != kSuccess) return code;
  }
  if (copy.bytes == 0) return kSuccess;
  Range to;
  Range from;
  if (!find_both(copy, &to, &from) || !fits_stream(copy, *stream, to, from)) return kInvalidValue;
  const bool is_paged = (to.block == nullptr && to.pinned == nullptr) ||
                        (from.block == nullptr && from.pinned == nullptr);
  bool is_captured = false;
  if (const Code code = captured(*stream, &is_captured); code != kSuccess) return code;
  if (is_captured && (is_paged || copy.is_sync)) {
    stream->capture->is_invalid = true;
    return kCaptureUnsupported;
  }
  if (is_captured) return kSuccess;
  auto work = std::make_shared<Work>();
  work->what = copy.what;
  work->lane = lane_of(copy.direction, *stream, to, from);
  work->duration_ns = settings_.latency_ns;
  if (work->lane->bytes_per_ns > 0) {
    work->duration_ns +=
        static_cast<TimeNs>(static_cast<double>(copy.bytes) / work->lane->bytes_per_ns);
  }
  load_copy(copy, to, from, work.get());
  work->ranges = {from, to};
  submit(stream, std::move(work));
  const bool waits = (copy.direction == Direction::kToHost && (is_paged || copy.is_sync)) ||
                     (copy.direction == Direction::kToDevice && !is_paged && copy.is_sync) ||
                     copy.direction == Direction::kOnHost;
  return waits ? stream_synchronize(stream, lock) : kSuccess;
}

// What the copy does when its moment has come, and what the host's memory is like until then.
void Engine::load_copy(const Copy& copy, const Range& to, const Range& from, Work* work) {
  constexpr const char* kRule = "pinned memory is left alone while a copy uses it";
  const std::size_t bytes = copy.bytes;
  const char* const what = copy.what;
  if (from.block == nullptr && from.pinned == nullptr && copy.direction == Direction::kToDevice) {
    const auto staged = std::make_shared<std::vector<char>>(from.at, from.at + bytes);
    work->effect = [to, staged, bytes] { move(to.at, staged->data(), bytes); };
    return;
  }
  const auto check_mapped = [what, bytes](const char* at) {
    if (is_mapped(at, bytes)) return true;
    violation("host memory is used while it is there", "%s: %zu bytes at %p are gone", what, bytes,
              static_cast<const void*>(at));
    return false;
  };
  const bool watches_source = from.pinned != nullptr && user_of(from, true) == nullptr;
  const bool watches_target = to.pinned != nullptr && user_of(to, false) == nullptr;
  if (watches_target) {
    const Seen seen;
    std::memset(to.at, kPoison, bytes);
  }
  const std::uint64_t sum = watches_source ? checksum(from.at, bytes) : 0;
  work->effect = [=] {
    if (from.block == nullptr && !check_mapped(from.at)) return;
    if (to.block == nullptr && !check_mapped(to.at)) return;
    if (watches_target && !is_poison(to.at, bytes)) {
      violation(kRule, "the host wrote to the target of %s (%zu bytes) before it was done", what,
                bytes);
    }
    if (watches_source && checksum(from.at, bytes) != sum) {
      violation(kRule, "the host changed the source of %s (%zu bytes) before it was done", what,
                bytes);
    }
    move(to.at, from.at, bytes);
  };
}

Code Engine::fill(const char* what, void* to, int byte, std::size_t bytes,
                  const StreamRef& stream) {
  if (bytes == 0) return kSuccess;
  Range range;
  if (!find(to, bytes, true, what, &range)) return kInvalidValue;
  bool is_captured = false;
  if (const Code code = captured(*stream, &is_captured); code != kSuccess) return code;
  if (is_captured) return kSuccess;
  auto work = std::make_shared<Work>();
  work->what = what;
  work->duration_ns = settings_.latency_ns;
  work->effect = [range, byte] { std::memset(range.at, byte, range.bytes); };
  work->ranges = {range};
  return submit(stream, std::move(work));
}

// ---- kernels

bool Engine::load_kernel(Kernel& kernel, const Stream& stream, Work* work) {
  const auto add = [&](const void* at, std::size_t bytes, bool is_written) {
    Range range;
    if (!find(at, bytes, is_written, kernel.what, &range)) return false;
    if (range.block->device != stream.context->device) {
      violation("a kernel uses memory of its device",
                "%s on a stream of device %d %s memory of device %d", kernel.what,
                stream.context->device->number, verb(is_written), range.block->device->number);
      return false;
    }
    work->ranges.push_back(std::move(range));
    return true;
  };
  for (std::size_t i = 0; i < kernel.reads.size(); ++i) {
    if (!add(kernel.reads[i], kernel.read_bytes[i], false)) return false;
  }
  for (std::size_t i = 0; i < kernel.writes.size(); ++i) {
    if (!add(kernel.writes[i], kernel.write_bytes[i], true)) return false;
  }
  work->what = kernel.what;
  work->duration_ns = kernel.duration_ns;
  work->is_late = true;
  return true;
}

Code Engine::launch(Kernel kernel, const StreamRef& stream, std::shared_ptr<Work>* launched) {
  auto work = std::make_shared<Work>();
  work->after = kernel.after;
  work->is_held = kernel.is_held;
  if (!load_kernel(kernel, *stream, work.get())) return kInvalidValue;
  bool is_captured = false;
  if (const Code code = captured(*stream, &is_captured); code != kSuccess) return code;
  if (is_captured) return kSuccess;
  std::vector<char*> reads;
  std::vector<char*> writes;
  for (const Range& range : work->ranges) (range.is_written ? writes : reads).push_back(range.at);
  if (kernel.compute) {
    work->effect = [compute = std::move(kernel.compute), reads, writes, ranges = work->ranges] {
      compute(reads, writes);
    };
  }
  if (launched != nullptr) *launched = work;
  return submit(stream, std::move(work));
}

}  // namespace fake_gpu
