// The fake GPU's NCCL: its declarations, proven against nccl.h by nccl_abi_test.cc.
//
// They are NCCL's with types of our own, so that no header of NCCL is needed: enumerations are unsigned numbers, and
// of a configuration there is what the fake reads. The test includes this file within a namespace, where
// FAKE_NCCL_API is nothing.
#pragma once

#ifndef FAKE_NCCL_API
#include <cstddef>
#include <cstdint>
#define FAKE_NCCL_API extern "C" __attribute__((visibility("default")))
#endif

// What the wheels of torch have where the fake was written. fake_gpu.py gives that of the header.
#ifndef FAKE_NCCL_VERSION
#define FAKE_NCCL_VERSION 22907
#endif

struct NcclComm;  // a handle

enum NcclResult : std::uint32_t {
  kNcclSuccess = 0,
  kNcclUnhandledCudaError = 1,
  kNcclSystemError = 2,
  kNcclInternalError = 3,
  kNcclInvalidArgument = 4,
  kNcclInvalidUsage = 5,
  kNcclRemoteError = 6,
  kNcclInProgress = 7,
};

enum NcclType : std::uint32_t {
  kNcclInt8 = 0,
  kNcclUint8 = 1,
  kNcclInt32 = 2,
  kNcclUint32 = 3,
  kNcclInt64 = 4,
  kNcclUint64 = 5,
  kNcclFloat16 = 6,
  kNcclFloat32 = 7,
  kNcclFloat64 = 8,
  kNcclBfloat16 = 9,
};

enum NcclOperator : std::uint32_t {
  kNcclSum = 0,
  kNcclProd = 1,
  kNcclMax = 2,
  kNcclMin = 3,
  kNcclAvg = 4,
  kNcclOwn = 5,  // and above: made by ncclRedOpCreatePreMulSum
};

enum NcclResidence : std::uint32_t { kNcclScalarDevice = 0, kNcclScalarHost = 1 };

struct NcclUniqueId {
  char internal[128];
};

struct NcclConfig {
  std::size_t size;
  unsigned magic;
  unsigned version;
  int blocking;  // 0: calls may return kNcclInProgress. Undefined (INT_MIN) is as 1
};

FAKE_NCCL_API NcclResult ncclGetVersion(int* version);
FAKE_NCCL_API const char* ncclGetErrorString(NcclResult result);
FAKE_NCCL_API const char* ncclGetLastError(NcclComm* comm);

FAKE_NCCL_API NcclResult ncclGetUniqueId(NcclUniqueId* id);
FAKE_NCCL_API NcclResult ncclCommInitRank(NcclComm** comm, int ranks, NcclUniqueId id, int rank);
FAKE_NCCL_API NcclResult ncclCommInitRankConfig(NcclComm** comm, int ranks, NcclUniqueId id,
                                                int rank, NcclConfig* config);
FAKE_NCCL_API NcclResult ncclCommInitAll(NcclComm** comms, int count, const int* devices);
FAKE_NCCL_API NcclResult ncclCommFinalize(NcclComm* comm);
FAKE_NCCL_API NcclResult ncclCommDestroy(NcclComm* comm);
FAKE_NCCL_API NcclResult ncclCommAbort(NcclComm* comm);
FAKE_NCCL_API NcclResult ncclCommGetAsyncError(NcclComm* comm, NcclResult* error);
FAKE_NCCL_API NcclResult ncclCommCount(NcclComm* comm, int* count);
FAKE_NCCL_API NcclResult ncclCommCuDevice(NcclComm* comm, int* device);
FAKE_NCCL_API NcclResult ncclCommUserRank(NcclComm* comm, int* rank);

FAKE_NCCL_API NcclResult ncclRedOpCreatePreMulSum(NcclOperator* op, void* scalar, NcclType type,
                                                  NcclResidence residence, NcclComm* comm);
FAKE_NCCL_API NcclResult ncclRedOpDestroy(NcclOperator op, NcclComm* comm);

FAKE_NCCL_API NcclResult ncclAllReduce(const void* from, void* to, std::size_t count, NcclType type,
                                       NcclOperator op, NcclComm* comm, void* stream);
FAKE_NCCL_API NcclResult ncclReduce(const void* from, void* to, std::size_t count, NcclType type,
                                    NcclOperator op, int root, NcclComm* comm, void* stream);
FAKE_NCCL_API NcclResult ncclBroadcast(const void* from, void* to, std::size_t count, NcclType type,
                                       int root, NcclComm* comm, void* stream);
FAKE_NCCL_API NcclResult ncclBcast(void* memory, std::size_t count, NcclType type, int root,
                                   NcclComm* comm, void* stream);
FAKE_NCCL_API NcclResult ncclAllGather(const void* from, void* to, std::size_t count_of_each,
                                       NcclType type, NcclComm* comm, void* stream);
FAKE_NCCL_API NcclResult ncclReduceScatter(const void* from, void* to, std::size_t count_of_each,
                                           NcclType type, NcclOperator op, NcclComm* comm,
                                           void* stream);
FAKE_NCCL_API NcclResult ncclAlltoAll(const void* from, void* to, std::size_t count_of_each,
                                      NcclType type, NcclComm* comm, void* stream);
FAKE_NCCL_API NcclResult ncclSend(const void* from, std::size_t count, NcclType type, int peer,
                                  NcclComm* comm, void* stream);
FAKE_NCCL_API NcclResult ncclRecv(void* to, std::size_t count, NcclType type, int peer,
                                  NcclComm* comm, void* stream);
FAKE_NCCL_API NcclResult ncclGroupStart();
FAKE_NCCL_API NcclResult ncclGroupEnd();
