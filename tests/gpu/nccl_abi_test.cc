// The fake's declarations of NCCL are those of its header, where torch's wheels have brought one.
#include <gtest/gtest.h>

#if __has_include(<nccl.h>) && __has_include(<cuda_runtime.h>)
#include <cstddef>
#include <cstdint>

#include <nccl.h>

#include "tests/gpu/abi.h"

namespace declared {
#define FAKE_NCCL_API
#include "tests/gpu/fake_nccl.h"
}  // namespace declared

OURS_IS(ncclResult_t, declared::NcclResult);
OURS_IS(ncclDataType_t, declared::NcclType);
OURS_IS(ncclRedOp_t, declared::NcclOperator);
OURS_IS(ncclScalarResidence_t, declared::NcclResidence);
OURS_IS(ncclUniqueId, declared::NcclUniqueId);
template <>
struct fake_gpu::abi::Ours<ncclComm> {
  using type = declared::NcclComm;
};
template <>
struct fake_gpu::abi::Ours<ncclConfig_t> {
  using type = declared::NcclConfig;
};
template <>
struct fake_gpu::abi::Ours<cudaStream_t> {
  using type = void*;
};

SAME_FUNCTION(ncclGetVersion);
SAME_FUNCTION(ncclGetErrorString);
SAME_FUNCTION(ncclGetLastError);
SAME_FUNCTION(ncclGetUniqueId);
SAME_FUNCTION(ncclCommInitRank);
SAME_FUNCTION(ncclCommInitRankConfig);
SAME_FUNCTION(ncclCommInitAll);
SAME_FUNCTION(ncclCommFinalize);
SAME_FUNCTION(ncclCommDestroy);
SAME_FUNCTION(ncclCommAbort);
SAME_FUNCTION(ncclCommGetAsyncError);
SAME_FUNCTION(ncclCommCount);
SAME_FUNCTION(ncclCommCuDevice);
SAME_FUNCTION(ncclCommUserRank);
SAME_FUNCTION(ncclRedOpCreatePreMulSum);
SAME_FUNCTION(ncclRedOpDestroy);
SAME_FUNCTION(ncclAllReduce);
SAME_FUNCTION(ncclReduce);
SAME_FUNCTION(ncclBroadcast);
SAME_FUNCTION(ncclBcast);
SAME_FUNCTION(ncclAllGather);
SAME_FUNCTION(ncclReduceScatter);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
SAME_FUNCTION(ncclAlltoAll);
#endif
SAME_FUNCTION(ncclSend);
SAME_FUNCTION(ncclRecv);
SAME_FUNCTION(ncclGroupStart);
SAME_FUNCTION(ncclGroupEnd);

using fake_gpu::abi::same;
static_assert(same(declared::kNcclSuccess, ncclSuccess));
static_assert(same(declared::kNcclUnhandledCudaError, ncclUnhandledCudaError));
static_assert(same(declared::kNcclSystemError, ncclSystemError));
static_assert(same(declared::kNcclInternalError, ncclInternalError));
static_assert(same(declared::kNcclInvalidArgument, ncclInvalidArgument));
static_assert(same(declared::kNcclInvalidUsage, ncclInvalidUsage));
static_assert(same(declared::kNcclRemoteError, ncclRemoteError));
static_assert(same(declared::kNcclInProgress, ncclInProgress));
static_assert(same(declared::kNcclInt8, ncclInt8));
static_assert(same(declared::kNcclUint8, ncclUint8));
static_assert(same(declared::kNcclInt32, ncclInt32));
static_assert(same(declared::kNcclUint32, ncclUint32));
static_assert(same(declared::kNcclInt64, ncclInt64));
static_assert(same(declared::kNcclUint64, ncclUint64));
static_assert(same(declared::kNcclFloat16, ncclFloat16));
static_assert(same(declared::kNcclFloat32, ncclFloat32));
static_assert(same(declared::kNcclFloat64, ncclFloat64));
static_assert(same(declared::kNcclBfloat16, ncclBfloat16));
static_assert(same(declared::kNcclSum, ncclSum));
static_assert(same(declared::kNcclProd, ncclProd));
static_assert(same(declared::kNcclMax, ncclMax));
static_assert(same(declared::kNcclMin, ncclMin));
static_assert(same(declared::kNcclAvg, ncclAvg));
static_assert(same(declared::kNcclOwn, ncclNumOps));
static_assert(same(declared::kNcclScalarDevice, ncclScalarDevice));
static_assert(same(declared::kNcclScalarHost, ncclScalarHostImmediate));
static_assert(offsetof(declared::NcclConfig, blocking) == offsetof(ncclConfig_t, blocking));
static_assert(offsetof(declared::NcclConfig, version) == offsetof(ncclConfig_t, version));

TEST(NcclAbi, our_declarations_are_those_of_the_header) {
  GTEST_LOG_(INFO) << "compared with nccl.h of version " << NCCL_VERSION_CODE;
}

#else

TEST(NcclAbi, our_declarations_are_those_of_the_header) {
  GTEST_SKIP() << "no nccl.h: torch's wheels with CUDA are not installed";
}

#endif
