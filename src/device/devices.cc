#include "device/devices.h"

#include <utility>

#include <sys/mman.h>

#include "base/limits.h"
#include "device/slabs.h"

namespace byteps::device {
namespace {

// Orders and reports that find no room wait at their sender.
constexpr std::size_t kMailboxCapacity = 4096;

// A stream's name. That of a thread's default stream is the same in all threads: its thread tells it apart.
std::uint64_t lane_of(abi::Stream stream) {
  static thread_local const char kThread = 0;
  const auto handle = reinterpret_cast<std::uintptr_t>(stream);
  return handle == abi::kStreamPerThread ? reinterpret_cast<std::uintptr_t>(&kThread) : handle;
}

}  // namespace

Pages::Pages(std::size_t bytes) {
  const std::size_t whole = bytes / kSlabAlignment * kSlabAlignment;
  if (whole == 0) return;
  void* const memory = ::mmap(nullptr, whole, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory != MAP_FAILED) span_ = {static_cast<std::byte*>(memory), whole};
}

Pages::~Pages() {
  if (!span_.empty()) (void)::munmap(span_.data(), span_.size());
}

Devices::Devices(const DeviceConfig& config, const Log& log, Clock& clock, Waiter* worker)
    : config_(config),
      log_(log),
      clock_(clock),
      has_worker_(worker != nullptr),
      pool_(config.pinned_bytes),
      orders_(kMailboxCapacity, &sleeper_),
      alone_(kOperationsMax, &sleeper_),
      reports_(kMailboxCapacity, worker),
      loop_(orders_, alone_, has_worker_ ? &reports_ : nullptr) {}

Result<CudaDevice*> Devices::use(int ordinal) {
  const std::lock_guard lock(mutex_);
  if (const auto known = devices_.find(ordinal); known != devices_.end()) {
    return known->second.get();
  }
  if (driver_ == nullptr) {
    auto loaded = load_driver(config_.cuda_library);
    if (!loaded.is_ok()) return loaded.status();
    driver_ = std::move(loaded).value();
  }
  auto opened = CudaDevice::open(driver_, ordinal);
  if (!opened.is_ok()) return opened.status();
  CudaDevice& device = *opened.value();
  devices_.emplace(ordinal, std::move(opened).value());
  LOG(log_, kInfo) << "uses CUDA device " << ordinal << " (" << device.name() << " at "
                   << device.bus_id() << ")";
  if (!std::exchange(was_pinned_, true)) {
    if (const Status pinned = pin(device); !pinned.is_ok()) {
      LOG(log_, kWarning) << "memory for copies could not be pinned, so they take longer: "
                          << pinned.message() << "; BYTEPS_PINNED_MB is "
                          << (config_.pinned_bytes >> 20);
    }
  }
  if (!runner_) runner_.emplace("byteps-device", loop_, sleeper_, clock_);
  return &device;
}

Status Devices::pin(CudaDevice& device) {
  const std::span<std::byte> pool = pool_.span();
  if (pool.empty()) return {Code::kSystem, "there is no address space"};
  Status pinned = device.pin(pool.data(), pool.size());
  if (!pinned.is_ok()) return pinned;
  pinned_.device = &device;
  pinned_.address = pool.data();
  return pinned;
}

Result<Place> Devices::place(int ordinal, abi::Stream stream, const void* input,
                             const void* output) {
  const Result<CudaDevice*> used = use(ordinal);
  if (!used.is_ok()) return used.status();
  CudaDevice& device = *used.value();
  if (input != nullptr) {
    if (Status fine = device.check_memory(input, "input"); !fine.is_ok()) return fine;
  }
  if (output != nullptr && output != input) {
    if (Status fine = device.check_memory(output, "output"); !fine.is_ok()) return fine;
  }
  Result<Event> ready = device.record(stream);
  if (!ready.is_ok()) return ready.status();
  Place place;
  place.device = &device;
  place.lane = lane_of(stream);
  place.ready = std::move(ready).value();
  return place;
}

Status Devices::post(Alone&& alone) {
  alone_count_.fetch_add(1, std::memory_order_acq_rel);
  alone.ended = [this, ended = std::move(alone.ended)](Status result) {
    ended(std::move(result));
    alone_count_.fetch_sub(1, std::memory_order_acq_rel);
  };
  Status posted = alone_.post(std::move(alone));
  if (!posted.is_ok()) alone_count_.fetch_sub(1, std::memory_order_acq_rel);
  return posted;
}

bool Devices::close_within(TimeNs at_most_ns) {
  const std::lock_guard lock(mutex_);
  if (!runner_) return true;
  loop_.close();
  sleeper_.wake();
  return runner_->join_within(at_most_ns);  // what is posted later is refused
}

}  // namespace byteps::device
