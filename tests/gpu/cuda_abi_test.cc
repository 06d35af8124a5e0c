// The driver's functions in fake_gpu.h are those of CUDA's header, where torch's wheels or a toolkit have brought one.
#include <gtest/gtest.h>

#if __has_include(<cuda.h>)
#include <cstddef>
#include <cstdint>

#include <cuda.h>

#include "tests/gpu/abi.h"
#include "tests/gpu/ipc.h"

namespace declared {
#define FAKE_GPU_EXPORT
#include "tests/gpu/fake_gpu.h"
}  // namespace declared

OURS_IS(CUresult, std::uint32_t);
OURS_IS(CUcontext, void*);
OURS_IS(CUstream, void*);
OURS_IS(CUevent, void*);
OURS_IS(CUgraph, void*);
OURS_IS(CUdeviceptr, std::uint64_t);
OURS_IS(CUstreamCaptureStatus, unsigned);
OURS_IS(CUstreamCaptureMode, unsigned);
OURS_IS(CUpointer_attribute, unsigned);
OURS_IS(CUipcMemHandle, fake_gpu::IpcHandle);
OURS_IS(CUipcEventHandle, fake_gpu::IpcHandle);

SAME_FUNCTION(cuInit);
SAME_FUNCTION(cuDeviceGet);
SAME_FUNCTION(cuDevicePrimaryCtxRetain);
SAME_FUNCTION(cuDevicePrimaryCtxRelease_v2);
SAME_FUNCTION(cuCtxPushCurrent_v2);
SAME_FUNCTION(cuCtxPopCurrent_v2);
SAME_FUNCTION(cuCtxGetCurrent);
SAME_FUNCTION(cuCtxSetCurrent);
SAME_FUNCTION(cuCtxSynchronize);
SAME_FUNCTION(cuStreamCreateWithPriority);
SAME_FUNCTION(cuStreamDestroy_v2);
SAME_FUNCTION(cuStreamQuery);
SAME_FUNCTION(cuStreamSynchronize);
SAME_FUNCTION(cuStreamWaitEvent);
SAME_FUNCTION(cuStreamIsCapturing);
SAME_FUNCTION(cuStreamBeginCapture_v2);
SAME_FUNCTION(cuStreamEndCapture);
SAME_FUNCTION(cuThreadExchangeStreamCaptureMode);
SAME_FUNCTION(cuLaunchHostFunc);
SAME_FUNCTION(cuEventCreate);
SAME_FUNCTION(cuEventDestroy_v2);
SAME_FUNCTION(cuEventRecord);
SAME_FUNCTION(cuEventQuery);
SAME_FUNCTION(cuEventSynchronize);
SAME_FUNCTION(cuMemAlloc_v2);
SAME_FUNCTION(cuMemFree_v2);
SAME_FUNCTION(cuMemHostRegister_v2);
SAME_FUNCTION(cuMemHostUnregister);
SAME_FUNCTION(cuMemcpyDtoHAsync_v2);
SAME_FUNCTION(cuMemcpyHtoDAsync_v2);
SAME_FUNCTION(cuMemcpyDtoDAsync_v2);
SAME_FUNCTION(cuMemcpyDtoH_v2);
SAME_FUNCTION(cuMemcpyHtoD_v2);
SAME_FUNCTION(cuMemsetD8Async);
SAME_FUNCTION(cuIpcGetMemHandle);
SAME_FUNCTION(cuIpcOpenMemHandle_v2);
SAME_FUNCTION(cuIpcCloseMemHandle);
SAME_FUNCTION(cuIpcGetEventHandle);
SAME_FUNCTION(cuIpcOpenEventHandle);
SAME_FUNCTION(cuPointerGetAttribute);

static_assert(CU_EVENT_DISABLE_TIMING == 2 && CU_EVENT_INTERPROCESS == 4);
static_assert(CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS == 1);

TEST(CudaAbi, what_a_test_plays_is_declared_as_in_the_header) {
  GTEST_LOG_(INFO) << "compared with cuda.h of version " << CUDA_VERSION;
}

#else

TEST(CudaAbi, what_a_test_plays_is_declared_as_in_the_header) {
  GTEST_SKIP() << "no cuda.h: neither a toolkit nor torch's wheels are installed";
}

#endif
