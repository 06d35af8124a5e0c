#include "device/device.h"

#include <array>

#include "base/planted.h"

namespace byteps::device {

Event::~Event() {
  if (device_ != nullptr) device_->give_back(event_);
}

// The device's context is the calling thread's for as long as this lives; then it is again what it was. Likewise the
// thread's calls are no part of what another thread captures: while one does, in the mode that frameworks take, some
// calls of all other threads fail, and spoil the capture.
class CudaDevice::Current {
 public:
  explicit Current(const CudaDevice& device)
      : driver_(*device.driver_), pushed_(driver_.context_push(device.context_)) {
    exchange_mode();
  }
  ~Current() {
    exchange_mode();
    abi::Context ours = nullptr;
    if (pushed_ == abi::kSuccess && !PLANTED(context_left_current)) {
      (void)driver_.context_pop(&ours);
    }
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

  abi::Code pushed() const { return pushed_; }

 private:
  void exchange_mode() {
    if (!PLANTED(capture_of_others_spoiled)) (void)driver_.thread_exchange_capture_mode(&mode_);
  }

  const Driver& driver_;
  abi::CaptureMode mode_ = abi::kCaptureRelaxed;  // before and after; in between what it was
  const abi::Code pushed_;
};

Result<std::unique_ptr<CudaDevice>> CudaDevice::open(std::shared_ptr<const Driver> driver,
                                                     int ordinal) {
  std::unique_ptr<CudaDevice> device(new CudaDevice(std::move(driver), ordinal));
  Status begun = device->begin();
  if (!begun.is_ok()) return begun;
  return device;
}

Status CudaDevice::begin() {
  int count = 0;
  const Driver& d = *driver_;
  abi::Code code = d.device_get_count(&count);
  if (code != abi::kSuccess) return failed(code, "cuDeviceGetCount");
  if (ordinal_ < 0 || ordinal_ >= count) {
    return {Code::kUnsupported,
            "there is no CUDA device " + std::to_string(ordinal_) + ": this process sees " +
                std::to_string(count) +
                " of them, numbered from 0 (CUDA_VISIBLE_DEVICES hides others)"};
  }
  std::array<char, 256> text{};
  const auto size = static_cast<int>(text.size() - 1);
  code = d.device_get(&number_, ordinal_);
  if (code != abi::kSuccess) return failed(code, "cuDeviceGet");
  if (d.device_get_name(text.data(), size, number_) == abi::kSuccess) name_ = text.data();
  if (d.device_get_pci_bus_id(text.data(), size, number_) == abi::kSuccess) bus_id_ = text.data();
  code = d.primary_context_retain(&context_, number_);
  if (code != abi::kSuccess) {
    context_ = nullptr;
    return failed(code, "cuDevicePrimaryCtxRetain");
  }
  const Current current(*this);
  if (current.pushed() != abi::kSuccess) return failed(current.pushed(), "cuCtxPushCurrent");
  for (abi::Stream* const stream : {&out_, &in_}) {
    code = d.stream_create(stream, abi::kStreamNonBlocking, 0);
    if (code == abi::kSuccess) continue;
    *stream = nullptr;
    return failed(code, "cuStreamCreateWithPriority");
  }
  return Status::ok();
}

// At the end of a process the driver may be gone: then nothing is left to give back.
CudaDevice::~CudaDevice() {
  if (context_ == nullptr) return;
  {
    const Current current(*this);
    if (current.pushed() == abi::kSuccess) {
      for (const abi::Event event : events_) {
        if (!PLANTED(events_leaked)) (void)driver_->event_destroy(event);
      }
      for (const abi::Stream stream : {out_, in_}) {
        if (stream != nullptr && !PLANTED(streams_leaked)) (void)driver_->stream_destroy(stream);
      }
    }
  }
  if (!PLANTED(context_leaked)) (void)driver_->primary_context_release(number_);
}

Status CudaDevice::failed(abi::Code code, const char* call) const {
  const Status why = status_of(*driver_, code, call);
  // The process ends: that is nobody's failure.
  const Code kind = code == abi::kDeinitialized ? Code::kCancelled : why.code();
  return {kind, "CUDA device " + std::to_string(ordinal_) +
                    (bus_id_.empty() ? "" : " (" + bus_id_ + ")") + ": " + why.message()};
}

// ---- memory

Status CudaDevice::check_memory(const void* address, const char* what) const {
  const auto place = reinterpret_cast<std::uintptr_t>(address);
  abi::MemoryType type = abi::kMemoryHost;
  int owner = -1;
  const Driver& d = *driver_;
  const bool is_known =
      d.pointer_get_attribute(&type, abi::kPointerMemoryType, place) == abi::kSuccess &&
      type == abi::kMemoryDevice;
  if (!is_known) {
    return {Code::kInvalidArgument,
            std::string(what) + " is no memory of a CUDA device: is it in host memory?"};
  }
  const abi::Code code = d.pointer_get_attribute(&owner, abi::kPointerDeviceOrdinal, place);
  if (code != abi::kSuccess) return failed(code, "cuPointerGetAttribute");
  if (owner == ordinal_) return Status::ok();
  return {Code::kInvalidArgument, std::string(what) + " is memory of CUDA device " +
                                      std::to_string(owner) + ", and the tensor is said to be on " +
                                      std::to_string(ordinal_)};
}

Status CudaDevice::pin(void* address, std::size_t bytes) {
  const Current current(*this);
  if (current.pushed() != abi::kSuccess) return failed(current.pushed(), "cuCtxPushCurrent");
  const abi::Code code = driver_->host_register(address, bytes, abi::kHostRegisterPortable);
  return code == abi::kSuccess ? Status::ok() : failed(code, "cuMemHostRegister");
}

void CudaDevice::unpin(void* address) {
  const Current current(*this);
  if (current.pushed() == abi::kSuccess && !PLANTED(pool_stays_pinned)) {
    (void)driver_->host_unregister(address);
  }
}

// ---- events

Result<abi::Event> CudaDevice::take_event() {
  {
    const std::lock_guard lock(mutex_);
    if (!events_.empty()) {
      const abi::Event event = events_.back();
      events_.pop_back();
      return event;
    }
  }
  abi::Event event = nullptr;
  const abi::Code code = driver_->event_create(&event, abi::kEventDisableTiming);
  if (code != abi::kSuccess) return failed(code, "cuEventCreate");
  return event;
}

void CudaDevice::give_back(abi::Event event) {
  const std::lock_guard lock(mutex_);
  events_.push_back(event);
}

// The context is current. Before anything is begun that the event is for: what has none is never known to be over.
Result<Event> CudaDevice::unrecorded() {
  const Result<abi::Event> taken = take_event();
  if (!taken.is_ok()) return taken.status();
  return Event(*this, taken.value());
}

// Likewise.
Result<Event> CudaDevice::recorded(Event event, abi::Stream stream) {
  const abi::Code code = driver_->event_record(event.get(), stream);
  if (PLANTED(event_reused_early)) give_back(event.get());
  if (code != abi::kSuccess) return failed(code, "cuEventRecord");
  return event;
}

Result<Event> CudaDevice::record(abi::Stream stream) {
  const Current current(*this);
  if (current.pushed() != abi::kSuccess) return failed(current.pushed(), "cuCtxPushCurrent");
  abi::CaptureStatus capture = abi::kCaptureNone;
  const abi::Code code = driver_->stream_is_capturing(stream, &capture);
  if (code != abi::kSuccess) return failed(code, "cuStreamIsCapturing");
  if (capture != abi::kCaptureNone && !PLANTED(capture_unseen)) {
    return Status(Code::kInvalidArgument,
                  "a CUDA graph is captured from its stream, and an exchange with other processes "
                  "cannot be part of one: submit it outside of the capture");
  }
  Result<Event> event = unrecorded();
  if (!event.is_ok()) return event;
  return recorded(std::move(event).value(), PLANTED(call_on_own_stream) ? out_ : stream);
}

// Likewise, of a copy that was put on one of our streams.
Result<Event> CudaDevice::copied(Event event, abi::Stream stream) {
  Result<Event> known = recorded(std::move(event), stream);
  if (!known.is_ok()) end_copies();
  return known;
}

// An event cannot be had, or not be asked: what the copies read and write must not be used before they have ended. They
// end soon, since nothing on our streams waits for anything; or at once, where the context has ended: then this fails,
// again and again.
void CudaDevice::end_copies() {
  if (PLANTED(lost_copy_unawaited)) return;
  const Current current(*this);
  for (const abi::Stream stream : {out_, in_}) {
    const abi::Code code = driver_->stream_synchronize(stream);
    if (code != abi::kSuccess)
      (void)driver_->stream_synchronize(stream);  // if it was that call alone
  }
}

void CudaDevice::keep_out_of_captures() {
  abi::CaptureMode mode = abi::kCaptureRelaxed;
  if (!PLANTED(capture_of_others_spoiled)) (void)driver_->thread_exchange_capture_mode(&mode);
}

Result<bool> CudaDevice::has_happened(const Event& event) {
  const abi::Code code = driver_->event_query(event.get());
  if (code == abi::kNotReady) return false;
  if (code == abi::kSuccess) return true;
  end_copies();
  return failed(code, "cuEventQuery");
}

// ---- copies

Result<Event> CudaDevice::copy_out(std::byte* to, abi::DeviceAddress from, std::size_t bytes) {
  const Current current(*this);
  if (current.pushed() != abi::kSuccess) return failed(current.pushed(), "cuCtxPushCurrent");
  Result<Event> event = unrecorded();
  if (!event.is_ok()) return event;
  const abi::Code code = driver_->copy_to_host(to, from, bytes, out_);
  if (code != abi::kSuccess) return failed(code, "cuMemcpyDtoHAsync");
  return copied(std::move(event).value(), PLANTED(copy_out_event_elsewhere) ? in_ : out_);
}

Result<Event> CudaDevice::copy_in(abi::DeviceAddress to, const std::byte* from, std::size_t bytes) {
  const Current current(*this);
  if (current.pushed() != abi::kSuccess) return failed(current.pushed(), "cuCtxPushCurrent");
  Result<Event> event = unrecorded();
  if (!event.is_ok()) return event;
  const abi::Code code = driver_->copy_to_device(to, from, bytes, in_);
  if (code != abi::kSuccess) return failed(code, "cuMemcpyHtoDAsync");
  return copied(std::move(event).value(), PLANTED(copy_in_event_elsewhere) ? out_ : in_);
}

Result<Event> CudaDevice::copy_within(abi::DeviceAddress to, abi::DeviceAddress from,
                                      std::size_t bytes) {
  const Current current(*this);
  if (current.pushed() != abi::kSuccess) return failed(current.pushed(), "cuCtxPushCurrent");
  Result<Event> event = unrecorded();
  if (!event.is_ok()) return event;
  const abi::Code code = driver_->copy_on_device(to, from, bytes, in_);
  if (code != abi::kSuccess) return failed(code, "cuMemcpyDtoDAsync");
  return copied(std::move(event).value(), in_);
}

}  // namespace byteps::device
