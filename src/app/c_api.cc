// The C interface over WorkerDoor and Worker: assembles a job, checks what crosses the border, translates errors.
// No exception leaves it; a forked child's copy of a job is inert.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "app/env.h"
#include "app/flight_file.h"
#include "app/fork_mark.h"
#include "app/own_place.h"
#include "app/process.h"
#include "app/relay_unit.h"
#include "app/timeline_file.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/shape.h"
#include "byteps/byteps.h"
#include "device/devices.h"
#include "loop/clock.h"
#include "loop/log_writer.h"
#include "loop/runner.h"
#include "net/auth.h"
#include "worker/worker.h"

using byteps::Code;
using byteps::Status;

// All workers' end of inputs: one handle for whoever waits, until it has ended.
class Meeting {
 public:
  // Waits for the one that is open, or begins one.
  template <typename Begin>
  Status wait(byteps::WorkerDoor& door, int64_t timeout_ns, Begin&& begin) {
    byteps::HandleId handle;
    {
      const std::lock_guard lock(mutex_);
      if (!open_) {
        const byteps::Result<byteps::HandleId> begun = begin();
        if (!begun.is_ok()) return begun.status();
        open_ = begun.value();
      }
      handle = *open_;
    }
    const Status status = door.wait(handle, timeout_ns);
    if (!status.is(Code::kAgain)) {
      const std::lock_guard lock(mutex_);
      if (open_ == handle) open_.reset();
    }
    return status;
  }

 private:
  std::mutex mutex_;  // guards what follows
  std::optional<byteps::HandleId> open_;
};

// Barriers: each call is in one of its own, so that a rank has as many as it has callers. A caller whose time is over
// leaves its barrier behind, and the next call takes it up: it does not matter whose, for each ends one.
class Barriers {
 public:
  Status wait(byteps::WorkerDoor& door, int64_t timeout_ns) {
    const byteps::Result<byteps::HandleId> mine = take(door);
    if (!mine.is_ok()) return mine.status();
    const Status status = door.wait(mine.value(), timeout_ns);
    if (status.is(Code::kAgain)) {
      const std::lock_guard lock(mutex_);
      left_.insert(mine.value());
    }
    return status;
  }

 private:
  byteps::Result<byteps::HandleId> take(byteps::WorkerDoor& door) {
    const std::lock_guard lock(mutex_);
    if (left_.empty()) return door.begin_barrier();
    return left_.extract(left_.begin()).value();
  }

  std::mutex mutex_;                 // guards what follows
  std::set<byteps::HandleId> left_;  // begun, and nobody waits; the oldest ends first
};

// Everything a job needs, in the order of construction; destroyed from the end.
struct byteps_job {
  byteps_job(byteps::Config job_config, std::unique_ptr<byteps::ProcessTransport> own_transport,
             std::unique_ptr<byteps::LogWriter> log_writer,
             std::unique_ptr<byteps::FlightFile> flight_file)
      : config(measured(std::move(job_config))),
        writer(std::move(log_writer)),
        flight(std::move(flight_file)),
        timeline(config.job.scheduler_host.empty()
                     ? nullptr
                     : byteps::TimelineFile::make(byteps::Role::kWorker, config, *writer)),
        log("worker " + std::to_string(config.job.rank), config.log_level, writer->sink(),
            &flight->recorder(), byteps::TimelineFile::timeline_of(timeline)),
        transport(std::move(own_transport)),
        devices(config.device, log, clock, transport ? &transport->waiter() : nullptr),
        door(config, transport ? &transport->waiter() : nullptr, &devices) {
    if (door.is_job_of_one()) return;
    relay = byteps::RelayUnit::make(config, transport->waiter(), door.relay_counters(), log,
                                    flight->absence_sink());
    worker.emplace(config, *transport, door, log, byteps::host_and_pid(), byteps::RoadEnds(),
                   relay ? relay->port() : byteps::RelayPort(), devices.port());
    if (relay) relay->start(clock, config.spin_ns);
    runner.emplace("byteps-worker", *worker, transport->waiter(), clock, config.spin_ns);
  }

  static byteps::Config measured(byteps::Config config) {
    config.flow.stopwatch = byteps::monotonic_now;
    return config;
  }

  const byteps::ForkMark mark;
  const byteps::Config config;
  const std::unique_ptr<byteps::LogWriter> writer;
  const std::unique_ptr<byteps::FlightFile> flight;
  const std::unique_ptr<byteps::TimelineFile> timeline;  // null: none is recorded
  const byteps::Log log;
  std::atomic<bool> log_is_read{true};  // until it was waited for in vain
  byteps::MonotonicClock clock;
  std::unique_ptr<byteps::ProcessTransport> transport;  // null in a job of one
  byteps::device::Devices devices;
  byteps::WorkerDoor door;
  std::unique_ptr<byteps::RelayUnit> relay;  // null: nobody sums here first
  std::optional<byteps::Worker> worker;
  std::optional<byteps::Runner> runner;

  Barriers barriers;
  Meeting end_of_inputs;

  std::mutex queues_mutex;  // guards what follows
  std::vector<std::shared_ptr<byteps::CompletionQueue>> queues;
};

// Shared with the job, whose operations end there: either may be gone first.
struct byteps_queue {
  explicit byteps_queue(const byteps_job* job) : owner(job) {}

  const byteps::ForkMark mark;
  const byteps_job* const owner;  // only compared: it may have been left
  const std::shared_ptr<byteps::CompletionQueue> ends = std::make_shared<byteps::CompletionQueue>();
};

namespace {

static_assert(static_cast<int>(Code::kCancelled) == BYTEPS_CANCELLED);
static_assert(static_cast<int>(Code::kMismatch) == BYTEPS_MISMATCH);
static_assert(sizeof(byteps::auth::Proof) == BYTEPS_SEAL_BYTES);
static_assert(byteps::kDimensionsMax == BYTEPS_DIMENSIONS_MAX);

int report(const Status& status, byteps_error* error) {
  if (error != nullptr) {
    error->code = static_cast<int32_t>(status.code());
    const std::string& message = status.message();
    const std::size_t bytes = std::min(message.size(), sizeof error->message - 1);
    std::memcpy(error->message, message.data(), bytes);
    error->message[bytes] = '\0';
  }
  return static_cast<int>(status.code());
}

Status forked() {
  return {Code::kInvalidArgument,
          "this job belongs to the parent process: after fork() a child must join a job of its "
          "own, or not use byteps"};
}

Status no_job() {
  return {Code::kInvalidArgument, "the job is NULL: call byteps_join first"};
}

// Runs `body`, which returns a Status, as an interface function: nothing is thrown across the border.
template <typename Body>
int guarded(byteps_error* error, Body&& body) {
  try {
    return report(body(), error);
  } catch (const std::bad_alloc&) {
    return report({Code::kSystem, "out of memory"}, error);
  } catch (const std::exception& exception) {
    return report({Code::kSystem, std::string("unexpected: ") + exception.what()}, error);
  }
}

// The same for functions of a job.
template <typename Job, typename Body>
int with_job(Job* job, byteps_error* error, Body&& body) {
  if (job == nullptr) return report(no_job(), error);
  if (job->mark.is_forked()) return report(forked(), error);
  return guarded(error, std::forward<Body>(body));
}

Status start(const char* settings, byteps_job** job) {
  const auto environment =
      byteps::with_settings(byteps::process_environment(), settings == nullptr ? "" : settings);
  if (!environment.is_ok()) return environment.status();
  auto flight = std::make_unique<byteps::FlightFile>(byteps::Role::kWorker, environment.value());
  byteps::FlightRecorder& recorder = flight->recorder();
  const auto parsed =
      byteps::parse_environment(byteps::Role::kWorker, environment.value(), byteps::own_command());
  if (!parsed.is_ok()) return recorder.with_path("settings", parsed.status());
  const byteps::Result<byteps::Config> spread =
      byteps::with_interfaces(byteps::Role::kWorker, parsed.value());
  if (!spread.is_ok()) return recorder.with_path("settings", spread.status());
  const byteps::Result<byteps::Config> drawn = byteps::with_lot(
      byteps::with_descriptors(spread.value(), byteps::Role::kWorker), byteps::Role::kWorker);
  if (!drawn.is_ok()) return recorder.with_path("job", drawn.status());
  const byteps::Config& config = drawn.value();
  recorder.set_rank(config.job.rank);
  auto writer = std::make_unique<byteps::LogWriter>();
  const byteps::Log log("worker", config.log_level, writer->sink(), &recorder);
  for (const byteps::SettingWarning& warning : parsed.value().warnings) {
    LOG(log, kWarning) << warning.text;
  }
  std::unique_ptr<byteps::ProcessTransport> transport;
  if (!config.job.scheduler_host.empty()) {
    auto made = byteps::TransportMaker(config, byteps::Role::kWorker, log).make({});
    if (!made.is_ok()) return recorder.with_path("job", made.status());
    transport = std::move(made).value();
  }
  byteps::warn_about_interfaces(config, log);
  byteps::Config here =
      byteps::with_machine(config, byteps::addresses_of_worker(config, parsed.value()));
  if (transport) {
    here.job.local.device =
        byteps::own_place(byteps::place_question(parsed.value(), environment.value()));
  }
  *job =
      new byteps_job(std::move(here), std::move(transport), std::move(writer), std::move(flight));
  return Status::ok();
}

void end(byteps_job* job, bool final) {
  job->door.leave(final);
  if (job->runner) job->runner->join();
  const bool relay_ends = !job->relay || job->relay->join_within(job->worker->relay_patience_ns());
  const bool devices_end = job->devices.close_within(job->config.timeout.failure_ns);
  for (const auto& queue : job->queues) queue->close();
  if (relay_ends && devices_end) {
    delete job;
    return;
  }
  // Its threads may still use all of it: nothing is taken apart.
  LOG(job->log, kError) << (relay_ends ? "a GPU" : "its relay")
                        << " stands still: it leaves the job without it, and the memory of the job "
                           "stays taken";
  job->flight->settle();
  job->writer->settle(byteps::LogWriter::kEndNs);
}

// What led to it is in the last events, which the caller is told of, and in the log: both are written when he hears so,
// and perhaps ends his process at once, unless the folder is slow or nobody reads the log.
Status with_events(byteps_job& job, Status status) {
  if (status.is_ok() || status.is(Code::kAgain)) return status;
  job.flight->settle();
  if (job.log_is_read) job.log_is_read = job.writer->settle(byteps::LogWriter::kEndNs);
  return status;
}

// sizeof(byteps_tensor) for programs that were compiled before interface versions 3, 4, 9, 11 and 13.
constexpr std::size_t kTensorBytesBeforeShape = offsetof(byteps_tensor, shape);
constexpr std::size_t kTensorBytesBeforeScale = offsetof(byteps_tensor, scale);
constexpr std::size_t kTensorBytesBeforeMemory = offsetof(byteps_tensor, memory);
constexpr std::size_t kTensorBytesBeforeFormat = offsetof(byteps_tensor, format);
constexpr std::size_t kTensorBytesBeforeCodec = offsetof(byteps_tensor, codec);

Status check_memory(uint32_t memory) {
  if (memory <= BYTEPS_CUDA_MEMORY) return Status::ok();
  return {Code::kInvalidArgument,
          "unknown kind of memory: " + std::to_string(memory) +
              "; this version knows BYTEPS_HOST_MEMORY and BYTEPS_CUDA_MEMORY"};
}

// What a Codec (base/codec.h) has no place for.
Status check_codec(const byteps_tensor& tensor) {
  constexpr uint32_t kFlags = BYTEPS_CODEC_SEEDED | BYTEPS_CODEC_SCALING | BYTEPS_CODEC_NATURAL |
                              BYTEPS_CODEC_L2 | BYTEPS_CODEC_ERROR_FEEDBACK;
  if (tensor.momentum == nullptr && tensor.momentum_mu != 0) {
    return {Code::kInvalidArgument, "byteps_tensor.momentum_mu is set, and momentum is NULL"};
  }
  if (tensor.codec == nullptr) return Status::ok();
  if (tensor.codec->reserved != 0) {
    return {Code::kInvalidArgument,
            "byteps_codec.reserved is " + std::to_string(tensor.codec->reserved) + ": set it to 0"};
  }
  if ((tensor.codec->flags & ~kFlags) == 0) return Status::ok();
  return {Code::kInvalidArgument,
          "byteps_codec.flags has unknown bits: " + std::to_string(tensor.codec->flags)};
}

// The tensor as this version has it: what the caller's struct lacks is zero.
Status read_tensor(const byteps_tensor* given, const byteps_handle* handle, byteps_tensor& tensor) {
  if (given == nullptr || handle == nullptr) {
    return {Code::kInvalidArgument,
            "byteps_push_pull needs a tensor and a place for the handle; one of them is NULL"};
  }
  const std::size_t bytes = given->struct_bytes;
  if (bytes != kTensorBytesBeforeShape && bytes != kTensorBytesBeforeScale &&
      bytes != kTensorBytesBeforeMemory && bytes != kTensorBytesBeforeFormat &&
      bytes != kTensorBytesBeforeCodec && bytes < sizeof(byteps_tensor)) {
    return {Code::kInvalidArgument, "byteps_tensor.struct_bytes is " + std::to_string(bytes) +
                                        ": set it to sizeof(byteps_tensor), " +
                                        std::to_string(sizeof(byteps_tensor))};
  }
  tensor = {};
  std::memcpy(&tensor, given, std::min(bytes, sizeof tensor));
  const std::uint32_t reserved = tensor.reserved | tensor.reserved2 | tensor.reserved3;
  if (reserved != 0) {
    return {Code::kInvalidArgument,
            "byteps_tensor.reserved is " + std::to_string(reserved) + ": set it to 0"};
  }
  if (tensor.name == nullptr)
    return {Code::kInvalidArgument, "byteps_tensor.name is NULL: every tensor has a name"};
  if ((tensor.flags & ~(BYTEPS_ONCE | BYTEPS_ROOT_ONLY | BYTEPS_CODED_WHERE_FIT)) != 0) {
    return {Code::kInvalidArgument,
            "byteps_tensor.flags has unknown bits: " + std::to_string(tensor.flags)};
  }
  const Status codec = check_codec(tensor);
  return codec.is_ok() ? check_memory(tensor.memory) : codec;
}

byteps::Codec codec_of(const byteps_tensor& tensor) {
  byteps::Codec codec;
  if (tensor.momentum != nullptr) codec.momentum = tensor.momentum_mu;
  if (tensor.codec == nullptr) return codec;
  const auto has = [&](uint32_t flag) { return (tensor.codec->flags & flag) != 0; };
  codec.k = tensor.codec->k;
  if (has(BYTEPS_CODEC_SEEDED)) codec.seed = tensor.codec->seed;
  codec.scaling = has(BYTEPS_CODEC_SCALING);
  codec.natural = has(BYTEPS_CODEC_NATURAL);
  codec.l2 = has(BYTEPS_CODEC_L2);
  codec.error_feedback = has(BYTEPS_CODEC_ERROR_FEEDBACK);
  return codec;
}

byteps::Submission submission_of(const byteps_tensor& tensor) {
  CHECK(tensor.name != nullptr) << "read_tensor() lets none through";
  byteps::Submission submission;
  submission.name = tensor.name;
  submission.input = tensor.input;
  submission.output = tensor.output;
  submission.element_count = tensor.element_count;
  submission.dtype = tensor.dtype;
  submission.operation = tensor.operation;
  submission.root = tensor.root;
  submission.priority = tensor.priority;
  if (tensor.shape != nullptr) submission.shape = {tensor.shape, tensor.dimension_count};
  submission.once = (tensor.flags & BYTEPS_ONCE) != 0;
  submission.root_only = (tensor.flags & BYTEPS_ROOT_ONLY) != 0;
  submission.scale = tensor.scale;
  submission.members = tensor.members;
  submission.member_count = tensor.member_count;
  submission.format = tensor.format;
  submission.coded_where_fit = (tensor.flags & BYTEPS_CODED_WHERE_FIT) != 0;
  submission.residual = tensor.residual;
  submission.residual_ratio = tensor.residual_ratio;
  submission.momentum = tensor.momentum;
  submission.codec = codec_of(tensor);
  if (tensor.memory == BYTEPS_CUDA_MEMORY) {
    submission.device = {.ordinal = tensor.device,
                         .stream = static_cast<byteps::device::abi::Stream>(tensor.stream)};
  }
  if (tensor.queue != nullptr) {
    submission.report = {.queue = tensor.queue->ends.get(), .tag = tensor.tag};
  }
  return submission;
}

// `failure`: why the one that was taken has failed; ok when none has.
Status take_ended(byteps::CompletionQueue& queue, std::span<byteps_ended> ended, uint32_t& count,
                  int64_t timeout_ns, Status& failure) {
  std::array<byteps::CompletionQueue::Ended, 64> batch;
  std::size_t taken = 0;
  const auto room = std::span(batch).first(std::min(batch.size(), ended.size()));
  const Status status = queue.take(room, taken, timeout_ns);
  count = static_cast<uint32_t>(taken);
  for (std::size_t i = 0; i < taken; ++i) {
    ended[i] = {.handle = batch[i].handle.value,
                .tag = batch[i].tag,
                .code = static_cast<int32_t>(batch[i].result.code()),
                .reserved = 0};
  }
  if (taken == 1) failure = batch[0].result;
  return status;
}

// The seal of `rank` for what the two functions were given.
byteps::Result<byteps::auth::Proof> seal_of(const byteps_job& job, uint32_t rank, const char* name,
                                            const void* payload, uint64_t payload_bytes,
                                            const uint8_t* seal) {
  if (name == nullptr || seal == nullptr || (payload == nullptr && payload_bytes > 0)) {
    return Status(Code::kInvalidArgument,
                  "a seal needs a name, a payload, and 32 bytes; one of them is NULL");
  }
  return byteps::auth::seal(job.config.job.key,
                            {.epoch = job.door.membership().epoch(),
                             .rank = byteps::WorkerRank(rank),
                             .name = name,
                             .incarnation = job.door.membership().incarnation()},
                            {static_cast<const std::byte*>(payload), payload_bytes});
}

}  // namespace

extern "C" {

uint32_t byteps_abi_version(void) {
  return BYTEPS_ABI_VERSION;
}
const char* byteps_version(void) {
  return BYTEPS_VERSION;
}

int byteps_join_start(const char* settings, byteps_job** job, byteps_error* error) {
  if (job == nullptr)
    return report({Code::kInvalidArgument, "byteps_join needs a place for the job; it is NULL"},
                  error);
  *job = nullptr;
  return guarded(error, [&] { return start(settings, job); });
}

int byteps_join_finish(byteps_job** job, int64_t timeout_ns, byteps_error* error) {
  if (job == nullptr) return report(no_job(), error);
  return with_job(*job, error, [&] {
    const Status status = (*job)->door.membership().wait(timeout_ns);
    if (!status.is_ok() && !status.is(Code::kAgain)) {
      end(*job, true);
      *job = nullptr;
    }
    return status;
  });
}

int byteps_join(const char* settings, byteps_job** job, byteps_error* error) {
  const int code = byteps_join_start(settings, job, error);
  return code != BYTEPS_OK ? code : byteps_join_finish(job, -1, error);
}

int byteps_leave(byteps_job* job, int final, byteps_error* error) {
  return with_job(job, error, [&] {
    end(job, final != 0);
    return Status::ok();
  });
}

uint32_t byteps_rank(const byteps_job* job) {
  return job == nullptr ? 0 : job->door.membership().rank();
}
uint32_t byteps_size(const byteps_job* job) {
  return job == nullptr ? 0 : job->door.membership().size();
}
uint32_t byteps_leader(const byteps_job* job) {
  return job == nullptr ? 0 : job->door.membership().leader();
}
uint32_t byteps_local_rank(const byteps_job* job) {
  return job == nullptr ? 0 : job->door.membership().local_rank();
}
uint32_t byteps_local_size(const byteps_job* job) {
  return job == nullptr ? 0 : job->door.membership().local_size();
}
uint32_t byteps_server_count(const byteps_job* job) {
  return job == nullptr ? 0 : job->door.membership().server_count();
}

uint32_t byteps_machines(const byteps_job* job, uint32_t* machines, uint32_t capacity) {
  if (job == nullptr || job->mark.is_forked()) return 0;
  const std::vector<uint32_t> known = job->door.membership().machines();
  if (machines != nullptr)
    std::copy_n(known.begin(), std::min<std::size_t>(known.size(), capacity), machines);
  return static_cast<uint32_t>(known.size());
}

int byteps_push_pull(byteps_job* job, const byteps_tensor* tensor, byteps_handle* handle,
                     byteps_error* error) {
  return with_job(job, error, [&]() -> Status {
    byteps_tensor known{};
    if (Status status = read_tensor(tensor, handle, known); !status.is_ok()) return status;
    if (known.queue != nullptr && known.queue->owner != job) {
      return {Code::kInvalidArgument, "tensor '" + std::string(known.name) +
                                          "': byteps_tensor.queue was made for another job"};
    }
    const byteps::Result<byteps::HandleId> submitted = job->door.submit(submission_of(known));
    if (!submitted.is_ok()) return submitted.status();
    *handle = submitted.value().value;
    return Status::ok();
  });
}

int byteps_use_device(byteps_job* job, uint32_t memory, int32_t device, byteps_error* error) {
  return with_job(job, error, [&]() -> Status {
    if (Status known = check_memory(memory); !known.is_ok()) return known;
    if (memory == BYTEPS_HOST_MEMORY) return Status::ok();
    return job->devices.use(device).status();
  });
}

int byteps_poll(byteps_job* job, byteps_handle handle) {
  if (job == nullptr || job->mark.is_forked()) return -1;
  const byteps::Result<bool> finished = job->door.poll(byteps::HandleId(handle));
  if (!finished.is_ok()) return -1;
  return finished.value() ? 1 : 0;
}

int byteps_wait(byteps_job* job, byteps_handle handle, int64_t timeout_ns, byteps_error* error) {
  return with_job(job, error, [&] {
    return with_events(*job, job->door.wait(byteps::HandleId(handle), timeout_ns));
  });
}

int byteps_queue_create(byteps_job* job, byteps_queue** queue, byteps_error* error) {
  return with_job(job, error, [&]() -> Status {
    if (queue == nullptr) {
      return {Code::kInvalidArgument,
              "byteps_queue_create needs a place for the queue; it is NULL"};
    }
    *queue = nullptr;
    auto made = std::make_unique<byteps_queue>(job);
    const std::lock_guard lock(job->queues_mutex);
    std::erase_if(job->queues, [](const auto& ends) {
      return ends.use_count() == 1 && ends->outstanding() == 0;
    });
    job->queues.push_back(made->ends);
    *queue = made.release();
    return Status::ok();
  });
}

int byteps_queue_wait(byteps_queue* queue, byteps_ended* ended, uint32_t capacity, uint32_t* count,
                      int64_t timeout_ns, byteps_error* error) {
  if (queue == nullptr || ended == nullptr || count == nullptr) {
    return report({Code::kInvalidArgument,
                   "byteps_queue_wait needs a queue, places for what has ended, and for their "
                   "count; one of them is NULL"},
                  error);
  }
  *count = 0;
  if (queue->mark.is_forked()) return report(forked(), error);
  Status failure;
  const int code = guarded(error, [&] {
    return take_ended(*queue->ends, {ended, capacity}, *count, timeout_ns, failure);
  });
  if (code == BYTEPS_OK && !failure.is_ok()) report(failure, error);
  return code;
}

void byteps_queue_destroy(byteps_queue* queue) {
  if (queue != nullptr && !queue->mark.is_forked()) delete queue;
}

int byteps_barrier(byteps_job* job, int64_t timeout_ns, byteps_error* error) {
  return with_job(job, error,
                  [&] { return with_events(*job, job->barriers.wait(job->door, timeout_ns)); });
}

int byteps_finish_inputs(byteps_job* job, int64_t timeout_ns, uint32_t* last_rank,
                         byteps_error* error) {
  return with_job(job, error, [&]() -> Status {
    const Status status =
        job->end_of_inputs.wait(job->door, timeout_ns, [&] { return job->door.finish_inputs(); });
    if (status.is_ok() && last_rank != nullptr)
      *last_rank = job->door.membership().last_with_inputs();
    return status;
  });
}

int byteps_seal(byteps_job* job, const char* name, const void* payload, uint64_t payload_bytes,
                uint8_t* seal, byteps_error* error) {
  return with_job(job, error, [&]() -> Status {
    const auto made =
        seal_of(*job, job->door.membership().rank(), name, payload, payload_bytes, seal);
    if (!made.is_ok()) return made.status();
    std::memcpy(seal, made.value().data(), made.value().size());
    return Status::ok();
  });
}

int byteps_check_seal(byteps_job* job, uint32_t rank, const char* name, const void* payload,
                      uint64_t payload_bytes, const uint8_t* seal, byteps_error* error) {
  return with_job(job, error, [&]() -> Status {
    const auto expected = seal_of(*job, rank, name, payload, payload_bytes, seal);
    if (!expected.is_ok()) return expected.status();
    if (byteps::auth::is_equal(expected.value(), std::as_bytes(std::span(seal, BYTEPS_SEAL_BYTES))))
      return Status::ok();
    return {Code::kMismatch,
            "'" + std::string(name) + "': what came is not what rank " + std::to_string(rank) +
                " has sealed: it was changed on its way, is an older one, or was made by someone "
                "without the job key. It has not been looked into"};
  });
}

uint64_t byteps_progress(const byteps_job* job) {
  return job == nullptr || job->mark.is_forked() ? 0 : job->door.progress();
}

int byteps_all_wait(byteps_job* job, uint64_t seen, uint32_t inside) {
  return with_job(job, nullptr, [&]() -> Status {
    uint64_t in_queues = 0;
    {
      const std::lock_guard lock(job->queues_mutex);
      for (const auto& queue : job->queues) in_queues += queue->idle_takers();
    }
    const bool is_so = inside == BYTEPS_NOT_COUNTED ? job->door.all_wait(seen, std::nullopt)
                                                    : job->door.all_wait(seen, inside - in_queues);
    return is_so ? Status::ok() : Status(Code::kAgain, "something has changed meanwhile");
  });
}

int byteps_record(byteps_job* job, const char* text, int failed, byteps_error* error) {
  return with_job(job, error, [&]() -> Status {
    if (text == nullptr) {
      return {Code::kInvalidArgument, "byteps_record needs a text; it is NULL"};
    }
    if (failed == 0) {
      job->log.record({.kind = "note", .text = text});
      return Status::ok();
    }
    const bool interrupted = failed == BYTEPS_INTERRUPTED;
    const auto kind = interrupted ? byteps::CauseKind::kInterrupted : byteps::CauseKind::kRaised;
    const Status why(Code::kCancelled, text, {.kind = kind});
    job->log.record(byteps::FlightEvent::of_end("raised", why));
    job->flight->recorder().leave_behind("raised", why);
    job->flight->settle();  // the process may end at once
    return Status::ok();
  });
}

int byteps_is_replaced(const byteps_job* job) {
  if (job == nullptr || job->mark.is_forked()) return 0;
  const Status state = job->door.membership().state();
  return state.is_because_of(byteps::CauseKind::kReplaced) ? 1 : 0;
}

int byteps_get_metrics(const byteps_job* job, byteps_metrics* metrics) {
  return with_job(job, nullptr, [&]() -> Status {
    constexpr std::size_t kBytesOfVersion1 = offsetof(byteps_metrics, shared_bytes);
    constexpr std::size_t kBytesOfVersion5 = offsetof(byteps_metrics, local_pushed_bytes);
    constexpr std::size_t kBytesOfVersion8 = offsetof(byteps_metrics, device_out_bytes);
    constexpr std::size_t kBytesOfVersion9 = offsetof(byteps_metrics, lost_servers);
    constexpr std::size_t kBytesOfVersion10 = offsetof(byteps_metrics, pushed_wire_bytes);
    constexpr std::size_t kBytesOfVersion11 = offsetof(byteps_metrics, encode_ns);
    if (metrics == nullptr || metrics->struct_bytes < kBytesOfVersion1) {
      return {Code::kInvalidArgument, "byteps_metrics.struct_bytes must be sizeof(byteps_metrics)"};
    }
    const byteps::WorkerMetrics now = job->door.metrics();
    metrics->pushed_bytes = now.pushed_bytes;
    metrics->pulled_bytes = now.pulled_bytes;
    metrics->finished_operations = now.finished_operations;
    metrics->finished_bytes = now.finished_bytes;
    metrics->failed_operations = now.failed_operations;
    metrics->reconnects = now.reconnects;
    if (metrics->struct_bytes < kBytesOfVersion5) return Status::ok();
    metrics->shared_bytes = now.shared_bytes;
    metrics->rdma_bytes = now.rdma_bytes;
    if (metrics->struct_bytes < kBytesOfVersion8) return Status::ok();
    metrics->local_pushed_bytes = now.local_pushed_bytes;
    metrics->local_pulled_bytes = now.local_pulled_bytes;
    metrics->local_shared_bytes = now.local_shared_bytes;
    if (metrics->struct_bytes < kBytesOfVersion9) return Status::ok();
    metrics->device_out_bytes = now.device_out_bytes;
    metrics->device_in_bytes = now.device_in_bytes;
    metrics->pushed_frames = now.pushed_frames;
    metrics->wanted_messages = now.wanted_messages;
    if (metrics->struct_bytes < kBytesOfVersion10) return Status::ok();
    metrics->lost_servers = now.lost_servers;
    metrics->lost_schedulers = now.lost_schedulers;
    metrics->lost_workers = now.lost_workers;
    if (metrics->struct_bytes < kBytesOfVersion11) return Status::ok();
    metrics->pushed_wire_bytes = now.coding.pushed_wire_bytes;
    metrics->pulled_wire_bytes = now.coding.pulled_wire_bytes;
    if (metrics->struct_bytes < sizeof(byteps_metrics)) return Status::ok();
    metrics->encode_ns = now.coding.encode_ns;
    metrics->decode_ns = now.coding.decode_ns;
    return Status::ok();
  });
}

const char* byteps_environment_reference(void) {
  // Made once and kept: the interface promises that it is valid for ever.
  static const std::string kReference = byteps::environment_reference();
  return kReference.c_str();
}

}  // extern "C"
