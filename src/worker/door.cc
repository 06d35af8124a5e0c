#include "worker/door.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/limits.h"
#include "base/phrases.h"
#include "kernels/part_coding.h"

namespace byteps {

namespace {

// Submissions and barriers are limited by their handles, so that this box is never full.
constexpr std::size_t kMailboxCapacity = kOperationsMax + 16;

Status invalid(std::string message) {
  return {Code::kInvalidArgument, std::move(message)};
}

// Whether the two, of so many bytes each, share memory.
bool overlap(const void* one, const void* other, std::uint64_t bytes) {
  const auto a = reinterpret_cast<std::uintptr_t>(one);
  const auto b = reinterpret_cast<std::uintptr_t>(other);
  return (a < b ? b - a : a - b) < bytes;
}

// Whether they do so without being the same.
bool overlap_apart(const void* input, const void* output, std::uint64_t bytes) {
  return input != output && overlap(input, output, bytes);
}

// Where its format is not for this tensor it travels plain, or as it is after momentum. (What is no dtype or operation
// is refused as such.)
RawSpec fitted(RawSpec raw, std::uint64_t min_compress_bytes) {
  const auto format = format_of(raw.format);
  const auto dtype = dtype_of(raw.dtype & 0xff);
  const auto operation = operation_of(raw.operation);
  if (!format || !dtype || !operation) return raw;
  const bool can_be = flaw_of_format(*format, *dtype, *operation) == nullptr && raw.dtype <= 0xff;
  const bool is_large = raw.element_count >= (min_compress_bytes + 3) / sizeof(float);
  const bool is_said = flaw_of_codec(*format, raw.codec) != nullptr;  // to be refused
  if (can_be && (is_large || is_said || *format == Format::kFloat32)) return raw;
  const bool has_momentum = can_be && raw.codec.momentum;
  raw.format = static_cast<std::uint32_t>(has_momentum ? Format::kFloat32 : Format::kPlain);
  raw.codec = {.momentum = has_momentum ? raw.codec.momentum : std::nullopt};
  return raw;
}

bool takes_residual(const Spec& spec) {
  return has_codec(spec.format) ? spec.codec->error_feedback : has_residual(spec.format);
}

// What is wrong with the residual; empty: an operation can have it.
std::string flaw_of_residual(const Submission& submission, const Spec& spec) {
  const double ratio = submission.residual_ratio;
  if (!std::isfinite(static_cast<float>(ratio)) || ratio < 0) {
    return "its residual_ratio is " + number_text(ratio) + ", which is no factor";
  }
  if (submission.residual == nullptr) {
    const bool lacks_one = spec.codec->error_feedback && spec.total_bytes > 0;
    return lacks_one ? "it has error feedback, and no residual" : "";
  }
  const bool is_other =
      submission.coded_where_fit && submission.format != static_cast<std::uint32_t>(spec.format);
  if (is_other || takes_residual(spec)) return {};
  return std::string("it has a residual, which ") +
         (has_codec(spec.format) ? "is for error feedback alone"
                                 : "only the formats int8 and int4 leave") +
         "; its residual must be NULL";
}

// nullptr: what is carried has memory of its own.
const char* flaw_of_memory(const Submission& submission, const Carry& carry, const Spec& spec) {
  const auto share = [&](const std::span<std::byte> one, const void* other) {
    return !one.empty() && overlap(one.data(), other, spec.total_bytes);
  };
  const auto shares = [&](const std::span<std::byte> one) {
    return !submission.device && (share(one, submission.input) || share(one, submission.output));
  };
  if (shares(carry.residual)) return "its residual shares memory with its input or output";
  if (shares(carry.momentum)) return "its momentum shares memory with its input or output";
  if (!carry.residual.empty() && share(carry.momentum, carry.residual.data())) {
    return "its momentum shares memory with its residual";
  }
  return nullptr;
}

Carry carry_of(const Submission& submission, const Spec& spec) {
  const auto memory = [&](float* first) {
    return std::as_writable_bytes(std::span(first, first == nullptr ? 0 : spec.element_count()));
  };
  Carry carry;
  if (takes_residual(spec)) carry.residual = memory(submission.residual);
  if (spec.codec->momentum) carry.momentum = memory(submission.momentum);
  if (submission.residual_ratio != 0 && has_codec(spec.format)) {
    carry.ratio = static_cast<float>(submission.residual_ratio);
  }
  return carry;
}

// What a tensor in which nobody else takes part becomes. The two may be the same.
void finish_alone(const Spec& spec, const KernelSet& kernels, std::span<std::byte> output,
                  std::span<const std::byte> input, const Carry& carry) {
  if (!carry.momentum.empty()) {
    encode({Format::kFloat32, {.momentum = spec.codec->momentum}}, output, input, carry, {});
    input = output;
  }
  if (spec.scale != 1) {
    kernels_for(spec.dtype, spec.operation, kernels)
        .finish_alone(output, input, {.divisor = 1, .scale = spec.scale});
  } else if (!output.empty() && output.data() != input.data()) {
    std::memcpy(output.data(), input.data(), output.size());
  }
}

}  // namespace

WorkerDoor::WorkerDoor(const Config& config, Waiter* waiter, device::Places* devices)
    : job_of_one_(config.job.scheduler_host.empty()),
      min_compress_bytes_(config.flow.min_compress_bytes),
      devices_(devices),
      handles_(config.spin_ns),
      mailbox_(kMailboxCapacity, waiter),
      membership_(config),
      alone_(Placement(config.flow.partition_bytes, config.flow.partition_bytes, {1})) {}

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
  const WorkerRank self(membership_.rank());
  const std::uint32_t size = membership_.size();
  Result<Spec> made = submission.coded_where_fit
                          ? spec_of(fitted(submission, min_compress_bytes_), self, size)
                          : spec_of(submission, self, size);
  if (!made.is_ok()) return refused(made.status().message());
  call.spec = std::move(made).value();
  const Spec& spec = call.spec;
  const std::uint64_t bytes = spec.total_bytes;

  const bool gives = spec.gives(self);
  const bool gets = spec.gets(self);
  if (bytes > 0 && gets && submission.output == nullptr) return refused("output is NULL");
  if (bytes > 0 && gives && submission.input == nullptr) return refused("input is NULL");
  if (gives && gets && overlap_apart(submission.input, submission.output, bytes)) {
    return refused("input and output overlap without being the same memory");
  }
  const std::string flaw = flaw_of_residual(submission, spec);
  if (!flaw.empty()) return refused(flaw);
  call.carry = carry_of(submission, spec);
  if (const char* const shared = flaw_of_memory(submission, call.carry, spec))
    return refused(shared);
  call.name = tensor_name;
  if (gives) call.input = {static_cast<const std::byte*>(submission.input), bytes};
  if (gets) call.output = {static_cast<std::byte*>(submission.output), bytes};
  call.priority = submission.priority;
  call.once = submission.once;
  return Status::ok();
}

Result<HandleId> WorkerDoor::submit(const Submission& submission) {
  Status state = membership_.state();
  if (state.is(Code::kAgain)) return invalid("a tensor was submitted before the job was joined");
  if (!state.is_ok()) return state;
  WorkerCommand command;
  Status fine = check(submission, command.call);
  if (!fine.is_ok()) return fine;
  const bool is_alone = job_of_one_ || command.call.spec.members.some().size() == 1;
  if (submission.device) {
    Status placed = find_place(submission, command.call);
    if (!placed.is_ok()) return placed;
    if (is_alone) return copy_on_device(command.call, submission.report);
  }
  if (is_alone) return copy_at_once(command.call, submission.report);
  command.kind = WorkerCommand::Kind::kSubmit;
  return post(std::move(command), submission.report);
}

Result<HandleId> WorkerDoor::begin_barrier() {
  return begin(WorkerCommand::Kind::kBarrier, "a barrier was begun before the job was joined");
}

Result<HandleId> WorkerDoor::finish_inputs() {
  return begin(WorkerCommand::Kind::kFinish, "inputs were finished before the job was joined");
}

Result<HandleId> WorkerDoor::begin(WorkerCommand::Kind kind, const char* refusal) {
  Status state = membership_.state();
  if (state.is(Code::kAgain)) return invalid(refusal);
  if (!state.is_ok()) return state;
  if (job_of_one_) {
    const Result<HandleId> handle = handles_.create();
    if (handle.is_ok()) handles_.complete(handle.value(), Status::ok());
    return handle;
  }
  WorkerCommand command;
  command.kind = kind;
  return post(std::move(command), {});
}

Result<HandleId> WorkerDoor::post(WorkerCommand&& command, const Handles::Report& report) {
  Result<HandleId> handle = handles_.create(report);
  if (!handle.is_ok()) return handle;
  command.handle = handle.value();
  command.call.handle = handle.value();
  Status posted = mailbox_.post(std::move(command));
  if (posted.is_ok()) return handle;
  handles_.discard(handle.value());
  const Status state = membership_.state();
  return state.is_ok() ? posted : state;
}

// On which device, and when its input will be there.
Status WorkerDoor::find_place(const Submission& submission, PipelineCall& call) const {
  if (devices_ == nullptr) return {Code::kUnsupported, "this process has no devices"};
  // Of no elements no address is looked at.
  Result<device::Place> place =
      devices_->place(submission.device->ordinal, submission.device->stream,
                      call.input.empty() ? nullptr : call.input.data(),
                      call.output.empty() ? nullptr : call.output.data());
  if (!place.is_ok()) {
    const Status& why = place.status();
    return why.in_words("tensor '" + call.name + "': " + why.message());
  }
  call.place = std::move(place).value();
  return Status::ok();
}

// What is known of a tensor in which nobody else takes part.
Status WorkerDoor::note_alone(const PipelineCall& call) {
  const std::lock_guard lock(mutex_);
  const Result<TensorIndex> tensor = alone_.find_or_add(call.name, call.spec);
  if (tensor.is_ok() && call.once) alone_.give_up(tensor.value());
  return tensor.status();
}

Result<HandleId> WorkerDoor::copy_on_device(PipelineCall& call, const Handles::Report& report) {
  const Result<HandleId> handle = handles_.create(report);
  if (!handle.is_ok()) return handle;
  const HandleId id = handle.value();
  const std::size_t bytes = call.output.size();
  const auto end = [this, id, bytes, name = call.name](Status result) {
    if (!result.is_ok()) result = result.in_words("tensor '" + name + "': " + result.message());
    (result.is_ok() ? copied_.finished_operations : copied_.failed_operations)
        .fetch_add(1, std::memory_order_relaxed);
    if (result.is_ok()) copied_.finished_bytes.fetch_add(bytes, std::memory_order_relaxed);
    handles_.complete(id, std::move(result));
  };
  if (Status noted = note_alone(call); !noted.is_ok()) {
    end(std::move(noted));
    return handle;
  }
  device::Alone alone;
  alone.place = std::move(call.place);
  alone.input = reinterpret_cast<std::uintptr_t>(call.input.data());
  alone.output = reinterpret_cast<std::uintptr_t>(call.output.data());
  alone.bytes = bytes;
  alone.ended = end;
  if ((call.spec.scale != 1 || !call.carry.momentum.empty()) && bytes > 0) {
    alone.finish = [this, spec = call.spec, carry = call.carry,
                    done_bytes = std::size_t{0}](std::span<std::byte> values) mutable {
      finish_alone(spec, kernels_, values, values, carry.of(done_bytes, values.size()));
      done_bytes += values.size();
    };
  }
  if (const Status posted = devices_->post(std::move(alone)); !posted.is_ok()) {
    handles_.discard(id);
    return posted;
  }
  return handle;
}

Result<HandleId> WorkerDoor::copy_at_once(const PipelineCall& call, const Handles::Report& report) {
  const Result<HandleId> handle = handles_.create(report);
  if (!handle.is_ok()) return handle;
  const Status result = note_alone(call);
  if (result.is_ok()) {
    finish_alone(call.spec, kernels_, call.output, call.input, call.carry);
    copied_.finished_operations.fetch_add(1, std::memory_order_relaxed);
    copied_.finished_bytes.fetch_add(call.output.size(), std::memory_order_relaxed);
  } else {
    copied_.failed_operations.fetch_add(1, std::memory_order_relaxed);
  }
  handles_.complete(handle.value(), result);
  return handle;
}

void WorkerDoor::leave(bool final) {
  if (left_.exchange(true)) return;
  if (job_of_one_) return membership_.ended({Code::kCancelled, "this process has left the job"});
  WorkerCommand command;
  command.kind = WorkerCommand::Kind::kLeave;
  command.final = final;
  const Status posted = mailbox_.post(std::move(command));
  CHECK(posted.is_ok() || posted.is(Code::kCancelled)) << posted.text();
}

WorkerMetrics WorkerDoor::metrics() const {
  const auto read = [](const std::atomic<std::uint64_t>& counter) {
    return counter.load(std::memory_order_relaxed);
  };
  const TrafficCounters& servers = counters_.servers;
  const TrafficCounters& local = counters_.local;
  return {.pushed_bytes = read(servers.pushed_bytes),
          .pulled_bytes = read(servers.pulled_bytes),
          .finished_operations =
              read(counters_.finished_operations) + read(copied_.finished_operations),
          .finished_bytes = read(counters_.finished_bytes) + read(copied_.finished_bytes),
          .failed_operations = read(counters_.failed_operations) + read(copied_.failed_operations),
          .reconnects = read(servers.reconnects) + read(local.reconnects),
          .shared_bytes = read(servers.shared_bytes),
          .rdma_bytes = read(servers.rdma_bytes),
          .local_pushed_bytes = read(local.pushed_bytes),
          .local_pulled_bytes = read(local.pulled_bytes),
          .local_shared_bytes = read(local.shared_bytes),
          .device_out_bytes = read(counters_.device_out_bytes),
          .device_in_bytes = read(counters_.device_in_bytes),
          .pushed_frames = read(servers.pushed_frames) + read(local.pushed_frames),
          .wanted_messages = read(servers.wanted_messages) + read(local.wanted_messages),
          .lost_servers = read(servers.lost_servers),
          .lost_schedulers = read(counters_.lost_schedulers),
          .lost_workers = read(counters_.lost_workers),
          .coding = {.pushed_wire_bytes = read(servers.pushed_wire_bytes),
                     .pulled_wire_bytes = read(servers.pulled_wire_bytes),
                     .encode_ns = read(servers.encode_ns),
                     .decode_ns = read(servers.decode_ns)}};
}

}  // namespace byteps
