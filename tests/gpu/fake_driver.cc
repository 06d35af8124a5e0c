// The driver's functions by CUDA's names: what they check themselves, then the engine. README.md has the rules.
#include <cstdio>
#include <cstring>

#include "tests/gpu/engine.h"
#include "tests/gpu/fake_gpu.h"

namespace {

using namespace fake_gpu;  // all of this file is about it
using Lock = Engine::Lock;
using Needs = Engine::Needs;

constexpr int kVersion = 13000;
constexpr unsigned kNonBlocking = 1;
constexpr unsigned kEventFlags = 1 | 2 | 4;  // blocking sync, disable timing, interprocess
constexpr unsigned kDisableTiming = 2;
constexpr unsigned kInterprocess = 4;
constexpr unsigned kLazyPeerAccess = 1;
constexpr unsigned kHostRegisterFlags = 1 | 2 | 4 | 8;

template <typename Body>
Code call(const char* name, Needs needs, const Body& body) {
  return Engine::of_process().call({name, true, needs}, body);
}

template <typename Body>
Code on_stream(const char* name, void* handle, const Body& body) {
  return call(name, Needs::kContext, [&](Engine& engine, Lock& lock) -> Code {
    const StreamRef stream = engine.stream(handle, name);
    return stream == nullptr ? Code{kInvalidHandle} : body(engine, stream, lock);
  });
}

template <typename Body>
Code on_device(const char* name, int number, const Body& body) {
  return call(name, Needs::kDriver, [&](Engine& engine, Lock&) -> Code {
    Device* const device = engine.device(number);
    return device == nullptr ? Code{kInvalidDevice} : body(engine, *device);
  });
}

void* pointer(std::uint64_t address) {
  return reinterpret_cast<void*>(address);
}

Code copy_async(const Copy& copy, void* stream) {
  return on_stream(copy.what, stream, [&](Engine& engine, const StreamRef& on, Lock& lock) {
    return engine.copy(copy, on, lock);
  });
}

}  // namespace

// ---- start

std::uint32_t cuInit(unsigned flags) {
  return call("cuInit", Needs::kNothing, [&](Engine& engine, Lock&) {
    return flags != 0 ? Code{kInvalidValue} : engine.initialise();
  });
}

FAKE_GPU_EXPORT std::uint32_t cuDriverGetVersion(int* version) {
  return call("cuDriverGetVersion", Needs::kNothing, [&](Engine&, Lock&) -> Code {
    if (version == nullptr) return kInvalidValue;
    *version = kVersion;
    return kSuccess;
  });
}

FAKE_GPU_EXPORT std::uint32_t cuGetErrorName(std::uint32_t code, const char** text) {
  *text = name_of(code);
  return *text == nullptr ? kInvalidValue : kSuccess;
}

FAKE_GPU_EXPORT std::uint32_t cuGetErrorString(std::uint32_t code, const char** text) {
  *text = text_of(code);
  return *text == nullptr ? kInvalidValue : kSuccess;
}

// ---- devices

FAKE_GPU_EXPORT std::uint32_t cuDeviceGetCount(int* count) {
  return call("cuDeviceGetCount", Needs::kDriver, [&](Engine& engine, Lock&) {
    *count = static_cast<int>(engine.device_count());
    return kSuccess;
  });
}

std::uint32_t cuDeviceGet(int* device, int ordinal) {
  return on_device("cuDeviceGet", ordinal, [&](Engine&, Device& found) -> Code {
    *device = found.number;
    return kSuccess;
  });
}

FAKE_GPU_EXPORT std::uint32_t cuDeviceGetName(char* name, int capacity, int device) {
  return on_device("cuDeviceGetName", device, [&](Engine&, Device&) -> Code {
    if (name == nullptr || capacity <= 0) return kInvalidValue;
    std::snprintf(name, static_cast<std::size_t>(capacity), "Fake GPU");
    return kSuccess;
  });
}

FAKE_GPU_EXPORT std::uint32_t cuDeviceGetPCIBusId(char* id, int capacity, int device) {
  return on_device("cuDeviceGetPCIBusId", device, [&](Engine&, Device& found) -> Code {
    constexpr int kLength = 13;  // with the null
    if (id == nullptr || capacity < kLength) return kInvalidValue;
    std::snprintf(id, static_cast<std::size_t>(capacity), "0000:%02x:00.0",
                  static_cast<unsigned>(found.physical + 1) & 0xFFU);
    return kSuccess;
  });
}

FAKE_GPU_EXPORT std::uint32_t cuDeviceGetUuid_v2(void* uuid, int device) {
  return on_device("cuDeviceGetUuid", device, [&](Engine&, Device& found) -> Code {
    constexpr std::size_t kUuidBytes = 16;
    std::memset(uuid, found.physical + 1, kUuidBytes);
    return kSuccess;
  });
}

FAKE_GPU_EXPORT std::uint32_t cuDeviceGetAttribute(int* value, unsigned attribute, int device) {
  return on_device("cuDeviceGetAttribute", device, [&](Engine&, Device& found) -> Code {
    constexpr unsigned kPciBus = 33;
    constexpr unsigned kUnifiedAddressing = 41;
    constexpr unsigned kMajor = 75;
    *value = attribute == kPciBus ? found.physical + 1 : attribute == kUnifiedAddressing;
    if (attribute == kMajor) *value = 9;
    return kSuccess;
  });
}

// ---- contexts

std::uint32_t cuDevicePrimaryCtxRetain(void** context, int device) {
  return on_device("cuDevicePrimaryCtxRetain", device, [&](Engine& engine, Device& found) {
    const Code code = engine.retain(found, false);
    if (code == kSuccess) *context = &found.primary;
    return code;
  });
}

std::uint32_t cuDevicePrimaryCtxRelease_v2(int device) {
  return on_device("cuDevicePrimaryCtxRelease", device,
                   [&](Engine& engine, Device& found) { return engine.release(found); });
}

FAKE_GPU_EXPORT std::uint32_t cuDevicePrimaryCtxGetState(int device, unsigned* flags,
                                                         int* is_active) {
  return on_device("cuDevicePrimaryCtxGetState", device, [&](Engine&, Device& found) -> Code {
    *flags = 0;
    *is_active = found.primary.is_active() ? 1 : 0;
    return kSuccess;
  });
}

std::uint32_t cuCtxPushCurrent_v2(void* context) {
  return call("cuCtxPushCurrent", Needs::kDriver, [&](Engine& engine, Lock&) -> Code {
    auto* const one = static_cast<Context*>(context);
    if (!engine.is_context(one)) return kInvalidContext;
    if (!one->is_active()) return kContextIsDestroyed;
    engine.push(one);
    return kSuccess;
  });
}

std::uint32_t cuCtxPopCurrent_v2(void** context) {
  return call("cuCtxPopCurrent", Needs::kDriver, [&](Engine& engine, Lock&) -> Code {
    Context* popped = nullptr;
    if (!engine.pop(&popped)) return kInvalidContext;
    if (context != nullptr) *context = popped;
    return kSuccess;
  });
}

std::uint32_t cuCtxGetCurrent(void** context) {
  return call("cuCtxGetCurrent", Needs::kDriver, [&](Engine& engine, Lock&) -> Code {
    *context = engine.current();
    return kSuccess;
  });
}

std::uint32_t cuCtxSetCurrent(void* context) {
  return call("cuCtxSetCurrent", Needs::kDriver, [&](Engine& engine, Lock&) -> Code {
    auto* const one = static_cast<Context*>(context);
    if (one != nullptr && !engine.is_context(one)) return kInvalidContext;
    if (one != nullptr && !one->is_active()) return kContextIsDestroyed;
    engine.set_current(one);
    return kSuccess;
  });
}

FAKE_GPU_EXPORT std::uint32_t cuCtxGetDevice(int* device) {
  return call("cuCtxGetDevice", Needs::kContext, [&](Engine& engine, Lock&) -> Code {
    *device = engine.current()->device->number;
    return kSuccess;
  });
}

std::uint32_t cuCtxSynchronize() {
  return call("cuCtxSynchronize", Needs::kContext,
              [&](Engine& engine, Lock& lock) { return engine.context_synchronize(lock); });
}

// ---- streams

std::uint32_t cuStreamCreateWithPriority(void** stream, unsigned flags, int priority) {
  return call("cuStreamCreateWithPriority", Needs::kContext, [&](Engine& engine, Lock&) -> Code {
    if (stream == nullptr || (flags & ~kNonBlocking) != 0) return kInvalidValue;
    StreamRef made;
    const Code code = engine.stream_create(&made, (flags & kNonBlocking) == 0, priority, true);
    *stream = made.get();
    return code;
  });
}

FAKE_GPU_EXPORT std::uint32_t cuStreamCreate(void** stream, unsigned flags) {
  return cuStreamCreateWithPriority(stream, flags, 0);
}

std::uint32_t cuStreamDestroy_v2(void* stream) {
  return call("cuStreamDestroy", Needs::kContext,
              [&](Engine& engine, Lock&) { return engine.stream_destroy(stream); });
}

std::uint32_t cuStreamQuery(void* stream) {
  return on_stream("cuStreamQuery", stream, [](Engine& engine, const StreamRef& on, Lock&) {
    return engine.stream_query(on);
  });
}

std::uint32_t cuStreamSynchronize(void* stream) {
  return on_stream("cuStreamSynchronize", stream,
                   [](Engine& engine, const StreamRef& on, Lock& lock) {
                     return engine.stream_synchronize(on, lock);
                   });
}

std::uint32_t cuStreamWaitEvent(void* stream, void* event, unsigned flags) {
  return on_stream(
      "cuStreamWaitEvent", stream, [&](Engine& engine, const StreamRef& on, Lock&) -> Code {
        if (flags != 0) return kInvalidValue;
        Event* const waited_for = engine.event(event, "cuStreamWaitEvent");
        return waited_for == nullptr ? Code{kInvalidHandle} : engine.stream_wait(on, *waited_for);
      });
}

std::uint32_t cuLaunchHostFunc(void* stream, void (*function)(void*), void* argument) {
  return on_stream("cuLaunchHostFunc", stream, [&](Engine& engine, const StreamRef& on, Lock&) {
    return engine.host_function(on, "a host function", [=] { function(argument); });
  });
}

std::uint32_t cuStreamIsCapturing(void* stream, unsigned* status) {
  return on_stream("cuStreamIsCapturing", stream, [&](Engine& engine, const StreamRef& on, Lock&) {
    return engine.capture_status(on, status);
  });
}

std::uint32_t cuStreamBeginCapture_v2(void* stream, unsigned mode) {
  return on_stream("cuStreamBeginCapture", stream, [&](Engine& engine, const StreamRef& on, Lock&) {
    return engine.capture_begin(on, mode);
  });
}

std::uint32_t cuStreamEndCapture(void* stream, void** graph) {
  return on_stream("cuStreamEndCapture", stream, [&](Engine& engine, const StreamRef& on, Lock&) {
    bool is_valid = false;
    const Code code = engine.capture_end(on, &is_valid);
    *graph = is_valid ? graph : nullptr;  // of a graph there is no more than that it exists
    return code;
  });
}

std::uint32_t cuThreadExchangeStreamCaptureMode(unsigned* mode) {
  return call("cuThreadExchangeStreamCaptureMode", Needs::kDriver,
              [&](Engine& engine, Lock&) -> Code {
                if (*mode > 2) return kInvalidValue;
                *mode = engine.exchange_capture_mode(*mode);
                return kSuccess;
              });
}

// ---- events

std::uint32_t cuEventCreate(void** event, unsigned flags) {
  return call("cuEventCreate", Needs::kContext, [&](Engine& engine, Lock&) -> Code {
    if (event == nullptr || (flags & ~kEventFlags) != 0) return kInvalidValue;
    Event* made = nullptr;
    const bool is_interprocess = (flags & kInterprocess) != 0;
    const Code code =
        engine.event_create(&made, (flags & kDisableTiming) == 0, true, is_interprocess);
    *event = made;
    return code;
  });
}

std::uint32_t cuEventDestroy_v2(void* event) {
  return call("cuEventDestroy", Needs::kContext,
              [&](Engine& engine, Lock&) { return engine.event_destroy(event); });
}

std::uint32_t cuEventRecord(void* event, void* stream) {
  return on_stream(
      "cuEventRecord", stream, [&](Engine& engine, const StreamRef& on, Lock&) -> Code {
        Event* const recorded = engine.event(event, "cuEventRecord");
        return recorded == nullptr ? Code{kInvalidHandle} : engine.event_record(*recorded, on);
      });
}

std::uint32_t cuEventQuery(void* event) {
  return call("cuEventQuery", Needs::kDriver, [&](Engine& engine, Lock&) -> Code {
    Event* const queried = engine.event(event, "cuEventQuery");
    return queried == nullptr ? Code{kInvalidHandle} : engine.event_query(*queried);
  });
}

std::uint32_t cuEventSynchronize(void* event) {
  return call("cuEventSynchronize", Needs::kDriver, [&](Engine& engine, Lock& lock) -> Code {
    Event* const waited_for = engine.event(event, "cuEventSynchronize");
    return waited_for == nullptr ? Code{kInvalidHandle}
                                 : engine.event_synchronize(*waited_for, lock);
  });
}

// ---- memory

std::uint32_t cuMemAlloc_v2(std::uint64_t* address, std::size_t bytes) {
  return call("cuMemAlloc", Needs::kContext, [&](Engine& engine, Lock&) {
    void* made = nullptr;
    const Code code = engine.allocate(&made, bytes, true);
    *address = reinterpret_cast<std::uint64_t>(made);
    return code;
  });
}

std::uint32_t cuMemFree_v2(std::uint64_t address) {
  return call("cuMemFree", Needs::kContext, [&](Engine& engine, Lock& lock) {
    return engine.free(pointer(address), true, lock);
  });
}

std::uint32_t cuMemHostRegister_v2(void* begin, std::size_t bytes, unsigned flags) {
  return call("cuMemHostRegister", Needs::kContext, [&](Engine& engine, Lock&) {
    if ((flags & ~kHostRegisterFlags) != 0) return Code{kInvalidValue};
    return engine.pin(begin, bytes, true, false);
  });
}

std::uint32_t cuMemHostUnregister(void* begin) {
  return call("cuMemHostUnregister", Needs::kContext,
              [&](Engine& engine, Lock& lock) { return engine.unpin(begin, false, lock); });
}

std::uint32_t cuMemcpyDtoHAsync_v2(void* to, std::uint64_t from, std::size_t bytes, void* stream) {
  return copy_async({"cuMemcpyDtoHAsync", to, pointer(from), bytes, Direction::kToHost}, stream);
}

std::uint32_t cuMemcpyHtoDAsync_v2(std::uint64_t to, const void* from, std::size_t bytes,
                                   void* stream) {
  return copy_async({"cuMemcpyHtoDAsync", pointer(to), from, bytes, Direction::kToDevice}, stream);
}

std::uint32_t cuMemcpyDtoDAsync_v2(std::uint64_t to, std::uint64_t from, std::size_t bytes,
                                   void* stream) {
  return copy_async({"cuMemcpyDtoDAsync", pointer(to), pointer(from), bytes, Direction::kOnDevice},
                    stream);
}

std::uint32_t cuMemcpyDtoH_v2(void* to, std::uint64_t from, std::size_t bytes) {
  return copy_async({"cuMemcpyDtoH", to, pointer(from), bytes, Direction::kToHost, true}, nullptr);
}

std::uint32_t cuMemcpyHtoD_v2(std::uint64_t to, const void* from, std::size_t bytes) {
  return copy_async({"cuMemcpyHtoD", pointer(to), from, bytes, Direction::kToDevice, true},
                    nullptr);
}

std::uint32_t cuMemsetD8Async(std::uint64_t to, unsigned char byte, std::size_t bytes,
                              void* stream) {
  return on_stream("cuMemsetD8Async", stream, [&](Engine& engine, const StreamRef& on, Lock&) {
    return engine.fill("cuMemsetD8Async", pointer(to), byte, bytes, on);
  });
}

// ---- other processes

std::uint32_t cuIpcGetMemHandle(IpcHandle* handle, std::uint64_t address) {
  return call("cuIpcGetMemHandle", Needs::kContext, [&](Engine& engine, Lock&) {
    return engine.ipc_memory_handle(pointer(address), handle);
  });
}

std::uint32_t cuIpcOpenMemHandle_v2(std::uint64_t* address, IpcHandle handle, unsigned flags) {
  return call("cuIpcOpenMemHandle", Needs::kContext, [&](Engine& engine, Lock&) -> Code {
    if (flags != kLazyPeerAccess) return kInvalidValue;
    void* opened = nullptr;
    const Code code = engine.ipc_open_memory(handle, &opened);
    *address = reinterpret_cast<std::uint64_t>(opened);
    return code;
  });
}

std::uint32_t cuIpcCloseMemHandle(std::uint64_t address) {
  return call("cuIpcCloseMemHandle", Needs::kContext, [&](Engine& engine, Lock& lock) {
    return engine.ipc_close_memory(pointer(address), lock);
  });
}

std::uint32_t cuIpcGetEventHandle(IpcHandle* handle, void* event) {
  return call("cuIpcGetEventHandle", Needs::kContext, [&](Engine& engine, Lock&) -> Code {
    Event* const found = engine.event(event, "cuIpcGetEventHandle");
    return found == nullptr ? Code{kInvalidHandle} : engine.ipc_event_handle(*found, handle);
  });
}

std::uint32_t cuIpcOpenEventHandle(void** event, IpcHandle handle) {
  return call("cuIpcOpenEventHandle", Needs::kContext, [&](Engine& engine, Lock&) {
    Event* opened = nullptr;
    const Code code = engine.ipc_open_event(handle, &opened, true);
    *event = opened;
    return code;
  });
}

namespace {

// Attributes of cuda.h, enum CUpointer_attribute_enum.
enum : unsigned {
  kOfContext = 1,
  kOfMemoryType = 2,
  kOfDevicePointer = 3,
  kOfHostPointer = 4,
  kOfIsManaged = 8,
  kOfDeviceOrdinal = 9,
};
constexpr unsigned kHostMemory = 1;
constexpr unsigned kDeviceMemory = 2;

Code attribute_of(Engine& engine, void* value, unsigned attribute, void* address) {
  const auto block = engine.block_at(address);
  const auto pinned = engine.pinned_at(address);
  if (block == nullptr && pinned == nullptr) return kInvalidValue;
  Context* const context = block != nullptr ? &block->device->primary : pinned->context;
  switch (attribute) {
    case kOfContext:
      *static_cast<void**>(value) = context;
      return kSuccess;
    case kOfMemoryType:
      *static_cast<unsigned*>(value) = block != nullptr ? kDeviceMemory : kHostMemory;
      return kSuccess;
    case kOfDevicePointer:
      *static_cast<void**>(value) = address;
      return kSuccess;
    case kOfHostPointer:
      if (block != nullptr) return kInvalidValue;
      *static_cast<void**>(value) = address;
      return kSuccess;
    case kOfIsManaged:
      *static_cast<unsigned*>(value) = 0;
      return kSuccess;
    case kOfDeviceOrdinal:
      *static_cast<int*>(value) = context->device->number;
      return kSuccess;
    default:
      return kInvalidValue;
  }
}

}  // namespace

std::uint32_t cuPointerGetAttribute(void* value, unsigned attribute, std::uint64_t address) {
  return call("cuPointerGetAttribute", Needs::kDriver, [&](Engine& engine, Lock&) -> Code {
    if (value == nullptr) return kInvalidValue;
    return attribute_of(engine, value, attribute, pointer(address));
  });
}
