// The fake GPU for tests: its own functions, and the driver's functions that a test needs to play the user.
//
// A test links fake_cuda, which is libcuda.so.1 (tests/gpu/CMakeLists.txt); what opens that library by its path gets
// the same engine. Handles are CUDA's, as void*; codes are CUresult's. Nothing here counts as a call of the driver
// but what begins with cu.
#pragma once

#ifndef FAKE_GPU_EXPORT  // cuda_abi_test.cc includes this file within a namespace
#include <cstddef>
#include <cstdint>
#define FAKE_GPU_EXPORT extern "C" __attribute__((visibility("default")))
namespace fake_gpu {
struct IpcHandle;  // 64 bytes (ipc.h)
}
#endif

// Everything as at the beginning of the process, with the environment read again. No other thread may be in a call,
// and nothing that was made before may be used afterwards.
FAKE_GPU_EXPORT void fake_gpu_reset();

// What happens at a violation: 0 the process exits with 86 (the default), 1 it aborts, 2 it is counted.
FAKE_GPU_EXPORT void fake_gpu_on_violation(int action);
FAKE_GPU_EXPORT std::uint64_t fake_gpu_violations();
// "rule: what happened" of the last one, or ""; valid until the next call of it by the thread.
FAKE_GPU_EXPORT const char* fake_gpu_last_violation();
// Reports what callers of the driver have not given back: retained contexts, streams, events, memory, registrations.
// How many.
FAKE_GPU_EXPORT std::uint64_t fake_gpu_check_leaks();

// The nth call of the symbol from now (1: the next) does nothing but return the code; 0: what it puts on a stream
// hangs.
FAKE_GPU_EXPORT void fake_gpu_fail(const char* symbol, std::uint64_t nth, std::uint32_t code);
FAKE_GPU_EXPORT std::uint64_t fake_gpu_calls(const char* symbol);
FAKE_GPU_EXPORT std::uint64_t fake_gpu_driver_calls();

struct FakeGpuBytes {
  std::uint64_t address;
  std::size_t bytes;
};
// Puts a kernel on a stream of the current context. After its turn has come and duration_us have passed, `compute`
// runs, in a thread of the engine, with the addresses at which the CPU finds the bytes. It may be null: then only the
// order is checked.
using FakeGpuCompute = void (*)(void* argument, void* const* reads, void* const* writes);
FAKE_GPU_EXPORT std::uint32_t fake_gpu_launch(void* stream, std::uint64_t duration_us,
                                              const FakeGpuBytes* reads, std::size_t read_count,
                                              const FakeGpuBytes* writes, std::size_t write_count,
                                              FakeGpuCompute compute, void* argument);
// A kernel that the calling thread computes, on a stream of the device: begin returns when its turn has come, with
// what end takes. Between them what is behind it on the stream waits. Null: an error, or a violation that was
// counted.
FAKE_GPU_EXPORT void* fake_gpu_kernel_begin(const char* name, int device, void* stream,
                                            const FakeGpuBytes* reads, std::size_t read_count,
                                            const FakeGpuBytes* writes, std::size_t write_count);
FAKE_GPU_EXPORT void fake_gpu_kernel_end(void* kernel);
// Where the CPU finds device memory; null: it is none. For kernels, and for tests that know that nothing is under
// way.
FAKE_GPU_EXPORT void* fake_gpu_alias(std::uint64_t address);
// The test is about to read or write pinned memory with the CPU: a violation where a copy that uses it is not known
// to be over. (The CPU's own accesses cannot be seen.)
FAKE_GPU_EXPORT void fake_gpu_host_access(const void* begin, std::size_t bytes, int is_write);

// ---- the driver (CUDA Driver API), as far as a test plays its user
FAKE_GPU_EXPORT std::uint32_t cuInit(unsigned flags);
FAKE_GPU_EXPORT std::uint32_t cuDeviceGet(int* device, int ordinal);
FAKE_GPU_EXPORT std::uint32_t cuDevicePrimaryCtxRetain(void** context, int device);
FAKE_GPU_EXPORT std::uint32_t cuDevicePrimaryCtxRelease_v2(int device);
FAKE_GPU_EXPORT std::uint32_t cuCtxPushCurrent_v2(void* context);
FAKE_GPU_EXPORT std::uint32_t cuCtxPopCurrent_v2(void** context);
FAKE_GPU_EXPORT std::uint32_t cuCtxGetCurrent(void** context);
FAKE_GPU_EXPORT std::uint32_t cuCtxSetCurrent(void* context);
FAKE_GPU_EXPORT std::uint32_t cuCtxSynchronize();
FAKE_GPU_EXPORT std::uint32_t cuStreamCreateWithPriority(void** stream, unsigned flags,
                                                         int priority);
FAKE_GPU_EXPORT std::uint32_t cuStreamDestroy_v2(void* stream);
FAKE_GPU_EXPORT std::uint32_t cuStreamQuery(void* stream);
FAKE_GPU_EXPORT std::uint32_t cuStreamSynchronize(void* stream);
FAKE_GPU_EXPORT std::uint32_t cuStreamWaitEvent(void* stream, void* event, unsigned flags);
FAKE_GPU_EXPORT std::uint32_t cuStreamIsCapturing(void* stream, unsigned* status);
FAKE_GPU_EXPORT std::uint32_t cuStreamBeginCapture_v2(void* stream, unsigned mode);
FAKE_GPU_EXPORT std::uint32_t cuStreamEndCapture(void* stream, void** graph);
FAKE_GPU_EXPORT std::uint32_t cuThreadExchangeStreamCaptureMode(unsigned* mode);
FAKE_GPU_EXPORT std::uint32_t cuLaunchHostFunc(void* stream, void (*function)(void*),
                                               void* argument);
FAKE_GPU_EXPORT std::uint32_t cuEventCreate(void** event, unsigned flags);
FAKE_GPU_EXPORT std::uint32_t cuEventDestroy_v2(void* event);
FAKE_GPU_EXPORT std::uint32_t cuEventRecord(void* event, void* stream);
FAKE_GPU_EXPORT std::uint32_t cuEventQuery(void* event);
FAKE_GPU_EXPORT std::uint32_t cuEventSynchronize(void* event);
FAKE_GPU_EXPORT std::uint32_t cuMemAlloc_v2(std::uint64_t* address, std::size_t bytes);
FAKE_GPU_EXPORT std::uint32_t cuMemFree_v2(std::uint64_t address);
FAKE_GPU_EXPORT std::uint32_t cuMemHostRegister_v2(void* begin, std::size_t bytes, unsigned flags);
FAKE_GPU_EXPORT std::uint32_t cuMemHostUnregister(void* begin);
FAKE_GPU_EXPORT std::uint32_t cuMemcpyDtoHAsync_v2(void* to, std::uint64_t from, std::size_t bytes,
                                                   void* stream);
FAKE_GPU_EXPORT std::uint32_t cuMemcpyHtoDAsync_v2(std::uint64_t to, const void* from,
                                                   std::size_t bytes, void* stream);
FAKE_GPU_EXPORT std::uint32_t cuMemcpyDtoDAsync_v2(std::uint64_t to, std::uint64_t from,
                                                   std::size_t bytes, void* stream);
FAKE_GPU_EXPORT std::uint32_t cuMemcpyDtoH_v2(void* to, std::uint64_t from, std::size_t bytes);
FAKE_GPU_EXPORT std::uint32_t cuMemcpyHtoD_v2(std::uint64_t to, const void* from,
                                              std::size_t bytes);
FAKE_GPU_EXPORT std::uint32_t cuMemsetD8Async(std::uint64_t to, unsigned char byte,
                                              std::size_t bytes, void* stream);
FAKE_GPU_EXPORT std::uint32_t cuIpcGetMemHandle(fake_gpu::IpcHandle* handle, std::uint64_t address);
FAKE_GPU_EXPORT std::uint32_t cuIpcOpenMemHandle_v2(std::uint64_t* address,
                                                    fake_gpu::IpcHandle handle, unsigned flags);
FAKE_GPU_EXPORT std::uint32_t cuIpcCloseMemHandle(std::uint64_t address);
FAKE_GPU_EXPORT std::uint32_t cuIpcGetEventHandle(fake_gpu::IpcHandle* handle, void* event);
FAKE_GPU_EXPORT std::uint32_t cuIpcOpenEventHandle(void** event, fake_gpu::IpcHandle handle);
FAKE_GPU_EXPORT std::uint32_t cuPointerGetAttribute(void* value, unsigned attribute,
                                                    std::uint64_t address);
