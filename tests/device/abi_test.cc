// Our declarations of CUDA's driver interface are those of its header, where one is installed: by a toolkit, or with
// torch's wheels (tests/CMakeLists.txt looks for it).
#include <type_traits>

#include <gtest/gtest.h>

#include "device/driver.h"

#if __has_include(<cuda.h>)
#include <cuda.h>

namespace byteps::device {
namespace {

// What a type of theirs is here.
template <typename Theirs>
struct Ours {
  using type = Theirs;
};
template <typename Theirs>
struct Ours<Theirs*> {
  using type = typename Ours<Theirs>::type*;
};
template <>
struct Ours<CUresult> {
  using type = abi::Code;
};
template <>
struct Ours<CUcontext> {
  using type = abi::Context;
};
template <>
struct Ours<CUstream> {
  using type = abi::Stream;
};
template <>
struct Ours<CUevent> {
  using type = abi::Event;
};
template <>
struct Ours<CUpointer_attribute> {
  using type = abi::PointerAttribute;
};
template <>
struct Ours<CUstreamCaptureStatus> {
  using type = abi::CaptureStatus;
};
template <>
struct Ours<CUstreamCaptureMode> {
  using type = abi::CaptureMode;
};
template <typename Result, typename... Arguments>
struct Ours<Result (*)(Arguments...)> {
  using type = typename Ours<Result>::type (*)(typename Ours<Arguments>::type...);
};

#define SAME_FUNCTION(field, theirs) \
  static_assert(std::is_same_v<decltype(Driver::field), typename Ours<decltype(&(theirs))>::type>)

// The names are macros for those with suffixes.
SAME_FUNCTION(init, cuInit);
SAME_FUNCTION(driver_get_version, cuDriverGetVersion);
SAME_FUNCTION(get_error_name, cuGetErrorName);
SAME_FUNCTION(get_error_string, cuGetErrorString);
SAME_FUNCTION(device_get_count, cuDeviceGetCount);
SAME_FUNCTION(device_get, cuDeviceGet);
SAME_FUNCTION(device_get_pci_bus_id, cuDeviceGetPCIBusId);
SAME_FUNCTION(primary_context_retain, cuDevicePrimaryCtxRetain);
SAME_FUNCTION(primary_context_release, cuDevicePrimaryCtxRelease);
SAME_FUNCTION(context_push, cuCtxPushCurrent);
SAME_FUNCTION(context_pop, cuCtxPopCurrent);
SAME_FUNCTION(stream_create, cuStreamCreateWithPriority);
SAME_FUNCTION(stream_destroy, cuStreamDestroy);
SAME_FUNCTION(stream_synchronize, cuStreamSynchronize);
SAME_FUNCTION(thread_exchange_capture_mode, cuThreadExchangeStreamCaptureMode);
SAME_FUNCTION(stream_is_capturing, cuStreamIsCapturing);
SAME_FUNCTION(event_create, cuEventCreate);
SAME_FUNCTION(event_destroy, cuEventDestroy);
SAME_FUNCTION(event_record, cuEventRecord);
SAME_FUNCTION(event_query, cuEventQuery);
SAME_FUNCTION(host_register, cuMemHostRegister);
SAME_FUNCTION(host_unregister, cuMemHostUnregister);
SAME_FUNCTION(pointer_get_attribute, cuPointerGetAttribute);

SAME_FUNCTION(copy_to_host, cuMemcpyDtoHAsync);
SAME_FUNCTION(copy_to_device, cuMemcpyHtoDAsync);
SAME_FUNCTION(copy_on_device, cuMemcpyDtoDAsync);
SAME_FUNCTION(device_get_name, cuDeviceGetName);
static_assert(sizeof(CUdeviceptr) == sizeof(void*));
static_assert(sizeof(CUresult) == sizeof(abi::Code));

template <typename Left, typename Right>
constexpr bool same(Left left, Right right) {
  return static_cast<long>(left) == static_cast<long>(right);
}
static_assert(same(abi::kSuccess, CUDA_SUCCESS));
static_assert(same(abi::kInvalidValue, CUDA_ERROR_INVALID_VALUE));
static_assert(same(abi::kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY));
static_assert(same(abi::kNotInitialized, CUDA_ERROR_NOT_INITIALIZED));
static_assert(same(abi::kDeinitialized, CUDA_ERROR_DEINITIALIZED));
static_assert(same(abi::kStubLibrary, CUDA_ERROR_STUB_LIBRARY));
static_assert(same(abi::kNoDevice, CUDA_ERROR_NO_DEVICE));
static_assert(same(abi::kInvalidDevice, CUDA_ERROR_INVALID_DEVICE));
static_assert(same(abi::kNotReady, CUDA_ERROR_NOT_READY));
static_assert(same(abi::kPointerMemoryType, CU_POINTER_ATTRIBUTE_MEMORY_TYPE));
static_assert(same(abi::kPointerDeviceOrdinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL));
static_assert(same(abi::kMemoryHost, CU_MEMORYTYPE_HOST));
static_assert(same(abi::kMemoryDevice, CU_MEMORYTYPE_DEVICE));
static_assert(same(abi::kCaptureNone, CU_STREAM_CAPTURE_STATUS_NONE));
static_assert(same(abi::kCaptureActive, CU_STREAM_CAPTURE_STATUS_ACTIVE));
static_assert(same(abi::kCaptureInvalidated, CU_STREAM_CAPTURE_STATUS_INVALIDATED));
static_assert(same(abi::kCaptureGlobal, CU_STREAM_CAPTURE_MODE_GLOBAL));
static_assert(same(abi::kCaptureThreadLocal, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
static_assert(same(abi::kCaptureRelaxed, CU_STREAM_CAPTURE_MODE_RELAXED));
static_assert(same(abi::kStreamNonBlocking, CU_STREAM_NON_BLOCKING));
static_assert(same(abi::kEventDisableTiming, CU_EVENT_DISABLE_TIMING));
static_assert(same(abi::kHostRegisterPortable, CU_MEMHOSTREGISTER_PORTABLE));

TEST(CudaAbi, our_declarations_are_those_of_the_header) {
  GTEST_LOG_(INFO) << "compared with cuda.h of version " << CUDA_VERSION;
}

}  // namespace
}  // namespace byteps::device

#else

TEST(CudaAbi, our_declarations_are_those_of_the_header) {
  GTEST_SKIP() << "no cuda.h: neither a toolkit nor torch's wheels are installed";
}

#endif
