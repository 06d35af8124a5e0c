// The runtime's functions by CUDA's names, over the same engine as the driver's: a cudaStream_t is a CUstream.
//
// Compiled by fake_gpu.py with the headers of the torch that is installed, which also writes a stub for each function
// that torch wants and that is not here. The runtime needs no context: it makes that of the thread's device current.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <sys/mman.h>

#include "tests/gpu/engine.h"
#include "tests/gpu/fake_gpu.h"

namespace {

using fake_gpu::Code;
using fake_gpu::Context;
using fake_gpu::Copy;
using fake_gpu::Device;
using fake_gpu::Direction;
using fake_gpu::Engine;
using fake_gpu::StreamRef;
using Lock = Engine::Lock;

constexpr std::size_t kPage = 4096;

thread_local int chosen_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t noted(Code code) {
  const auto error = static_cast<cudaError_t>(code);
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}

// Makes a context current where none is.
Code make_current(Engine& engine) {
  const Code code = engine.initialise();
  if (code != fake_gpu::kSuccess) return code;
  if (engine.current() == nullptr) {
    Device* const device = engine.device(chosen_device);
    if (device == nullptr) return fake_gpu::kInvalidDevice;
    const Code retained = engine.retain(*device, true);
    if (retained != fake_gpu::kSuccess) return retained;
    engine.set_current(&device->primary);
  }
  const Context* const context = engine.current();
  return context->is_active() ? context->lost : Code{fake_gpu::kContextIsDestroyed};
}

template <typename Body>
cudaError_t call(const char* name, const Body& body) {
  const auto all = [&](Engine& engine, Lock& lock) -> Code {
    const Code code = make_current(engine);
    return code != fake_gpu::kSuccess ? code : Code(body(engine, lock));
  };
  return noted(Engine::of_process().call({name, false, Engine::Needs::kNothing}, all));
}

// Without a context.
template <typename Body>
cudaError_t call_bare(const char* name, const Body& body) {
  const auto all = [&](Engine& engine, Lock&) -> Code {
    const Code code = engine.initialise();
    return code != fake_gpu::kSuccess ? code : Code(body(engine));
  };
  return noted(Engine::of_process().call({name, false, Engine::Needs::kNothing}, all));
}

template <typename Body>
cudaError_t on_stream(const char* name, cudaStream_t handle, const Body& body) {
  return call(name, [&](Engine& engine, Lock& lock) -> Code {
    const StreamRef stream = engine.stream(handle, name);
    return stream == nullptr ? Code{fake_gpu::kInvalidHandle} : Code(body(engine, stream, lock));
  });
}

template <typename Body>
cudaError_t on_event(const char* name, cudaEvent_t handle, const Body& body) {
  return call(name, [&](Engine& engine, Lock& lock) -> Code {
    fake_gpu::Event* const event = engine.event(handle, name);
    return event == nullptr ? Code{fake_gpu::kInvalidHandle} : Code(body(engine, *event, lock));
  });
}

Direction direction_of(Engine& engine, const void* to, const void* from, cudaMemcpyKind kind) {
  switch (kind) {
    case cudaMemcpyHostToHost:
      return Direction::kOnHost;
    case cudaMemcpyHostToDevice:
      return Direction::kToDevice;
    case cudaMemcpyDeviceToHost:
      return Direction::kToHost;
    case cudaMemcpyDeviceToDevice:
      return Direction::kOnDevice;
    default:
      break;
  }
  const bool to_device = engine.block_at(to) != nullptr;
  const bool from_device = engine.block_at(from) != nullptr;
  if (to_device) return from_device ? Direction::kOnDevice : Direction::kToDevice;
  return from_device ? Direction::kToHost : Direction::kOnHost;
}

cudaError_t copy(const char* name, void* to, const void* from, std::size_t bytes,
                 cudaMemcpyKind kind, bool is_sync, cudaStream_t stream) {
  return on_stream(name, stream, [&](Engine& engine, const StreamRef& on, Lock& lock) {
    const Direction direction = direction_of(engine, to, from, kind);
    return engine.copy(Copy{name, to, from, bytes, direction, is_sync, false}, on, lock);
  });
}

template <typename Theirs>
fake_gpu::IpcHandle handle_in(const Theirs& handle) {
  static_assert(sizeof handle == sizeof(fake_gpu::IpcHandle));
  fake_gpu::IpcHandle ours;
  std::memcpy(&ours, &handle, sizeof ours);
  return ours;
}

}  // namespace

extern "C" {
#define API __attribute__((visibility("default")))

// ---- errors, versions

API cudaError_t cudaGetLastError() {
  return std::exchange(last_error, cudaSuccess);
}
API cudaError_t cudaPeekAtLastError() {
  return last_error;
}
API const char* cudaGetErrorString(cudaError_t error) {
  const char* const text = fake_gpu::text_of(error);
  return text == nullptr ? "unrecognized error code" : text;
}
API const char* cudaGetErrorName(cudaError_t error) {
  const char* const name = fake_gpu::name_of(error);
  return name == nullptr ? "unrecognized error code" : name;
}
API cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
API cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
API cudaError_t cudaProfilerStart() {
  return cudaSuccess;
}
API cudaError_t cudaProfilerStop() {
  return cudaSuccess;
}

// ---- devices

API cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  return call_bare("cudaGetDeviceCount", [&](Engine& engine) {
    *count = static_cast<int>(engine.device_count());
    return fake_gpu::kSuccess;
  });
}

API cudaError_t cudaGetDevice(int* device) {
  return call_bare("cudaGetDevice", [&](Engine& engine) {
    const Context* const context = engine.current();
    *device = context == nullptr ? chosen_device : context->device->number;
    return fake_gpu::kSuccess;
  });
}

API cudaError_t cudaSetDevice(int number) {
  return call_bare("cudaSetDevice", [&](Engine& engine) -> Code {
    Device* const device = engine.device(number);
    if (device == nullptr) return fake_gpu::kInvalidDevice;
    const Code code = engine.retain(*device, true);
    if (code != fake_gpu::kSuccess) return code;
    chosen_device = number;
    engine.set_current(&device->primary);
    return fake_gpu::kSuccess;
  });
}

API cudaError_t cudaDeviceSynchronize() {
  return call("cudaDeviceSynchronize",
              [](Engine& engine, Lock& lock) { return engine.context_synchronize(lock); });
}

// As a Hopper has them, where torch looks.
API cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int number) {
  return call_bare("cudaGetDeviceProperties", [&](Engine& engine) -> Code {
    const Device* const device = engine.device(number);
    if (device == nullptr) return fake_gpu::kInvalidDevice;
    std::memset(p, 0, sizeof *p);
    std::strcpy(p->name, "Fake GPU");
    std::memset(p->uuid.bytes, device->physical + 1, sizeof p->uuid.bytes);
    p->totalGlobalMem = engine.settings().memory_bytes;
    p->major = 9;
    p->multiProcessorCount = 132;
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsPerMultiProcessor = 2048;
    p->sharedMemPerBlock = 48 << 10;
    p->sharedMemPerMultiprocessor = 228 << 10;
    p->sharedMemPerBlockOptin = 227 << 10;
    p->regsPerBlock = 64 << 10;
    p->regsPerMultiprocessor = 64 << 10;
    p->maxGridSize[0] = 2147483647;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->unifiedAddressing = 1;
    p->asyncEngineCount = 2;
    p->concurrentKernels = 1;
    p->l2CacheSize = 50 << 20;
    p->pciBusID = device->physical + 1;
    return fake_gpu::kSuccess;
  });
}

API cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int number) {
  cudaDeviceProp p;
  const cudaError_t error = cudaGetDeviceProperties(&p, number);
  if (error != cudaSuccess) return error;
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = p.major;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = p.multiProcessorCount;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(p.sharedMemPerBlockOptin);
      break;
    case cudaDevAttrPciBusId:
      *value = p.pciBusID;
      break;
    case cudaDevAttrUnifiedAddressing:
      *value = 1;
      break;
    default:
      *value = 0;
  }
  return cudaSuccess;
}

API cudaError_t cudaDeviceGetPCIBusId(char* id, int capacity, int number) {
  return call_bare("cudaDeviceGetPCIBusId", [&](Engine& engine) -> Code {
    const Device* const device = engine.device(number);
    if (device == nullptr) return fake_gpu::kInvalidDevice;
    std::snprintf(id, static_cast<std::size_t>(capacity), "0000:%02x:00.0",
                  static_cast<unsigned>(device->physical + 1) & 0xFFU);
    return fake_gpu::kSuccess;
  });
}

API cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}

API cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

// ---- streams

API cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  return call("cudaStreamCreateWithPriority", [&](Engine& engine, Lock&) {
    StreamRef made;
    const bool is_blocking = (flags & cudaStreamNonBlocking) == 0;
    const Code code = engine.stream_create(&made, is_blocking, priority, false);
    *stream = reinterpret_cast<cudaStream_t>(made.get());
    return code;
  });
}
API cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
API cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithPriority(stream, 0, 0);
}

API cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return call("cudaStreamDestroy",
              [&](Engine& engine, Lock&) { return engine.stream_destroy(stream); });
}

API cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  return on_stream("cudaStreamGetPriority", stream, [&](Engine&, const StreamRef& on, Lock&) {
    *priority = on->priority;
    return fake_gpu::kSuccess;
  });
}

API cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return on_stream("cudaStreamSynchronize", stream,
                   [](Engine& engine, const StreamRef& on, Lock& lock) {
                     return engine.stream_synchronize(on, lock);
                   });
}

API cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return on_stream("cudaStreamQuery", stream, [](Engine& engine, const StreamRef& on, Lock&) {
    return engine.stream_query(on);
  });
}

API cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return on_stream("cudaStreamWaitEvent", stream,
                   [&](Engine& engine, const StreamRef& on, Lock&) -> Code {
                     fake_gpu::Event* const waited_for = engine.event(event, "cudaStreamWaitEvent");
                     return waited_for == nullptr ? Code{fake_gpu::kInvalidHandle}
                                                  : engine.stream_wait(on, *waited_for);
                   });
}

API cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument) {
  return on_stream("cudaLaunchHostFunc", stream, [&](Engine& engine, const StreamRef& on, Lock&) {
    return engine.host_function(on, "a host function", [=] { function(argument); });
  });
}

API cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback,
                                      void* argument, unsigned) {
  return on_stream("cudaStreamAddCallback", stream,
                   [&](Engine& engine, const StreamRef& on, Lock&) {
                     return engine.host_function(on, "a callback",
                                                 [=] { callback(stream, cudaSuccess, argument); });
                   });
}

// ---- capture

API cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return on_stream("cudaStreamIsCapturing", stream,
                   [&](Engine& engine, const StreamRef& on, Lock&) {
                     unsigned found = 0;
                     const Code code = engine.capture_status(on, &found);
                     *status = static_cast<cudaStreamCaptureStatus>(found);
                     return code;
                   });
}

API cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return on_stream("cudaStreamBeginCapture", stream,
                   [&](Engine& engine, const StreamRef& on, Lock&) {
                     return engine.capture_begin(on, static_cast<unsigned>(mode));
                   });
}

API cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return on_stream("cudaStreamEndCapture", stream, [&](Engine& engine, const StreamRef& on, Lock&) {
    bool is_valid = false;
    const Code code = engine.capture_end(on, &is_valid);
    *graph = is_valid ? reinterpret_cast<cudaGraph_t>(on.get()) : nullptr;
    return code;
  });
}

API cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return call("cudaThreadExchangeStreamCaptureMode", [&](Engine& engine, Lock&) {
    *mode = static_cast<cudaStreamCaptureMode>(
        engine.exchange_capture_mode(static_cast<unsigned>(*mode)));
    return fake_gpu::kSuccess;
  });
}

#if CUDART_VERSION >= 13000
API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                         unsigned long long* id, cudaGraph_t*,
                                         const cudaGraphNode_t**, const cudaGraphEdgeData**,
                                         std::size_t*) {
  if (id != nullptr) *id = 1;
  return cudaStreamIsCapturing(stream, status);
}
#endif

// ---- events

API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return call("cudaEventCreateWithFlags", [&](Engine& engine, Lock&) {
    fake_gpu::Event* made = nullptr;
    const bool is_timed = (flags & cudaEventDisableTiming) == 0;
    const Code code =
        engine.event_create(&made, is_timed, false, (flags & cudaEventInterprocess) != 0);
    *event = reinterpret_cast<cudaEvent_t>(made);
    return code;
  });
}
API cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, 0);
}

API cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return call("cudaEventDestroy",
              [&](Engine& engine, Lock&) { return engine.event_destroy(event); });
}

API cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return on_stream("cudaEventRecord", stream,
                   [&](Engine& engine, const StreamRef& on, Lock&) -> Code {
                     fake_gpu::Event* const recorded = engine.event(event, "cudaEventRecord");
                     return recorded == nullptr ? Code{fake_gpu::kInvalidHandle}
                                                : engine.event_record(*recorded, on);
                   });
}
API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, 0);
}

API cudaError_t cudaEventQuery(cudaEvent_t event) {
  return on_event("cudaEventQuery", event, [](Engine& engine, fake_gpu::Event& of, Lock&) {
    return engine.event_query(of);
  });
}

API cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return on_event("cudaEventSynchronize", event,
                  [](Engine& engine, fake_gpu::Event& of, Lock& lock) {
                    return engine.event_synchronize(of, lock);
                  });
}

API cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
  return on_event(
      "cudaEventElapsedTime", begin, [&](Engine& engine, fake_gpu::Event& from, Lock&) -> Code {
        fake_gpu::Event* const to = engine.event(end, "cudaEventElapsedTime");
        return to == nullptr ? Code{fake_gpu::kInvalidHandle} : engine.event_elapsed(from, *to, ms);
      });
}

// ---- memory

API cudaError_t cudaMalloc(void** address, std::size_t bytes) {
  return call("cudaMalloc", [&](Engine& engine, Lock&) {
    *address = nullptr;
    return bytes == 0 ? Code{fake_gpu::kSuccess} : engine.allocate(address, bytes, false);
  });
}

API cudaError_t cudaFree(void* address) {
  return call("cudaFree",
              [&](Engine& engine, Lock& lock) { return engine.free(address, false, lock); });
}

API cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* address) {
  return call("cudaIpcGetMemHandle", [&](Engine& engine, Lock&) {
    return engine.ipc_memory_handle(address, reinterpret_cast<fake_gpu::IpcHandle*>(handle));
  });
}

API cudaError_t cudaIpcOpenMemHandle(void** address, cudaIpcMemHandle_t handle, unsigned) {
  return call("cudaIpcOpenMemHandle", [&](Engine& engine, Lock&) {
    return engine.ipc_open_memory(handle_in(handle), address);
  });
}

API cudaError_t cudaIpcCloseMemHandle(void* address) {
  return call("cudaIpcCloseMemHandle",
              [&](Engine& engine, Lock& lock) { return engine.ipc_close_memory(address, lock); });
}

API cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
  return on_event("cudaIpcGetEventHandle", event, [&](Engine& engine, fake_gpu::Event& of, Lock&) {
    return engine.ipc_event_handle(of, reinterpret_cast<fake_gpu::IpcHandle*>(handle));
  });
}

API cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t handle) {
  return call("cudaIpcOpenEventHandle", [&](Engine& engine, Lock&) {
    fake_gpu::Event* opened = nullptr;
    const Code code = engine.ipc_open_event(handle_in(handle), &opened, false);
    *event = reinterpret_cast<cudaEvent_t>(opened);
    return code;
  });
}

API cudaError_t cudaMemGetInfo(std::size_t* available, std::size_t* total) {
  return call("cudaMemGetInfo", [&](Engine& engine, Lock&) {
    *total = engine.settings().memory_bytes;
    *available = *total - engine.current()->device->used_bytes;
    return fake_gpu::kSuccess;
  });
}

API cudaError_t cudaHostAlloc(void** address, std::size_t bytes, unsigned) {
  return call("cudaHostAlloc", [&](Engine& engine, Lock&) -> Code {
    const std::size_t whole = (bytes + kPage - 1) / kPage * kPage;
    void* const made =
        mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED) return fake_gpu::kOutOfMemory;
    *address = made;
    const Code code = engine.pin(made, whole, false, true);
    if (code != fake_gpu::kSuccess) munmap(made, whole);
    return code;
  });
}

API cudaError_t cudaFreeHost(void* address) {
  return call("cudaFreeHost", [&](Engine& engine, Lock& lock) -> Code {
    if (address == nullptr) return fake_gpu::kSuccess;
    const auto pinned = engine.pinned_at(address);
    const Code code = engine.unpin(address, true, lock);
    if (code == fake_gpu::kSuccess) munmap(address, pinned->bytes);
    return code;
  });
}

API cudaError_t cudaHostRegister(void* address, std::size_t bytes, unsigned) {
  return call("cudaHostRegister",
              [&](Engine& engine, Lock&) { return engine.pin(address, bytes, false, false); });
}

API cudaError_t cudaHostUnregister(void* address) {
  return call("cudaHostUnregister",
              [&](Engine& engine, Lock& lock) { return engine.unpin(address, false, lock); });
}

API cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  return call("cudaPointerGetAttributes", [&](Engine& engine, Lock&) {
    std::memset(attributes, 0, sizeof *attributes);
    const auto block = engine.block_at(address);
    const auto pinned = engine.pinned_at(address);
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->device = -1;
    if (block != nullptr) {
      attributes->type = cudaMemoryTypeDevice;
      attributes->device = block->device->number;
      attributes->devicePointer = const_cast<void*>(address);
    } else if (pinned != nullptr) {
      attributes->type = cudaMemoryTypeHost;
      attributes->device = pinned->context->device->number;
      attributes->devicePointer = attributes->hostPointer = const_cast<void*>(address);
    }
    return fake_gpu::kSuccess;
  });
}

API cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                                cudaStream_t stream) {
  return copy("cudaMemcpyAsync", to, from, bytes, kind, false, stream);
}
API cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  return copy("cudaMemcpy", to, from, bytes, kind, true, nullptr);
}
API cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, std::size_t bytes,
                                    cudaStream_t stream) {
  return copy("cudaMemcpyPeerAsync", to, from, bytes, cudaMemcpyDeviceToDevice, false, stream);
}
API cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from,
                                  std::size_t from_pitch, std::size_t width, std::size_t height,
                                  cudaMemcpyKind kind, cudaStream_t stream) {
  for (std::size_t row = 0; row < height; ++row) {
    const cudaError_t error =
        copy("cudaMemcpy2DAsync", static_cast<char*>(to) + row * to_pitch,
             static_cast<const char*>(from) + row * from_pitch, width, kind, false, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

API cudaError_t cudaMemsetAsync(void* to, int byte, std::size_t bytes, cudaStream_t stream) {
  return on_stream("cudaMemsetAsync", stream, [&](Engine& engine, const StreamRef& on, Lock&) {
    return engine.fill("cudaMemsetAsync", to, byte, bytes, on);
  });
}
API cudaError_t cudaMemset(void* to, int byte, std::size_t bytes) {
  return cudaMemsetAsync(to, byte, bytes, nullptr);
}

}  // extern "C"

// ---- kernels: none of them runs

namespace {

struct Registered {
  const void* function;
  const char* name;
};

std::vector<Registered>& registered() {
  static auto* const all = new std::vector<Registered>;
  return *all;
}

const char* name_of_kernel(const void* function) {
  for (const Registered& one : registered()) {
    if (one.function == function) return one.name;
  }
  return "unknown";
}

struct Configuration {
  dim3 grid, block;
  std::size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
};
thread_local Configuration configuration;

// Python computes what kernels would (on_fake_gpu.py); one that is launched all the same would leave nothing behind.
cudaError_t refuse_kernel(const void* function) {
  return call("cudaLaunchKernel", [&](Engine&, Lock&) -> Code {
    fake_gpu::violation("every kernel is computed by somebody", "launch of %s",
                        name_of_kernel(function));
    return fake_gpu::kNotSupported;
  });
}

// The one that nobody else can compute: torch's process group of NCCL fills the number that its barrier sums, below
// any mode of Python's. Its arguments: how many, FillFunctor<float>{value}, where to.
constexpr std::string_view kFill =
    "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfE";

cudaError_t fill(void** arguments, cudaStream_t stream) {
  const auto count = static_cast<std::size_t>(*static_cast<int*>(arguments[0]));
  const float value = *static_cast<float*>(arguments[1]);
  void* const to = *static_cast<void**>(arguments[2]);
  return on_stream("cudaLaunchKernel", stream, [&](Engine& engine, const StreamRef& on, Lock&) {
    fake_gpu::Kernel kernel;
    kernel.what = "a fill of floats";
    kernel.writes = {to};
    kernel.write_bytes = {count * sizeof value};
    kernel.compute = [count, value](const auto&, const std::vector<char*>& writes) {
      const std::vector<float> values(count, value);
      std::memcpy(writes[0], values.data(), count * sizeof value);
    };
    return engine.launch(std::move(kernel), on);
  });
}

cudaError_t launch(const void* function, void** arguments, cudaStream_t stream) {
  if (std::string_view(name_of_kernel(function)).starts_with(kFill)) return fill(arguments, stream);
  return refuse_kernel(function);
}

std::uint32_t not_supported() {
  return fake_gpu::kNotSupported;
}

}  // namespace

extern "C" {

API cudaError_t cudaLaunchKernel(const void* function, dim3, dim3, void** arguments, std::size_t,
                                 cudaStream_t stream) {
  return launch(function, arguments, stream);
}
API cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3, dim3, void**, std::size_t,
                                            cudaStream_t) {
  return refuse_kernel(function);
}
API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void* function, void**) {
  return refuse_kernel(function);
}
API cudaError_t __cudaLaunchKernel(cudaKernel_t function, dim3, dim3, void** arguments, std::size_t,
                                   cudaStream_t stream) {
  return launch(function, arguments, stream);
}
API cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}

API cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  std::memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = 1024;
  attributes->binaryVersion = attributes->ptxVersion = 90;
  return cudaSuccess;
}
API cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  return cudaSuccess;
}
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* count, const void*, int,
                                                              std::size_t) {
  *count = 2;
  return cudaSuccess;
}
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* count, const void*, int,
                                                                       std::size_t, unsigned) {
  *count = 2;
  return cudaSuccess;
}

// What the compiler puts into whoever has kernels.
API char __cudaInitModule(void**) {
  return 1;
}
API void** __cudaRegisterFatBinary(void*) {
  static void* handle[2];
  return handle;
}
API void __cudaRegisterFatBinaryEnd(void**) {}
API void __cudaUnregisterFatBinary(void**) {}
API void __cudaRegisterFunction(void**, const char* function, char*, const char* name, int, void*,
                                void*, void*, void*, int*) {
  registered().push_back({function, name});
}
API void __cudaRegisterVar(void**, char*, char*, const char*, int, std::size_t, int, int) {}
API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared_bytes,
                                         cudaStream_t stream) {
  configuration = Configuration{grid, block, shared_bytes, stream};
  return 0;
}
API cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared_bytes,
                                           void* stream) {
  *grid = configuration.grid;
  *block = configuration.block;
  *shared_bytes = configuration.shared_bytes;
  *static_cast<cudaStream_t*>(stream) = configuration.stream;
  return cudaSuccess;
}

// The driver's functions by their plain names; for those that the fake lacks, one that is not supported.
API cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned,
                                                 unsigned long long,
                                                 cudaDriverEntryPointQueryResult* result) {
  *function = dlsym(RTLD_DEFAULT, (std::string(symbol) + "_v2").c_str());
  if (*function == nullptr) *function = dlsym(RTLD_DEFAULT, symbol);
  if (*function == nullptr) *function = reinterpret_cast<void*>(&not_supported);
  if (result != nullptr) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

}  // extern "C"
