// WorkerDoor: what callers' threads run (worker.h).
#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "base/limits.h"
#include "worker/worker.h"

namespace byteps {

namespace {

// Submissions and barriers are limited by their handles, so that this box is never full.
constexpr std::size_t kMailboxCapacity = kOperationsMax + 16;

Status invalid(std::string message) {
  return {Code::kInvalidArgument, std::move(message)};
}

// Whether the two spans share memory without being the same.
bool overlap_apart(const void* input, const void* output, std::uint64_t bytes) {
  const auto a = reinterpret_cast<std::uintptr_t>(input);
  const auto b = reinterpret_cast<std::uintptr_t>(output);
  return a != b && (a < b ? b - a : a - b) < bytes;
}

}  // namespace

WorkerDoor::WorkerDoor(const Config& config, Waiter* waiter)
    : job_of_one_(config.job.scheduler_host.empty()),
      handles_(config.spin_ns),
      mailbox_(kMailboxCapacity, waiter),
      rank_(job_of_one_ ? 0 : config.job.rank),
      size_(job_of_one_ ? 1 : config.job.worker_count),
      server_count_(job_of_one_ ? 0 : config.job.server_count),
      alone_(Placement(config.flow.partition_bytes, config.flow.partition_bytes, {1})) {
  if (!job_of_one_) state_ = Status(Code::kAgain, "the job is not complete yet");
  if (job_of_one_) machines_ = {0};
}

Status WorkerDoor::check(const Submission& submission, PipelineCall& call) const {
  const std::string_view tensor_name = submission.name;
  if (tensor_name.empty()) return invalid("a tensor needs a name");
  if (tensor_name.size() > kTensorNameBytesMax) {
    return invalid("the name '" + std::string(tensor_name.substr(0, 64)) + "...' has " +
                   std::to_string(tensor_name.size()) + " bytes; at most " +
                   std::to_string(kTensorNameBytesMax) + " are allowed");
  }
  const auto refused = [&](const std::string& why) {
    return invalid("tensor '" + std::string(tensor_name) + "': " + why);
  };
  Result<Spec> made = spec_of(submission, WorkerRank(rank()), size());
  if (!made.is_ok()) return refused(made.status().message());
  call.spec = std::move(made).value();
  const Spec& spec = call.spec;
  const std::uint64_t bytes = spec.total_bytes;

  const bool gives = spec.gives(WorkerRank(rank()));
  const bool gets = spec.gets(WorkerRank(rank()));
  if (bytes > 0 && gets && submission.output == nullptr) return refused("output is NULL");
  if (bytes > 0 && gives && submission.input == nullptr) return refused("input is NULL");
  if (gives && gets && overlap_apart(submission.input, submission.output, bytes)) {
    return refused("input and output overlap without being the same memory");
  }
  call.name = tensor_name;
  if (gives) call.input = {static_cast<const std::byte*>(submission.input), bytes};
  if (gets) call.output = {static_cast<std::byte*>(submission.output), bytes};
  call.priority = submission.priority;
  call.once = submission.once;
  return Status::ok();
}

Result<HandleId> WorkerDoor::submit(const Submission& submission) {
  Status state = state_now();
  if (state.is(Code::kAgain)) return invalid("a tensor was submitted before the job was joined");
  if (!state.is_ok()) return state;
  Command command;
  Status fine = check(submission, command.call);
  if (!fine.is_ok()) return fine;
  if (job_of_one_ || command.call.spec.members.some().size() == 1) {
    return copy_at_once(command.call, submission.report);
  }
  command.kind = Command::Kind::kSubmit;
  return post(std::move(command), submission.report);
}

Result<HandleId> WorkerDoor::begin_barrier() {
  Status state = state_now();
  if (state.is(Code::kAgain)) return invalid("a barrier was begun before the job was joined");
  if (!state.is_ok()) return state;
  if (job_of_one_) {
    const Result<HandleId> handle = handles_.create();
    if (handle.is_ok()) complete(handle.value(), Status::ok());
    return handle;
  }
  Command command;
  command.kind = Command::Kind::kBarrier;
  return post(std::move(command), {});
}

Result<HandleId> WorkerDoor::finish_inputs() {
  Status state = state_now();
  if (state.is(Code::kAgain)) return invalid("inputs were finished before the job was joined");
  if (!state.is_ok()) return state;
  if (job_of_one_) {
    const Result<HandleId> handle = handles_.create();
    if (handle.is_ok()) complete(handle.value(), Status::ok());
    return handle;
  }
  Command command;
  command.kind = Command::Kind::kFinish;
  return post(std::move(command), {});
}

Result<HandleId> WorkerDoor::post(Command&& command, const Handles::Report& report) {
  Result<HandleId> handle = handles_.create(report);
  if (!handle.is_ok()) return handle;
  command.handle = handle.value();
  command.call.handle = handle.value();
  Status posted = mailbox_.post(std::move(command));
  if (posted.is_ok()) return handle;
  handles_.discard(handle.value());
  const Status state = state_now();
  return state.is_ok() ? posted : state;
}

Result<HandleId> WorkerDoor::copy_at_once(const PipelineCall& call, const Handles::Report& report) {
  const Result<HandleId> handle = handles_.create(report);
  if (!handle.is_ok()) return handle;
  Status result;
  {
    const std::lock_guard lock(mutex_);
    const Result<TensorIndex> tensor = alone_.find_or_add(call.name, call.spec);
    result = tensor.status();
    if (tensor.is_ok() && call.once) alone_.give_up(tensor.value());
  }
  if (result.is_ok()) {
    if (call.spec.scale != 1) {
      kernels_for(call.spec.dtype, call.spec.operation, kernels_)
          .finish_alone(call.output, call.input, {.divisor = 1, .scale = call.spec.scale});
    } else if (!call.output.empty() && call.output.data() != call.input.data()) {
      std::memcpy(call.output.data(), call.input.data(), call.output.size());
    }
    copied_.finished_operations.fetch_add(1, std::memory_order_relaxed);
    copied_.finished_bytes.fetch_add(call.output.size(), std::memory_order_relaxed);
  } else {
    copied_.failed_operations.fetch_add(1, std::memory_order_relaxed);
  }
  complete(handle.value(), result);
  return handle;
}

Status WorkerDoor::state_now() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

Status WorkerDoor::wait_joined(TimeNs timeout_ns) const {
  constexpr TimeNs kLongNs = TimeNs{3600} * 24 * 365 * kSecond;  // see Handles::wait
  std::unique_lock lock(mutex_);
  const TimeNs limit_ns = timeout_ns < 0 ? kLongNs : std::min(timeout_ns, kLongNs);
  if (limit_ns > 0) {
    state_changed_.wait_for(lock, std::chrono::nanoseconds(limit_ns),
                            [this] { return !state_.is(Code::kAgain); });
  }
  return state_;
}

void WorkerDoor::leave(bool final) {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(left_, true)) return;
    if (job_of_one_) {
      state_ = Status(Code::kCancelled, "this process has left the job");
      return;
    }
  }
  Command command;
  command.kind = Command::Kind::kLeave;
  command.final = final;
  const Status posted = mailbox_.post(std::move(command));
  CHECK(posted.is_ok() || posted.is(Code::kCancelled)) << posted.text();
}

WorkerMetrics WorkerDoor::metrics() const {
  const auto read = [](const std::atomic<std::uint64_t>& counter) {
    return counter.load(std::memory_order_relaxed);
  };
  return {.pushed_bytes = read(counters_.pushed_bytes),
          .pulled_bytes = read(counters_.pulled_bytes),
          .finished_operations =
              read(counters_.finished_operations) + read(copied_.finished_operations),
          .finished_bytes = read(counters_.finished_bytes) + read(copied_.finished_bytes),
          .failed_operations = read(counters_.failed_operations) + read(copied_.failed_operations),
          .reconnects = read(counters_.reconnects),
          .shared_bytes = read(counters_.shared_bytes),
          .rdma_bytes = read(counters_.rdma_bytes)};
}

std::vector<std::uint32_t> WorkerDoor::machines() const {
  const std::lock_guard lock(mutex_);
  return machines_;
}

Incarnation WorkerDoor::incarnation() const {
  const std::lock_guard lock(mutex_);
  return incarnation_;
}

void WorkerDoor::joined(std::uint32_t rank, std::vector<std::uint32_t> machines,
                        std::uint32_t server_count, Epoch epoch, const Incarnation& incarnation) {
  rank_.store(rank, std::memory_order_release);
  size_.store(static_cast<std::uint32_t>(machines.size()), std::memory_order_release);
  server_count_.store(server_count, std::memory_order_release);
  epoch_.store(epoch.value, std::memory_order_release);
  {
    const std::lock_guard lock(mutex_);
    machines_ = std::move(machines);
    incarnation_ = incarnation;
    if (!state_.is(Code::kAgain)) return;
    state_ = Status::ok();
  }
  state_changed_.notify_all();
}

void WorkerDoor::ended(const Status& why) {
  CHECK(!why.is_ok() && !why.is(Code::kAgain)) << why.text();
  {
    const std::lock_guard lock(mutex_);
    if (!state_.is_ok() && !state_.is(Code::kAgain)) return;
    state_ = why;
  }
  state_changed_.notify_all();
}

}  // namespace byteps
