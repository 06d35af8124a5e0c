// AMD's HIP has the shape of the driver's table: a function for each of its functions, with as many arguments, and the
// same values. Nothing loads it yet; this tells that nothing but names stands in the way.
// Compared where HIP's header is: `make setup` fetches Debian's (libamdhip64-dev).
#include <gtest/gtest.h>

#include "device/driver.h"

#if __has_include(<hip/hip_runtime_api.h>)
#define __HIP_PLATFORM_AMD__ 1
#include <hip/hip_runtime_api.h>
// HIP's functions of contexts are deprecated, for it has none: a loader selects the device instead.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#pragma GCC diagnostic ignored "-Wattributes"

namespace byteps::device {
namespace {

// How many arguments a function takes.
template <typename Function>
struct Arity;
template <typename Result, typename... Arguments>
struct Arity<Result (*)(Arguments...)> {
  static constexpr std::size_t value = sizeof...(Arguments);
};

#define SAME_SHAPE(field, theirs) \
  static_assert(Arity<decltype(Driver::field)>::value == Arity<decltype(&(theirs))>::value)

SAME_SHAPE(init, hipInit);
SAME_SHAPE(driver_get_version, hipDriverGetVersion);
SAME_SHAPE(device_get_count, hipGetDeviceCount);
SAME_SHAPE(device_get, hipDeviceGet);
SAME_SHAPE(device_get_name, hipDeviceGetName);
SAME_SHAPE(device_get_pci_bus_id, hipDeviceGetPCIBusId);
SAME_SHAPE(primary_context_retain, hipDevicePrimaryCtxRetain);
SAME_SHAPE(primary_context_release, hipDevicePrimaryCtxRelease);
SAME_SHAPE(context_push, hipCtxPushCurrent);
SAME_SHAPE(context_pop, hipCtxPopCurrent);
SAME_SHAPE(stream_create, hipStreamCreateWithPriority);
SAME_SHAPE(stream_destroy, hipStreamDestroy);
SAME_SHAPE(stream_synchronize, hipStreamSynchronize);
SAME_SHAPE(thread_exchange_capture_mode, hipThreadExchangeStreamCaptureMode);
SAME_SHAPE(stream_is_capturing, hipStreamIsCapturing);
SAME_SHAPE(event_create, hipEventCreateWithFlags);
SAME_SHAPE(event_destroy, hipEventDestroy);
SAME_SHAPE(event_query, hipEventQuery);
SAME_SHAPE(host_register, hipHostRegister);
SAME_SHAPE(host_unregister, hipHostUnregister);
SAME_SHAPE(copy_to_host, hipMemcpyDtoHAsync);
SAME_SHAPE(copy_to_device, hipMemcpyHtoDAsync);
SAME_SHAPE(copy_on_device, hipMemcpyDtoDAsync);
SAME_SHAPE(pointer_get_attribute, hipPointerGetAttribute);
// In C++ it has an overload.
static_assert(std::is_same_v<hipError_t, decltype(hipEventRecord(hipEvent_t(), hipStream_t()))>);
// These return the text, and the table's take a place for it: a loader has to bridge that.
static_assert(Arity<decltype(&hipGetErrorName)>::value + 1 ==
              Arity<decltype(Driver::get_error_name)>::value);
static_assert(Arity<decltype(&hipGetErrorString)>::value + 1 ==
              Arity<decltype(Driver::get_error_string)>::value);

template <typename Left, typename Right>
constexpr bool same(Left left, Right right) {
  return static_cast<long>(left) == static_cast<long>(right);
}
static_assert(same(abi::kSuccess, hipSuccess));
static_assert(same(abi::kInvalidValue, hipErrorInvalidValue));
static_assert(same(abi::kOutOfMemory, hipErrorOutOfMemory));
static_assert(same(abi::kNotInitialized, hipErrorNotInitialized));
static_assert(same(abi::kDeinitialized, hipErrorDeinitialized));
static_assert(same(abi::kNoDevice, hipErrorNoDevice));
static_assert(same(abi::kInvalidDevice, hipErrorInvalidDevice));
static_assert(same(abi::kNotReady, hipErrorNotReady));
static_assert(same(abi::kStreamNonBlocking, hipStreamNonBlocking));
static_assert(same(abi::kEventDisableTiming, hipEventDisableTiming));
static_assert(same(abi::kHostRegisterPortable, hipHostRegisterPortable));
static_assert(same(abi::kCaptureNone, hipStreamCaptureStatusNone));
static_assert(same(abi::kCaptureActive, hipStreamCaptureStatusActive));
static_assert(same(abi::kCaptureRelaxed, hipStreamCaptureModeRelaxed));
static_assert(same(abi::kPointerMemoryType, HIP_POINTER_ATTRIBUTE_MEMORY_TYPE));
static_assert(same(abi::kPointerDeviceOrdinal, HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL));
// The values of memory types are its own: a loader has to translate them.
static_assert(!same(abi::kMemoryDevice, hipMemoryTypeDevice));

TEST(HipAbi, its_functions_have_the_shape_of_the_table) {
  GTEST_LOG_(INFO) << "compared with HIP " << HIP_VERSION_MAJOR << "." << HIP_VERSION_MINOR;
}

}  // namespace
}  // namespace byteps::device

#else

TEST(HipAbi, its_functions_have_the_shape_of_the_table) {
  GTEST_SKIP() << "no hip/hip_runtime_api.h";
}

#endif
