// SimDevice: a GPU in virtual time, as the production DeviceLoop (device/device_loop.h) sees one. It has two copy
// engines, one for each direction, and its user's streams.
//
// Its memory is ordinary memory of the simulator, at addresses that no processor can use: whoever takes them for host
// memory dies of it. Everything happens as late as the driver allows: a copy reads and writes, and a kernel runs, when
// somebody asks for an event behind it whose time has come. Until then the target of a copy holds rubbish. So whoever
// uses memory too early, or gives it back too soon, is found by the sums.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <string>

#include "base/status.h"
#include "base/time.h"
#include "device/device.h"

namespace byteps::sim {

// A rank's device, and how its process uses it.
struct SimDeviceOptions {
  std::uint64_t bytes_per_second = 13'125'000'000;  // in each direction; 0: no limit
  TimeNs latency_ns = 8 * kMicrosecond;             // from the call until a copy moves something
  std::size_t pool_bytes = 64 << 20;
  std::size_t chunk_bytes = 1 << 20;
};

class SimDevice final : public device::Device {
 public:
  SimDevice(std::string name, const SimDeviceOptions& options, std::function<TimeNs()> now)
      : name_(std::move(name)),
        options_(options),
        bytes_per_second_(options.bytes_per_second),
        now_(std::move(now)) {}

  const std::string& name() const { return name_; }

  // ---- its user's side

  // This memory as memory of a device.
  static std::byte* far(std::byte* memory) {
    return reinterpret_cast<std::byte*>(reinterpret_cast<std::uintptr_t>(memory) | kFar);
  }
  // Puts a kernel on a stream: `work` is done `takes_ns` after what was put on it before, or later. Returns its number.
  std::uint64_t launch(std::uint64_t stream, TimeNs takes_ns, std::function<void()> work);
  // Its memory is used for something else: it does nothing, if it has not happened.
  void cancel(std::uint64_t stream, std::uint64_t number);
  // All that was put on the stream so far.
  device::Event record(std::uint64_t stream);
  // A copy that has not happened and has to do with this memory (not far()); empty: there is none.
  std::string claim_on(std::span<const std::byte> memory) const;

  // ---- what happens to it

  // Nothing on it ends before.
  void stand_still(TimeNs until);
  // Of copies that begin from now on.
  void slow_down(std::uint64_t bytes_per_second) { bytes_per_second_ = bytes_per_second; }
  void speed_up() { bytes_per_second_ = options_.bytes_per_second; }
  // From this call of the driver on (1: the next) all fail; then `failed` is called once.
  void fail_at(std::uint64_t call, std::function<void()> failed);

  // ---- device::Device
  Result<device::Event> copy_out(std::byte* to, device::abi::DeviceAddress from,
                                 std::size_t bytes) override;
  Result<device::Event> copy_in(device::abi::DeviceAddress to, const std::byte* from,
                                std::size_t bytes) override;
  Result<device::Event> copy_within(device::abi::DeviceAddress to, device::abi::DeviceAddress from,
                                    std::size_t bytes) override;
  Result<bool> has_happened(const device::Event& event) override;
  void keep_out_of_captures() override {}
  void give_back(device::abi::Event event) override;

 private:
  static constexpr std::uintptr_t kFar = std::uintptr_t{1} << 63;

  // What happens one after the other.
  struct Work {
    TimeNs ends_ns = 0;
    std::function<void()> kernel;  // a kernel; otherwise a copy
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    std::size_t bytes = 0;
  };
  struct Line {
    std::deque<Work> waiting;
    std::uint64_t done = 0;
    TimeNs free_ns = 0;
    std::uint64_t last() const { return done + waiting.size(); }
  };
  // The end of a line's work with this number.
  struct Mark {
    Line* line = nullptr;
    std::uint64_t number = 0;
  };

  static std::byte* near(device::abi::DeviceAddress address);
  Result<device::Event> copy(Line& engine, std::byte* to, const std::byte* from, std::size_t bytes,
                             const char* call);
  device::Event mark(Line& line);
  // Whether this call of the driver works.
  Status called(const char* call);

  const std::string name_;
  const SimDeviceOptions options_;
  std::uint64_t bytes_per_second_;
  const std::function<TimeNs()> now_;
  Line out_;
  Line in_;
  std::map<std::uint64_t, Line> streams_;
  std::map<std::uint64_t, Mark> events_;
  std::uint64_t last_event_ = 0;
  TimeNs stands_until_ns_ = 0;
  std::uint64_t calls_left_ = 0;  // until it fails; 0: it does not
  bool has_failed_ = false;
  std::function<void()> failed_;
};

}  // namespace byteps::sim
