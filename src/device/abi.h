// The part of CUDA's driver interface that is used here, declared by us.
//
// So that what is built anywhere can reach GPUs where there is libcuda.so.1: neither a toolkit when building nor the
// driver when running must be there. Names and values are those of <cuda.h>, whose meaning is told by the CUDA Driver
// API manual, sections 6.6 (device), 6.9 (primary context), 6.10 (context), 6.15 (memory), 6.20 (unified addressing),
// 6.21 (streams) and 6.22 (events). tests/device/abi_test.cc compares the declarations with a header, where there is
// one.
//
// HIP has the same shape: the same functions by other names, the same values of all constants below but
// those of memory types. Nothing loads it yet.
#pragma once

#include <cstddef>
#include <cstdint>

namespace byteps::device::abi {

struct ContextState;  // CUctx_st
struct StreamState;   // CUstream_st
struct EventState;    // CUevent_st
using Context = ContextState*;
using Stream =
    StreamState*;  // null: the legacy default stream; kStreamPerThread: the calling thread's own
using Event = EventState*;
using DeviceNumber = int;                  // CUdevice
using DeviceAddress = unsigned long long;  // CUdeviceptr

enum Code : std::uint32_t {  // CUresult
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kDeinitialized = 4,  // the process ends
  kStubLibrary = 34,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kNotReady = 600,
};

enum PointerAttribute : std::uint32_t { kPointerMemoryType = 2, kPointerDeviceOrdinal = 9 };
enum MemoryType : std::uint32_t { kMemoryHost = 1, kMemoryDevice = 2 };
enum CaptureStatus : std::uint32_t {
  kCaptureNone = 0,
  kCaptureActive = 1,
  kCaptureInvalidated = 2
};
enum CaptureMode : std::uint32_t {
  kCaptureGlobal = 0,
  kCaptureThreadLocal = 1,
  kCaptureRelaxed = 2
};
inline constexpr std::uintptr_t kStreamPerThread = 2;  // a handle for a stream of each thread
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kHostRegisterPortable = 1;

}  // namespace byteps::device::abi
