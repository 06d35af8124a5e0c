// Memory and events that processes share: the engine's part of it.
#include "tests/gpu/ipc.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/gpu/engine.h"

namespace fake_gpu {

namespace {

std::int32_t this_process() {
  return static_cast<std::int32_t>(::getpid());
}

std::size_t pages(std::size_t bytes) {
  constexpr std::size_t kPage = 4096;
  return (bytes + kPage - 1) / kPage * kPage;
}

}  // namespace

bool is_alive(std::int32_t process) {
  return ::kill(process, 0) == 0 || errno == EPERM;
}

SharedLock::SharedLock(std::atomic<std::int32_t>& owner) : owner_(owner) {
  for (std::int32_t other = 0; !owner_.compare_exchange_weak(other, this_process()); other = 0) {
    if (other == 0 || is_alive(other)) {
      std::this_thread::yield();
    } else if (owner_.compare_exchange_strong(other, this_process())) {
      return;
    }
  }
}

int shared_file(std::size_t bytes) {
  const int file = memfd_create("fake-gpu", MFD_CLOEXEC);
  if (file >= 0 && ::ftruncate(file, static_cast<off_t>(bytes)) != 0) {
    ::close(file);
    return -1;
  }
  return file;
}

int open_handle(const IpcHandle& handle) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/fd/%d", handle.process, handle.file);
  return ::open(path, O_RDWR | O_CLOEXEC);
}

void* map_shared(int file, std::size_t offset, std::size_t bytes) {
  void* const at =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, static_cast<off_t>(offset));
  return at == MAP_FAILED ? nullptr : at;
}

// ---- actors of other processes

SharedTick Engine::shared_tick(ActorId actor, Tick tick) const {
  const auto foreign = foreign_.find(actor);
  if (foreign != foreign_.end()) return {foreign->second.first, foreign->second.second, tick};
  return {this_process(), actor, tick};
}

ActorId Engine::local_actor(const SharedTick& of) {
  if (of.process == this_process()) return of.actor;
  const auto entry = locals_.find({of.process, of.actor});
  if (entry != locals_.end()) return entry->second;
  const ActorId made = next_actor_++;
  locals_[{of.process, of.actor}] = made;
  foreign_[made] = {of.process, of.actor};
  return made;
}

// ---- memory

Code Engine::ipc_memory_handle(const void* address, IpcHandle* handle) {
  const auto block = block_at(address);
  if (block == nullptr || block->is_imported) return kInvalidValue;
  const std::size_t noted = pages(sizeof(SharedBlock));
  if (block->shared == nullptr) {
    if (::ftruncate(block->file, static_cast<off_t>(block->mapped_bytes + noted)) != 0)
      return kOutOfMemory;
    block->shared = static_cast<SharedBlock*>(map_shared(block->file, block->mapped_bytes, noted));
    if (block->shared == nullptr) return kOutOfMemory;
    const SharedLock guard(block->shared->lock);
    block->history.for_each([&](std::size_t begin, std::size_t end, const Use& use, bool is_write) {
      note_shared(*block->shared, begin, end, use, is_write);
    });
  }
  *handle = IpcHandle{kMemoryMagic, this_process(),          block->file,
                      block->bytes, block->device->physical, {}};
  return kSuccess;
}

Code Engine::ipc_open_memory(const IpcHandle& handle, void** address) {
  if (handle.magic != kMemoryMagic) return kInvalidValue;
  if (handle.process == this_process()) return kInvalidContext;
  for (const auto& [begin, block] : blocks_) {
    if (!block->is_imported || block->exporter != std::pair(handle.process, handle.file)) continue;
    ++block->opened;
    *address = begin;
    return kSuccess;
  }
  const auto of_it = [&](const Device& one) { return one.physical == handle.physical; };
  const auto device = std::find_if(devices_.begin(), devices_.end(), of_it);
  if (device == devices_.end() || &device->primary != current()) return kInvalidContext;
  const int file = open_handle(handle);
  if (file < 0) return kInvalidHandle;
  auto block = std::make_shared<Block>(&*device, handle.bytes, file);
  if (block->address == nullptr || block->alias == nullptr) return kOutOfMemory;
  block->shared =
      static_cast<SharedBlock*>(map_shared(file, block->mapped_bytes, pages(sizeof(SharedBlock))));
  if (block->shared == nullptr) return kInvalidHandle;
  block->exporter = {handle.process, handle.file};
  block->opened = 1;
  for (auto& opener : block->shared->openers) {
    std::int32_t nobody = 0;
    if (opener.compare_exchange_strong(nobody, this_process())) break;
  }
  *address = block->address;
  blocks_.emplace(block->address, std::move(block));
  return kSuccess;
}

Code Engine::ipc_close_memory(void* address, Lock& lock) {
  const auto entry = blocks_.find(static_cast<char*>(address));
  if (entry == blocks_.end() || !entry->second->is_imported) return kInvalidValue;
  const auto block = entry->second;
  if (block->opened > 1) {
    --block->opened;
    return kSuccess;
  }
  drain(Range{block, nullptr, block->alias, 0, block->bytes, true}, lock);
  for (auto& opener : block->shared->openers) {
    std::int32_t mine = this_process();
    if (opener.compare_exchange_strong(mine, 0)) break;
  }
  blocks_.erase(static_cast<char*>(address));
  return kSuccess;
}

// The memory is freed by who made it.
void Engine::check_openers(const Block& block) const {
  if (block.shared == nullptr) return;
  for (const auto& opener : block.shared->openers) {
    if (opener == 0 || !is_alive(opener)) continue;
    violation("shared memory is closed before it is freed",
              "a block of %zu bytes is freed, which process %d has open", block.bytes,
              opener.load());
  }
}

// Of this process, for the others. With the lock of what is shared.
void Engine::note_shared(SharedBlock& shared, std::size_t begin, std::size_t end, const Use& use,
                         bool is_write) {
  SharedUse& mine = shared.uses[shared.next++ % SharedBlock::kUsesMax];
  const bool is_known = use.tick <= host_.at(use.actor);
  mine = SharedUse{shared_tick(use.actor, use.tick), is_write, is_known, begin, end, {}};
  std::snprintf(mine.what.data(), mine.what.size(), "%s", use.what);
}

// A use of shared memory: after those of other processes?
void Engine::touch_shared(const Range& range, const Use& use, const Clock& clock) {
  SharedBlock& shared = *range.block->shared;
  const std::uint64_t end = range.offset + range.bytes;
  const SharedLock guard(shared.lock);
  const std::uint64_t first =
      shared.next - std::min<std::uint64_t>(shared.next, SharedBlock::kUsesMax);
  for (std::uint64_t i = first; i < shared.next; ++i) {
    const SharedUse& earlier = shared.uses[i % SharedBlock::kUsesMax];
    const bool overlaps = earlier.begin < end && range.offset < earlier.end;
    const bool conflicts = overlaps && (earlier.is_write || range.is_written);
    if (!conflicts || earlier.by.process == this_process() || earlier.is_known) continue;
    if (earlier.by.tick <= clock.at(local_actor(earlier.by))) continue;
    violation("work is ordered by streams and events",
              "%s of stream #%u %s %zu bytes of shared memory at offset %zu, and is not ordered "
              "after %s of stream #%u "
              "of process %d, which %s some of them",
              use.what, use.actor, range.is_written ? "writes" : "reads", range.bytes, range.offset,
              earlier.what.data(), earlier.by.actor, earlier.by.process,
              earlier.is_write ? "writes" : "reads");
    break;
  }
  note_shared(shared, range.offset, end, use, range.is_written);
}

// The host has learnt something: others may rely on it.
void Engine::publish() {
  for (const auto& [begin, block] : blocks_) {
    if (block->shared == nullptr) continue;
    const SharedLock guard(block->shared->lock);
    for (SharedUse& use : block->shared->uses) {
      if (use.by.process == this_process() && use.by.tick <= host_.at(use.by.actor))
        use.is_known = true;
    }
  }
}

// ---- events

Code Engine::ipc_event_handle(Event& event, IpcHandle* handle) {
  if (event.shared == nullptr || event.file < 0)
    return kInvalidValue;  // not made for it, or another's
  *handle = IpcHandle{kEventMagic, this_process(), event.file, 0, 0, {}};
  return kSuccess;
}

bool share_event(Event& event, int file) {
  void* const at = file < 0 ? nullptr : map_shared(file, 0, pages(sizeof(SharedEvent)));
  if (at == nullptr) return false;
  const auto unmap = [](SharedEvent* one) { munmap(one, pages(sizeof(SharedEvent))); };
  event.shared = std::shared_ptr<SharedEvent>(static_cast<SharedEvent*>(at), unmap);
  return true;
}

Code Engine::ipc_open_event(const IpcHandle& handle, Event** event, bool by_driver) {
  if (handle.magic != kEventMagic) return kInvalidValue;
  if (handle.process == this_process()) return kInvalidContext;
  const int file = open_handle(handle);
  if (file < 0) return kInvalidHandle;
  event_create(event, false, by_driver, false);
  const bool is_shared = share_event(**event, file);
  ::close(file);
  return is_shared ? kSuccess : Code{kInvalidHandle};
}

Code Engine::make_shared_event(Event& event) {
  event.file = shared_file(pages(sizeof(SharedEvent)));
  return share_event(event, event.file) ? kSuccess : Code{kOutOfMemory};
}

// A record of it, at the place of the stream that it has now; what it is called with when that is done.
std::function<void()> Engine::note_record(const Event& event, const Clock& clock) {
  SharedEvent& shared = *event.shared;
  const SharedLock guard(shared.lock);
  shared.recorder = this_process();
  shared.ticks = 0;
  for (ActorId actor = 0; actor < clock.size() && shared.ticks < SharedEvent::kTicksMax; ++actor) {
    if (clock.at(actor) > 0) shared.clock[shared.ticks++] = shared_tick(actor, clock.at(actor));
  }
  const std::uint64_t number = ++shared.recorded;
  return [of = event.shared, number] { of->done = std::max<std::uint64_t>(of->done, number); };
}

// What the event has captured, by any process: a clock, and what tells that it is done.
std::function<bool()> Engine::captured_by(const Event& event, Clock* clock) {
  SharedEvent& shared = *event.shared;
  const SharedLock guard(shared.lock);
  for (std::uint32_t i = 0; i < shared.ticks; ++i)
    clock->raise(local_actor(shared.clock[i]), shared.clock[i].tick);
  return [of = event.shared, number = shared.recorded.load()] {
    return of->done >= number || !is_alive(of->recorder);
  };
}

Code Engine::shared_event_query(const Event& event) {
  Clock clock;
  if (!captured_by(event, &clock)()) return kNotReady;
  host_.join(clock);
  publish();
  return kSuccess;
}

Code Engine::shared_event_synchronize(const Event& event, Lock& lock) {
  Clock clock;
  const auto is_done = captured_by(event, &clock);
  const Context* const context = event.context;
  while (!is_done() && context->lost == kSuccess && !is_ending_ && !is_stopping_) {
    changed_.wait_for(lock, std::chrono::microseconds(200));
  }
  host_.join(clock);
  publish();
  return is_ending_ ? Code{kDeinitialized} : context->lost;
}

}  // namespace fake_gpu
