// Devices: the GPUs that a process uses in a job, and the thread that speaks with them. Nothing is loaded, pinned or
// started before the first tensor on a device, or use().
//
//   any thread --place(), post()-->  Devices
//   worker's thread --orders-->  DeviceLoop (its own thread)  --reports--> worker's thread
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "base/config.h"
#include "base/log.h"
#include "base/status.h"
#include "base/time.h"
#include "device/device.h"
#include "device/device_loop.h"
#include "device/orders.h"
#include "loop/clock.h"
#include "loop/mailbox.h"
#include "loop/runner.h"
#include "loop/sleeper.h"

namespace byteps::device {

// Address space of our own, whole pages. It takes memory where it is used.
class Pages {
 public:
  explicit Pages(std::size_t bytes);
  ~Pages();
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  std::span<std::byte> span() const { return span_; }  // empty: there is none to be had

 private:
  std::span<std::byte> span_;
};

// What a Worker has of its process's devices.
struct Port {
  Mailbox<Order>* orders = nullptr;    // null: this worker has none
  Mailbox<Report>* reports = nullptr;  // wakes the worker
  std::span<std::byte> pool;           // pinned, if that was possible, when the first order comes
  const std::atomic<std::size_t>* alone = nullptr;  // posted to nobody else, and not ended
  // Copies are of whole frames, of about so many bytes together: each costs some microseconds of the driver's.
  std::size_t chunk_bytes = 1 << 20;
};

// What a WorkerDoor has of them. Any thread.
class Places {
 public:
  virtual ~Places() = default;

  // Where a tensor is whose call says: this device, this stream, these addresses (null: there is none, or none that is
  // looked at). An event is recorded on the stream.
  virtual Result<Place> place(int ordinal, abi::Stream stream, const void* input,
                              const void* output) = 0;
  virtual Status post(Alone&& alone) = 0;
};

class Devices final : public Places {
 public:
  // `worker` (may be null: a job of one) is woken by reports. All references outlive it.
  Devices(const DeviceConfig& config, const Log& log, Clock& clock, Waiter* worker);
  Devices(const Devices&) = delete;
  Devices& operator=(const Devices&) = delete;

  Port port() {
    return {.orders = &orders_, .reports = &reports_, .pool = pool_.span(), .alone = &alone_count_};
  }

  // The device, ready. kUnsupported: there is none, or no driver. Any thread, as the next two; the first call may
  // take a second, for a context and for pinned memory.
  Result<CudaDevice*> use(int ordinal);
  Result<Place> place(int ordinal, abi::Stream stream, const void* input,
                      const void* output) override;
  Status post(Alone&& alone) override;
  // What was posted and has not ended: who waits for it waits for nobody else.
  std::size_t alone_count() const { return alone_count_.load(std::memory_order_acquire); }

  // The job is over: ends the thread. False: a copy does not end, perhaps for ever, and nothing may be taken apart.
  bool close_within(TimeNs at_most_ns);

 private:
  Status pin(CudaDevice& device);

  const DeviceConfig config_;
  const Log& log_;
  Clock& clock_;
  const bool has_worker_;
  const Pages pool_;

  std::mutex mutex_;  // guards what follows, up to the mailboxes
  std::shared_ptr<const Driver> driver_;
  std::map<int, std::unique_ptr<CudaDevice>> devices_;
  // Gives the pool back before its device goes.
  struct Unpin {
    CudaDevice* device = nullptr;
    std::byte* address = nullptr;
    ~Unpin() {
      if (device != nullptr) device->unpin(address);
    }
  };
  Unpin pinned_;
  bool was_pinned_ = false;  // or it was tried

  // What is in them has events of the devices.
  std::atomic<std::size_t> alone_count_{0};
  Sleeper sleeper_;
  Mailbox<Order> orders_;
  Mailbox<Alone> alone_;
  Mailbox<Report> reports_;
  DeviceLoop loop_;
  std::optional<Runner> runner_;  // by mutex_
};

}  // namespace byteps::device
