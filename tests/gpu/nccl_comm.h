// A communicator of the fake's NCCL, as one rank has it: a thread, with a line to the hub.
//
// A call puts a kernel on its stream that is held (Kernel::is_held). When its turn has come it gives itself to the
// thread, which exchanges its bytes with the other ranks and then lets it end. So a kernel that waits for others holds
// its stream and nothing else. Kernels of one communicator run in the order in which they were issued, on any streams.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/gpu/engine.h"
#include "tests/gpu/nccl_wire.h"

namespace fake_nccl {

// A collective, or one transfer of a group of them.
struct Part {
  Call call;
  int peer = 0;  // of a transfer
  const void* from = nullptr;
  void* to = nullptr;
  std::size_t from_bytes = 0;
  std::size_t to_bytes = 0;
  // Of the kernel that runs: where its bytes are.
  const char* from_at = nullptr;
  char* to_at = nullptr;
  const char* factor_at = nullptr;  // of PreMulSum, on the device
  Bytes factor;                     // of PreMulSum, of the host
  std::uint64_t number = 0;
  bool is_done = false;
};

// What one kernel does.
struct Issue {
  const char* what = "";
  std::vector<Part> parts;
  fake_gpu::StreamRef stream;
  std::shared_ptr<fake_gpu::Work> work;
  std::int64_t began_s = 0;
};
using IssueRef = std::shared_ptr<Issue>;

// PreMulSum.
struct OwnOperator {
  NcclType type = kNcclFloat32;
  const void* device_scalar = nullptr;  // null: host_scalar
  Bytes host_scalar;
  bool is_destroyed = false;
};

struct Place {
  std::string name;  // of the hub
  int ranks = 1;
  int rank = 0;
  fake_gpu::Device* device = nullptr;
  bool is_blocking = true;
};

class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  explicit Communicator(Place place) : place_(std::move(place)) {}

  const Place& place() const { return place_; }
  // The thread begins; the state is kNcclInProgress until all ranks have come.
  void start();
  NcclResult state();
  std::string error();
  // Until the state is not kNcclInProgress.
  NcclResult wait();

  // All that was issued ends, then all ranks say so.
  void finalize();
  // What runs ends without a result. For both: no thread is left afterwards.
  void abort();
  void join();

  // With the engine's lock: puts a kernel on the stream.
  fake_gpu::Code issue(fake_gpu::Engine&, IssueRef issue, void* stream);

  std::vector<OwnOperator> operators;  // of ncclRedOpCreatePreMulSum; of whoever calls

 private:
  void run();
  bool meet();
  void turn();
  void hear(const Frame& frame, Bytes bytes);
  void begin(const IssueRef& issue);
  void begin_collective(Part& part);
  void end_part(Part& part, const Bytes& bytes);
  void end_issues(bool all);
  void deliver();
  void check_waits();
  void end_kernel(Issue& issue);
  void set_state(NcclResult state, const std::string& error);
  void tell();
  void posted(const IssueRef& issue);

  const Place place_;
  std::thread thread_;
  std::atomic<bool> aborts_{false};
  int news_ = -1;  // eventfd

  std::mutex mutex_;
  std::condition_variable changed_;
  NcclResult state_ = kNcclInProgress;
  std::string error_;
  std::vector<IssueRef> posted_;
  std::uint64_t issued_ = 0;
  std::uint64_t ended_ = 0;
  bool finalizes_ = false;
  bool is_over_ = false;  // the thread takes nothing more

  // With the engine's lock.
  std::uint64_t next_collective_ = 0;
  fake_gpu::Dependency last_;

  // Of the thread.
  std::unique_ptr<Line> line_;
  std::vector<IssueRef> running_;
  std::map<int, std::deque<std::pair<Call, Bytes>>>
      arrived_;  // transfers that nobody has received yet, by sender
  bool has_said_bye_ = false;
};

}  // namespace fake_nccl
