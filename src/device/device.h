// Device: one GPU as this process uses it. CUDA's has its primary context (the one that frameworks work in), two
// streams of its own, one for copies in each direction, and events.
//
// No call waits for the device, but copies of memory that is not pinned, and one whose event fails. What is under way
// is known by an Event, which the owner asks about: a copy is over, or somebody's stream has come so far, when
// has_happened() says so, and not before. Whoever has heard it may use the memory, in any thread and on any stream: the
// driver makes what an event covers visible to who has asked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "device/driver.h"

namespace byteps::device {

class Device;

// An event of a device, recorded. It goes back to the device's store when it ends.
class Event {
 public:
  Event() = default;
  Event(Device& device, abi::Event event) : device_(&device), event_(event) {}
  Event(Event&& other) noexcept
      : device_(std::exchange(other.device_, nullptr)), event_(other.event_) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(event_, other.event_);
    return *this;
  }
  ~Event();

  explicit operator bool() const { return device_ != nullptr; }
  abi::Event get() const { return event_; }
  Device& device() const { return *device_; }

 private:
  Device* device_ = nullptr;  // null: none
  abi::Event event_ = nullptr;
};

// What the thread that speaks with devices asks of one (device_loop.h). Thread-safe.
class Device {
 public:
  Device() = default;
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // Each begins a copy and gives its event. Host memory that is not pinned makes it wait for the copy. After an error
  // the copy is not under way: it was not begun, or it has ended.
  virtual Result<Event> copy_out(std::byte* to, abi::DeviceAddress from, std::size_t bytes) = 0;
  virtual Result<Event> copy_in(abi::DeviceAddress to, const std::byte* from,
                                std::size_t bytes) = 0;
  virtual Result<Event> copy_within(abi::DeviceAddress to, abi::DeviceAddress from,
                                    std::size_t bytes) = 0;

  // After an error, too, a copy that the event was for has ended. kCancelled, here and above: the process ends, and the
  // driver with it.
  virtual Result<bool> has_happened(const Event& event) = 0;

  // For a thread that calls has_happened(): its calls are no part of what other threads capture.
  virtual void keep_out_of_captures() = 0;

  // For ~Event().
  virtual void give_back(abi::Event event) = 0;
};

// One that CUDA's driver has.
class CudaDevice final : public Device {
 public:
  // kUnsupported: there is no such device. Otherwise what its driver says.
  static Result<std::unique_ptr<CudaDevice>> open(std::shared_ptr<const Driver> driver,
                                                  int ordinal);
  ~CudaDevice() override;

  int ordinal() const { return ordinal_; }
  const std::string& name() const { return name_; }  // the driver's
  const std::string& bus_id() const {
    return bus_id_;
  }  // the same in all processes, unlike the ordinal

  // Whether this is memory of this device; the error says of what it is.
  Status check_memory(const void* address, const char* what) const;

  // All work that has been put on the stream so far. kInvalidArgument: a graph is captured from it.
  Result<Event> record(abi::Stream stream);

  Result<Event> copy_out(std::byte* to, abi::DeviceAddress from, std::size_t bytes) override;
  Result<Event> copy_in(abi::DeviceAddress to, const std::byte* from, std::size_t bytes) override;
  Result<Event> copy_within(abi::DeviceAddress to, abi::DeviceAddress from,
                            std::size_t bytes) override;
  Result<bool> has_happened(const Event& event) override;
  void keep_out_of_captures() override;
  void give_back(abi::Event event) override;

  // Pinned memory is copied without waiting, by all devices.
  Status pin(void* address, std::size_t bytes);
  void unpin(void* address);

 private:
  class Current;  // makes the context the thread's

  CudaDevice(std::shared_ptr<const Driver> driver, int ordinal)
      : driver_(std::move(driver)), ordinal_(ordinal) {}
  Status begin();
  Status failed(abi::Code code, const char* call) const;
  Result<abi::Event> take_event();
  Result<Event> unrecorded();
  Result<Event> recorded(Event event, abi::Stream stream);
  Result<Event> copied(Event event, abi::Stream stream);
  void end_copies();

  const std::shared_ptr<const Driver> driver_;
  const int ordinal_;
  std::string name_;
  std::string bus_id_;
  abi::DeviceNumber number_ = 0;
  abi::Context context_ = nullptr;
  abi::Stream out_ = nullptr;
  abi::Stream in_ = nullptr;

  std::mutex mutex_;  // guards what follows
  std::vector<abi::Event> events_;
};

}  // namespace byteps::device
