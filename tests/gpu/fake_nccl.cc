// NCCL's functions by its names: what they check themselves, then the communicator (nccl_comm.h). README.md has the
// rules. For what torch wants beyond these, fake_gpu.py writes stubs.
#include "tests/gpu/fake_nccl.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <utility>

#include <unistd.h>

#include "tests/gpu/engine.h"
#include "tests/gpu/nccl_comm.h"
#include "tests/gpu/tsan.h"

namespace {

using fake_gpu::Code;
using fake_gpu::Engine;
using fake_nccl::bytes_of;
using fake_nccl::Communicator;
using fake_nccl::Issue;
using fake_nccl::IssueRef;
using fake_nccl::Op;
using fake_nccl::Part;
using Lock = Engine::Lock;
using CommRef = std::shared_ptr<Communicator>;

constexpr int kNonBlocking = 0;

thread_local std::string last_error;

NcclResult refused(NcclResult result, std::string why) {
  last_error = std::move(why);
  return result;
}

// A call of the engine, where errors may be planned. What CUDA says is one result of NCCL's.
NcclResult call(const char* name, const std::function<Code(Engine&, Lock&)>& body) {
  const Code code = Engine::of_process().call({name, false, Engine::Needs::kNothing}, body);
  if (code <= kNcclInProgress) return static_cast<NcclResult>(code);
  const char* const text = fake_gpu::text_of(code);
  return refused(kNcclUnhandledCudaError, text == nullptr ? "" : text);
}

// ---- communicators by their handles

struct Registry {
  std::mutex mutex;
  std::map<const void*, CommRef> all;
};
Registry* const the_registry = new Registry;  // never destroyed: threads may outlive main
Registry& registry() {
  return *the_registry;
}

NcclComm* handle_of(const CommRef& comm) {
  return reinterpret_cast<NcclComm*>(comm.get());
}

CommRef found(NcclComm* handle, const char* what) {
  if (handle == nullptr) return nullptr;
  const fake_gpu::Unseen unseen;
  Registry& r = registry();
  const std::lock_guard guard(r.mutex);
  const auto entry = r.all.find(handle);
  if (entry != r.all.end()) return entry->second;
  fake_gpu::violation("handles are of what exists",
                      "%s: communicator %p does not exist, or does not any more", what,
                      static_cast<void*>(handle));
  return nullptr;
}

void forget(NcclComm* handle) {
  const fake_gpu::Unseen unseen;
  {
    const std::lock_guard guard(registry().mutex);
    registry().all.erase(handle);
  }
  call("fake_nccl_forget", [](Engine& engine, Lock&) {
    engine.count_communicator(-1);
    return fake_gpu::kSuccess;
  });
}

// ---- groups

// What a thread has put into its group.
struct Group {
  int depth = 0;
  NcclResult first_error = kNcclSuccess;
  std::vector<CommRef> started;
  std::vector<std::pair<CommRef, std::pair<void*, IssueRef>>> issues;  // with their streams
};
thread_local Group group;

NcclResult issue_all() {
  NcclResult result = kNcclSuccess;
  for (auto& [comm, rest] : std::exchange(group.issues, {})) {
    auto& [stream, issue] = rest;
    const auto body = [&comm = comm, &stream = stream, &issue = issue](Engine& engine, Lock&) {
      return comm->issue(engine, issue, stream);
    };
    const NcclResult one = call(issue->what, body);
    if (result == kNcclSuccess) result = one;
  }
  for (const CommRef& comm : std::exchange(group.started, {})) {
    const NcclResult one = comm->place().is_blocking ? comm->wait() : kNcclInProgress;
    if (one == kNcclInvalidUsage || one == kNcclRemoteError) last_error = comm->error();
    if (result == kNcclSuccess) result = one;
  }
  return result;
}

NcclResult end_group() {
  if (group.depth == 0) return refused(kNcclInvalidUsage, "ncclGroupEnd: not in a group call");
  if (--group.depth > 0) return kNcclSuccess;
  const NcclResult error = std::exchange(group.first_error, kNcclSuccess);
  if (error != kNcclSuccess) {
    group.issues.clear();
    return error;
  }
  return issue_all();
}

template <typename Body>
NcclResult in_group(const Body& body) {
  const fake_gpu::Unseen unseen;
  ++group.depth;
  const NcclResult result = body();
  if (result != kNcclSuccess && group.first_error == kNcclSuccess) group.first_error = result;
  const NcclResult ended = end_group();
  return result != kNcclSuccess ? result : ended;
}

// ---- operations

bool is_alright(const Part& part, int ranks) {
  const bool is_transfer = part.call.op >= Op::kSend;
  const int other = is_transfer ? part.peer : part.call.root;
  return other >= 0 && other < ranks && bytes_of(part.call.type) > 0;
}

// The whole of a transfer, and the share of it that a rank has, may lie in one place; otherwise they lie apart.
bool lies_well(const Part& part, int rank) {
  const auto* const from = static_cast<const char*>(part.from);
  const auto* const to = static_cast<const char*>(part.to);
  if (from == nullptr || to == nullptr || from + part.from_bytes <= to ||
      to + part.to_bytes <= from)
    return true;
  if (part.call.op == Op::kAllGather)
    return from == to + part.from_bytes * static_cast<std::size_t>(rank);
  if (part.call.op == Op::kReduceScatter)
    return to == from + part.to_bytes * static_cast<std::size_t>(rank);
  return from == to && part.call.op != Op::kAllToAll;
}

NcclResult enqueue(const char* name, NcclComm* handle, void* stream, Part part) {
  return in_group([&]() -> NcclResult {
    const CommRef comm = found(handle, name);
    if (comm == nullptr) return refused(kNcclInvalidArgument, "no communicator");
    const NcclResult state = comm->state();
    if (state == kNcclInProgress)
      return refused(kNcclInvalidUsage, "the communicator is not ready");
    if (state != kNcclSuccess) return refused(state, comm->error());
    if (!is_alright(part, comm->place().ranks))
      return refused(kNcclInvalidArgument, "a root, peer or type there is not");
    if (part.call.reduction >= kNcclOwn) {
      const std::size_t index = part.call.reduction - kNcclOwn;
      if (index >= comm->operators.size() || comm->operators[index].is_destroyed ||
          comm->operators[index].type != part.call.type) {
        return refused(kNcclInvalidArgument, "an operator there is not, or of another type");
      }
    }
    if (!lies_well(part, comm->place().rank)) {
      fake_gpu::violation("buffers of a collective are the same, or apart", "%s: they overlap",
                          name);
      return kNcclInvalidArgument;
    }
    // The transfers of a group are one kernel: each may wait for another.
    for (auto& [other, rest] : group.issues) {
      const bool is_one = part.call.op >= Op::kSend && other == comm && rest.first == stream &&
                          rest.second->parts.front().call.op >= Op::kSend;
      if (!is_one) continue;
      rest.second->parts.push_back(std::move(part));
      return kNcclSuccess;
    }
    auto issue = std::make_shared<Issue>();
    issue->what = name;
    issue->parts.push_back(std::move(part));
    group.issues.emplace_back(comm, std::make_pair(stream, std::move(issue)));
    return kNcclSuccess;
  });
}

// Of elements of each rank: how many times they are in what it gives, and in what it gets.
struct Shape {
  Op op;
  NcclType type;
  NcclOperator reduction;
  int root;
  std::size_t count;
};
NcclResult collective(const char* name, NcclComm* comm, void* stream, const Shape& shape,
                      const void* from, void* to) {
  int ranks = 1;
  int rank = 0;
  if (comm != nullptr) {
    ncclCommCount(comm, &ranks);
    ncclCommUserRank(comm, &rank);
  }
  Part part;
  part.call = {shape.op, shape.type, shape.reduction, shape.root, shape.count};
  const std::size_t bytes = shape.count * bytes_of(shape.type);
  const std::size_t all = bytes * static_cast<std::size_t>(ranks);
  const bool is_root = rank == shape.root;
  if (shape.op != Op::kBroadcast || is_root) part.from = from;
  if (shape.op != Op::kReduce || is_root) part.to = to;
  const bool gives_all = shape.op == Op::kReduceScatter || shape.op == Op::kAllToAll;
  const bool gets_all = shape.op == Op::kAllGather || shape.op == Op::kAllToAll;
  part.from_bytes = gives_all ? all : bytes;
  part.to_bytes = gets_all ? all : bytes;
  return enqueue(name, comm, stream, std::move(part));
}

}  // namespace

// ---- the library

NcclResult ncclGetVersion(int* version) {
  if (version == nullptr) return kNcclInvalidArgument;
  *version = FAKE_NCCL_VERSION;
  return kNcclSuccess;
}

const char* ncclGetErrorString(NcclResult result) {
  switch (result) {
    case kNcclSuccess:
      return "no error";
    case kNcclUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case kNcclSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case kNcclInternalError:
      return "internal error - please report this issue to the NCCL developers";
    case kNcclInvalidArgument:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case kNcclInvalidUsage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case kNcclRemoteError:
      return "remote process exited or there was a network error";
    case kNcclInProgress:
      return "NCCL operation in progress";
  }
  return "unknown result code";
}

const char* ncclGetLastError(NcclComm* handle) {
  thread_local std::string text;
  text = last_error;
  if (handle != nullptr) {
    const CommRef comm = found(handle, "ncclGetLastError");
    if (comm != nullptr && !comm->error().empty()) text = comm->error();
  }
  return text.c_str();
}

// ---- communicators

NcclResult ncclGetUniqueId(NcclUniqueId* id) {
  return call("ncclGetUniqueId", [&](Engine&, Lock&) -> Code {
    if (id == nullptr) return kNcclInvalidArgument;
    std::random_device random;
    *id = NcclUniqueId{};
    std::snprintf(id->internal, sizeof id->internal, "fake-nccl-%d-%08x%08x",
                  static_cast<int>(::getpid()), random(), random());
    return kNcclSuccess;
  });
}

NcclResult ncclCommInitRankConfig(NcclComm** made, int ranks, NcclUniqueId id, int rank,
                                  NcclConfig* config) {
  return in_group([&]() -> NcclResult {
    if (made == nullptr || ranks < 1 || rank < 0 || rank >= ranks) {
      return refused(kNcclInvalidArgument, "a rank there is not");
    }
    fake_nccl::Place place;
    place.name.assign(id.internal, strnlen(id.internal, sizeof id.internal - 40));
    place.ranks = ranks;
    place.rank = rank;
    place.is_blocking = config == nullptr || config->blocking != kNonBlocking;
    const NcclResult result = call("ncclCommInitRank", [&](Engine& engine, Lock&) -> Code {
      const Code code = engine.initialise();
      if (code != fake_gpu::kSuccess) return code;
      place.device = engine.current() == nullptr ? engine.device(0) : engine.current()->device;
      engine.count_communicator(1);
      return kNcclSuccess;
    });
    if (result != kNcclSuccess) return result;
    const auto comm = std::make_shared<Communicator>(std::move(place));
    {
      const std::lock_guard guard(registry().mutex);
      registry().all.emplace(comm.get(), comm);
    }
    *made = handle_of(comm);
    comm->start();
    group.started.push_back(comm);
    return kNcclSuccess;
  });
}

NcclResult ncclCommInitRank(NcclComm** comm, int ranks, NcclUniqueId id, int rank) {
  return ncclCommInitRankConfig(comm, ranks, id, rank, nullptr);
}

NcclResult ncclCommInitAll(NcclComm** comms, int count, const int* devices) {
  NcclUniqueId id;
  const NcclResult result = ncclGetUniqueId(&id);
  if (result != kNcclSuccess) return result;
  return in_group([&]() -> NcclResult {
    for (int rank = 0; rank < count; ++rank) {
      const int number = devices == nullptr ? rank : devices[rank];
      fake_gpu::Context* popped = nullptr;
      const NcclResult pushed = call("ncclCommInitAll", [&](Engine& engine, Lock&) -> Code {
        if (const Code code = engine.initialise(); code != fake_gpu::kSuccess) return code;
        if (engine.device(number) == nullptr) return fake_gpu::kInvalidDevice;
        if (const Code code = engine.retain(*engine.device(number), true);
            code != fake_gpu::kSuccess)
          return code;
        engine.push(&engine.device(number)->primary);
        return kNcclSuccess;
      });
      if (pushed != kNcclSuccess) return pushed;
      const NcclResult one = ncclCommInitRank(&comms[rank], count, id, rank);
      call("ncclCommInitAll",
           [&](Engine& engine, Lock&) -> Code { return engine.pop(&popped) ? 0 : 0; });
      if (one != kNcclSuccess) return one;
    }
    return kNcclSuccess;
  });
}

NcclResult ncclCommFinalize(NcclComm* handle) {
  const CommRef comm = found(handle, "ncclCommFinalize");
  if (comm == nullptr) return kNcclInvalidArgument;
  if (comm->state() != kNcclSuccess) return refused(comm->state(), comm->error());
  comm->finalize();
  if (!comm->place().is_blocking) return kNcclInProgress;
  const NcclResult result = comm->wait();
  return result == kNcclSuccess ? result : refused(result, comm->error());
}

NcclResult ncclCommDestroy(NcclComm* handle) {
  if (handle == nullptr) return kNcclSuccess;
  const CommRef comm = found(handle, "ncclCommDestroy");
  if (comm == nullptr) return kNcclInvalidArgument;
  comm->finalize();
  const NcclResult result = comm->wait();
  comm->abort();  // of what is over already, or was lost
  forget(handle);
  return result == kNcclSuccess ? result : refused(result, comm->error());
}

NcclResult ncclCommAbort(NcclComm* handle) {
  if (handle == nullptr) return kNcclSuccess;
  const CommRef comm = found(handle, "ncclCommAbort");
  if (comm == nullptr) return kNcclInvalidArgument;
  comm->abort();
  forget(handle);
  return kNcclSuccess;
}

NcclResult ncclCommGetAsyncError(NcclComm* handle, NcclResult* error) {
  const CommRef comm = found(handle, "ncclCommGetAsyncError");
  if (comm == nullptr || error == nullptr) return kNcclInvalidArgument;
  *error = comm->state();
  return kNcclSuccess;
}

NcclResult ncclCommCount(NcclComm* handle, int* count) {
  const CommRef comm = found(handle, "ncclCommCount");
  if (comm == nullptr || count == nullptr) return kNcclInvalidArgument;
  *count = comm->place().ranks;
  return kNcclSuccess;
}

NcclResult ncclCommCuDevice(NcclComm* handle, int* device) {
  const CommRef comm = found(handle, "ncclCommCuDevice");
  if (comm == nullptr || device == nullptr) return kNcclInvalidArgument;
  *device = comm->place().device->number;
  return kNcclSuccess;
}

NcclResult ncclCommUserRank(NcclComm* handle, int* rank) {
  const CommRef comm = found(handle, "ncclCommUserRank");
  if (comm == nullptr || rank == nullptr) return kNcclInvalidArgument;
  *rank = comm->place().rank;
  return kNcclSuccess;
}

// ---- operators

NcclResult ncclRedOpCreatePreMulSum(NcclOperator* op, void* scalar, NcclType type,
                                    NcclResidence residence, NcclComm* handle) {
  const CommRef comm = found(handle, "ncclRedOpCreatePreMulSum");
  const bool is_known = bytes_of(type) > 0 && residence <= kNcclScalarHost;
  if (comm == nullptr || op == nullptr || scalar == nullptr || !is_known)
    return kNcclInvalidArgument;
  fake_nccl::OwnOperator own;
  own.type = type;
  if (residence == kNcclScalarDevice) {
    own.device_scalar = scalar;
  } else {
    const auto* const bytes = static_cast<const char*>(scalar);
    own.host_scalar.assign(bytes, bytes + bytes_of(type));
  }
  *op = static_cast<NcclOperator>(kNcclOwn + comm->operators.size());
  comm->operators.push_back(std::move(own));
  return kNcclSuccess;
}

NcclResult ncclRedOpDestroy(NcclOperator op, NcclComm* handle) {
  const CommRef comm = found(handle, "ncclRedOpDestroy");
  if (comm == nullptr || op < kNcclOwn || op - kNcclOwn >= comm->operators.size())
    return kNcclInvalidArgument;
  comm->operators[op - kNcclOwn].is_destroyed = true;
  return kNcclSuccess;
}

// ---- collectives

NcclResult ncclAllReduce(const void* from, void* to, std::size_t count, NcclType type,
                         NcclOperator op, NcclComm* comm, void* stream) {
  return collective("ncclAllReduce", comm, stream, {Op::kAllReduce, type, op, 0, count}, from, to);
}

NcclResult ncclReduce(const void* from, void* to, std::size_t count, NcclType type, NcclOperator op,
                      int root, NcclComm* comm, void* stream) {
  return collective("ncclReduce", comm, stream, {Op::kReduce, type, op, root, count}, from, to);
}

NcclResult ncclBroadcast(const void* from, void* to, std::size_t count, NcclType type, int root,
                         NcclComm* comm, void* stream) {
  return collective("ncclBroadcast", comm, stream, {Op::kBroadcast, type, kNcclSum, root, count},
                    from, to);
}

NcclResult ncclBcast(void* memory, std::size_t count, NcclType type, int root, NcclComm* comm,
                     void* stream) {
  return ncclBroadcast(memory, memory, count, type, root, comm, stream);
}

NcclResult ncclAllGather(const void* from, void* to, std::size_t count, NcclType type,
                         NcclComm* comm, void* stream) {
  return collective("ncclAllGather", comm, stream, {Op::kAllGather, type, kNcclSum, 0, count}, from,
                    to);
}

NcclResult ncclReduceScatter(const void* from, void* to, std::size_t count, NcclType type,
                             NcclOperator op, NcclComm* comm, void* stream) {
  return collective("ncclReduceScatter", comm, stream, {Op::kReduceScatter, type, op, 0, count},
                    from, to);
}

NcclResult ncclAlltoAll(const void* from, void* to, std::size_t count, NcclType type,
                        NcclComm* comm, void* stream) {
  return collective("ncclAlltoAll", comm, stream, {Op::kAllToAll, type, kNcclSum, 0, count}, from,
                    to);
}

NcclResult ncclSend(const void* from, std::size_t count, NcclType type, int peer, NcclComm* comm,
                    void* stream) {
  Part part;
  part.call = {Op::kSend, type, kNcclSum, peer, count};
  part.peer = peer;
  part.from = from;
  part.from_bytes = count * bytes_of(type);
  return enqueue("ncclSend", comm, stream, std::move(part));
}

NcclResult ncclRecv(void* to, std::size_t count, NcclType type, int peer, NcclComm* comm,
                    void* stream) {
  Part part;
  part.call = {Op::kReceive, type, kNcclSum, peer, count};
  part.peer = peer;
  part.to = to;
  part.to_bytes = count * bytes_of(type);
  return enqueue("ncclRecv", comm, stream, std::move(part));
}

NcclResult ncclGroupStart() {
  ++group.depth;
  return kNcclSuccess;
}

NcclResult ncclGroupEnd() {
  return end_group();
}
