// The fake's declarations of NVML are those of its header, where `make setup` has fetched one.
#include <gtest/gtest.h>

#if __has_include(<nvml.h>)
#include <cstddef>

#include <nvml.h>

#include "tests/gpu/abi.h"

namespace declared {
#define FAKE_NVML_API
#include "tests/gpu/fake_nvml.h"
}  // namespace declared

OURS_IS(nvmlReturn_t, declared::NvmlResult);
OURS_IS(nvmlGpuTopologyLevel_t, declared::NvmlLevel);
OURS_IS(nvmlPciInfo_t, declared::NvmlPciInfo);
OURS_IS(nvmlEnableState_t, unsigned);
template <>
struct fake_gpu::abi::Ours<nvmlDevice_st> {
  using type = declared::NvmlDevice;
};

SAME_FUNCTION(nvmlInit_v2);
SAME_FUNCTION(nvmlShutdown);
SAME_FUNCTION(nvmlErrorString);
SAME_FUNCTION(nvmlDeviceGetCount_v2);
SAME_FUNCTION(nvmlDeviceGetHandleByIndex_v2);
SAME_FUNCTION(nvmlDeviceGetHandleByPciBusId_v2);
SAME_FUNCTION(nvmlDeviceGetPciInfo_v3);
SAME_FUNCTION(nvmlDeviceGetUUID);
SAME_FUNCTION(nvmlDeviceGetNvLinkState);
SAME_FUNCTION(nvmlDeviceGetNvLinkRemotePciInfo_v2);
SAME_FUNCTION(nvmlDeviceGetTopologyCommonAncestor);

using fake_gpu::abi::same;
static_assert(same(declared::kNvmlSuccess, NVML_SUCCESS));
static_assert(same(declared::kNvmlUninitialized, NVML_ERROR_UNINITIALIZED));
static_assert(same(declared::kNvmlInvalidArgument, NVML_ERROR_INVALID_ARGUMENT));
static_assert(same(declared::kNvmlNotSupported, NVML_ERROR_NOT_SUPPORTED));
static_assert(same(declared::kNvmlNotFound, NVML_ERROR_NOT_FOUND));
static_assert(same(declared::kNvmlInsufficientSize, NVML_ERROR_INSUFFICIENT_SIZE));
static_assert(same(declared::kNvmlInternal, NVML_TOPOLOGY_INTERNAL));
static_assert(same(declared::kNvmlSingle, NVML_TOPOLOGY_SINGLE));
static_assert(same(declared::kNvmlHostBridge, NVML_TOPOLOGY_HOSTBRIDGE));
static_assert(same(declared::kNvmlSystem, NVML_TOPOLOGY_SYSTEM));
static_assert(NVML_FEATURE_ENABLED == 1);
static_assert(offsetof(declared::NvmlPciInfo, bus) == offsetof(nvmlPciInfo_t, bus));
static_assert(offsetof(declared::NvmlPciInfo, bus_id) == offsetof(nvmlPciInfo_t, busId));

TEST(NvmlAbi, our_declarations_are_those_of_the_header) {
  GTEST_LOG_(INFO) << "compared with nvml.h of version " << NVML_API_VERSION;
}

#else

TEST(NvmlAbi, our_declarations_are_those_of_the_header) {
  GTEST_SKIP() << "no nvml.h: `make setup` fetches it from nvidia-nvml-dev where that can be had";
}

#endif
