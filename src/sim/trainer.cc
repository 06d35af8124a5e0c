#include "sim/trainer.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace byteps::sim {
namespace {

constexpr std::byte kGuard{0x77};

// Whether a round of a tensor on which the ranks disagree may end so.
bool is_end_of_odd(const TensorPlan& tensor, const Status& status, const GenerationPlan& generation,
                   const WorldPlan& plan) {
  // Where relays sum first, whoever would have to hear what it is here may have left; or whoever has heard it of a
  // server that was lost has.
  const bool may_leave_untold = plan.local_reduce || plan.faults.kinds.has(Fault::kLostServer);
  const bool is_gone = may_leave_untold && status.is_because_of(CauseKind::kLeft);
  // Those whom the odd rank takes for members may have no more inputs: they are not waited for.
  const bool is_alone =
      generation.uneven && status.is_ok() && tensor.odd_facts.members != tensor.facts.members;
  return status.is(Code::kMismatch) || is_gone || is_alone;
}

// Who has heard of it from a server that was lost then may have left by that, and its successor knows nothing of it.
bool ends_by_lost_root(const TensorFacts& facts, const Status& status, const Ledger& ledger) {
  const bool is_gone =
      ledger.plan().faults.kinds.has(Fault::kLostServer) && status.is_because_of(CauseKind::kLeft);
  return facts.has_root() && ledger.is_lost(facts.root) &&
         (status.is_because_of(CauseKind::kGone) || is_gone);
}

}  // namespace

// ---- memory

GuardedMemory::GuardedMemory(std::size_t bytes)
    : size_(bytes), bytes_(bytes + 2 * kGuardBytes, kGuard) {}

std::byte GuardedMemory::scribble_at(std::size_t i) const {
  return static_cast<std::byte>(seed_ * 31 + i * 7 + 13);
}

void GuardedMemory::scribble(std::uint64_t seed) {
  seed_ = seed;
  scribbled_ = true;
  const std::span<std::byte> memory = span();
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = scribble_at(i);
}

bool GuardedMemory::is_whole() const {
  for (std::size_t i = 0; i < kGuardBytes; ++i) {
    if (bytes_[i] != kGuard || bytes_[kGuardBytes + size_ + i] != kGuard) return false;
  }
  for (std::size_t i = 0; scribbled_ && i < size_; ++i) {
    if (bytes_[kGuardBytes + i] != scribble_at(i)) return false;
  }
  return true;
}

// ---- lives

Trainer::Trainer(SimCluster& cluster, Ledger& ledger, Trace& trace, std::uint32_t rank)
    : cluster_(cluster), ledger_(ledger), trace_(trace), rank_(rank), lot_(rank) {}

void Trainer::start() {
  state_ = State::kStarting;
  cluster_.at(cluster_.now() + own_plan().start_ns, [this] {
    if (state_ == State::kStarting) begin_life();
  });
}

void Trainer::begin_life() {
  Config config = ledger_.plan().config;
  ledger_.plan().introduce(rank_, config.job);
  config.job.life = lot_.next();
  config.flow = own_plan().flow;
  if (!plan().same_process) ++lives_;
  const std::string rank_text = std::to_string(rank_);
  process_ = std::make_unique<WorkerProcess>(
      cluster_, config, "worker " + rank_text + " life " + std::to_string(generation_),
      "worker-" + rank_text + ":" + std::to_string(lives_), ledger_.plan().worker_host(rank_),
      [this] { after_turn(); }, own_plan().gpu ? &*own_plan().gpu : nullptr);
  step_ = 0;
  waits_ = nullptr;
  failed_ = false;
  job_end_ns_ = kNever;
  barriers_ = 0;
  memory_.idle.clear();
  fed_back_.clear();
  state_ = State::kJoining;
}

void Trainer::after_turn() {
  const Status state = process_->door.membership().state();
  const bool has_ended = !state.is_ok() && !state.is(Code::kAgain);
  if (has_ended && job_end_ns_ == kNever) job_end_ns_ = cluster_.now();
  look_for_ends();
  switch (state_) {
    case State::kJoining: {
      const Status joined = process_->door.membership().state();
      if (joined.is(Code::kAgain)) return;
      if (!joined.is_ok()) return job_failed(joined);
      state_ = State::kWorking;
      return next_step();
    }
    case State::kWorking:
      return go_on();
    case State::kReady:
      if (!process_->door.membership().state().is_ok())
        job_failed(process_->door.membership().state());
      return;
    case State::kLeaving:
      if (process_->is_finished()) end_life();
      return;
    case State::kStarting:
    case State::kDone:
      return;
  }
}

void Trainer::go_on() {
  const Status state = process_->door.membership().state();
  if (!state.is_ok()) return job_failed(state);
  if (waits_ && !is_awaited(waits_->kind)) {
    waits_ = nullptr;
    next_step();
  }
  if (step_ == own_plan().steps.size() && operations_.empty()) state_ = State::kReady;
}

// Something of what this wait is for has not ended.
bool Trainer::is_awaited(StepPlan::Kind wait) const {
  if (wait != StepPlan::Kind::kWaitEarly) return !operations_.empty();
  return std::any_of(operations_.begin(), operations_.end(), [this](const Pending& each) {
    return each.step != nullptr && plan().tensors[each.tensor].is_early;
  });
}

// The gap before the next step begins.
void Trainer::next_step() {
  if (step_ == own_plan().steps.size()) return go_on();
  const TimeNs when = cluster_.now() + own_plan().steps[step_].gap_ns;
  cluster_.at(when, [this, life = generation_] { begin_step(life); });
}

void Trainer::begin_step(std::uint32_t life) {
  if (state_ != State::kWorking || life != generation_ || !ledger_.ok()) return;
  if (cluster_.now() < paused_until_ns_) {
    return cluster_.at(paused_until_ns_, [this, life] { begin_step(life); });
  }
  const StepPlan& due = own_plan().steps[step_++];
  switch (due.kind) {
    case StepPlan::Kind::kSubmit:
      submit(due);
      break;
    case StepPlan::Kind::kBarrier:
      begin_barrier();
      break;
    case StepPlan::Kind::kFinish:
      finish_inputs();
      waits_ = &due;  // for it as well: nothing may be submitted meanwhile
      return go_on();
    case StepPlan::Kind::kWait:
    case StepPlan::Kind::kWaitEarly:
      waits_ = &due;
      return go_on();
  }
  next_step();
}

void Trainer::release() {
  CHECK(state_ == State::kReady);
  state_ = State::kLeaving;
  cluster_.at(cluster_.now() + own_plan().leave_gap_ns, [this] {
    if (state_ != State::kLeaving || !process_) return;
    trace_.note(cluster_.now(), Trace::What::kLeave, rank_, generation_);
    process_->door.leave(generation_ + 1 == ledger_.plan().generations.size());
  });
}

// Without a lost process the job never fails; with one, everything that waits ends with an error.
void Trainer::job_failed(const Status& why) {
  if (!ledger_.may_fail(rank_)) return fail(Invariant::kGoodEnd, "the job failed: " + why.text());
  ledger_.check_cause(process_->seat.name(), why, state_ == State::kJoining);
  failed_ = true;
  state_ = State::kLeaving;
  if (process_->is_finished()) end_life();
}

void Trainer::die() {
  process_.reset();
  operations_.clear();
  state_ = State::kDone;
}

void Trainer::end_life() {
  const Status state = process_->door.membership().state();
  if (!state.is(Code::kCancelled) && !ledger_.may_fail(rank_)) {
    fail(Invariant::kGoodEnd, "leaving failed: " + state.text());
  }
  if (!state.is(Code::kCancelled)) failed_ = true;
  // A GPU that stands still is left to itself, with what nobody else takes part in.
  if (process_->device && !process_->device->loop.finished()) {
    std::erase_if(operations_, [](const Pending& each) { return each.is_alone; });
  }
  if (!operations_.empty()) {
    fail(Invariant::kOneEnd, "is finished, but " + describe(operations_[0]) + " has not ended");
  }
  if (process_->lent_payloads() > 0) {
    fail(Invariant::kLentComesBack, "is finished while payloads are lent");
  }
  reconnects_ += process_->door.metrics().reconnects;
  // Called from a turn of the process, so it cannot end here.
  state_ = State::kStarting;
  cluster_.at(cluster_.now(), [this] {
    if (state_ != State::kStarting) return;
    process_.reset();
    if (++generation_ < ledger_.plan().generations.size() && !failed_) return start();
    state_ = State::kDone;
  });
}

// ---- steps

// Memory that an earlier round of this tensor has done with, or new memory.
GuardedMemory* Trainer::memory_for(std::uint32_t tensor, bool output, std::size_t bytes) {
  if (plan().reuse_memory) {
    const auto idle = memory_.idle.find({tensor, output});
    if (idle != memory_.idle.end()) {
      GuardedMemory* memory = idle->second;
      memory_.idle.erase(idle);
      if (!memory->is_whole()) {
        fail(Invariant::kMemoryIsFree, "memory of " + plan().tensors[tensor].facts.name +
                                           " was written to after its handle had ended");
      }
      memory->use();
      return memory;
    }
  }
  return memory_.all.emplace_back(std::make_unique<GuardedMemory>(bytes)).get();
}

void Trainer::submit(const StepPlan& step) {
  const TensorPlan& tensor = plan().tensors[step.tensor];
  const TensorFacts& facts = tensor.facts_of(rank_);
  Pending operation;
  operation.tensor = step.tensor;
  operation.round = step.round;
  if (facts.gets(rank_)) operation.output = memory_for(step.tensor, true, facts.bytes());
  if (facts.gives(rank_)) {
    operation.input = step.in_place && facts.gets(rank_)
                          ? operation.output
                          : memory_for(step.tensor, false, facts.bytes());
    if (!step.on_device) {
      const std::vector<std::byte> values =
          contribution(facts, step.round, rank_, ledger_.worker_count());
      std::copy(values.begin(), values.end(), operation.input->span().begin());
    }
  }
  Submission submission;
  submission.name = facts.name;
  submission.input = operation.input == nullptr ? nullptr : operation.input->span().data();
  submission.output = operation.output == nullptr ? nullptr : operation.output->span().data();
  submission.element_count = facts.element_count;
  submission.dtype = static_cast<std::uint32_t>(facts.dtype);
  submission.operation = static_cast<std::uint32_t>(facts.operation);
  submission.root = facts.root;
  submission.root_only = facts.root_only;
  submission.scale = facts.scale;
  submission.members = facts.members.empty() ? nullptr : facts.members.data();
  submission.member_count = static_cast<std::uint32_t>(facts.members.size());
  submission.priority = tensor.priority;
  submission.once = tensor.once;
  submission.format = static_cast<std::uint32_t>(facts.format);
  submission.codec = facts.codec;
  if (tensor.feeds_back || facts.codec.error_feedback) {
    submission.residual = fed_back_.residual_of(step.tensor, facts);
  }
  if (facts.codec.momentum) submission.momentum = fed_back_.momentum_of(step.tensor, facts);
  if (has_codec(facts.format)) submission.residual_ratio = ratio_of(facts, step.round);
  operation.step = &step;
  if (step.on_device) launch(step, operation, submission);
  const Result<HandleId> handle = process_->door.submit(submission);
  if (!handle.is_ok()) {
    if (ledger_.may_fail(rank_)) return ledger_.check_cause(process_->seat.name(), handle.status());
    return fail(Invariant::kOneEnd,
                "could not submit " + facts.name + ": " + handle.status().text());
  }
  operation.handle = handle.value();
  operation.begun_ns = cluster_.now();
  const Pipeline* const pipeline = process_->worker.pipeline();
  if (pipeline != nullptr) operation.inputs = pipeline->inputs().generation();
  operations_.push_back(operation);
  trace_.note(cluster_.now(), Trace::What::kSubmit, rank_, step.tensor, step.round);
  if (trace_.keeps_text()) {
    trace_.say(cluster_.now(), process_->seat.name() + " submits " + describe(operation));
  }
}

// The tensor is on a device: the kernel before it in its stream makes the input. Until that has happened nothing may be
// written to the output either: another kernel may read there.
void Trainer::launch(const StepPlan& step, Pending& operation, Submission& submission) {
  const TensorFacts& facts = plan().tensors[step.tensor].facts_of(rank_);
  for (GuardedMemory* const memory : {operation.input, operation.output}) {
    if (memory != nullptr) memory->scribble(++scribbles_);
  }
  operation.is_alone = facts.members.size() == 1;
  operation.kernel = process_->device->gpu.launch(
      step.stream, step.kernel_ns,
      [this, facts, round = step.round, input = operation.input, output = operation.output] {
        for (GuardedMemory* const memory : {input, output}) {
          if (memory == nullptr) continue;
          if (!memory->is_whole()) {
            fail(Invariant::kMemoryIsFree,
                 facts.name + " was written to before its stream had come so far");
          }
          memory->use();
        }
        if (input == nullptr) return;
        const std::vector<std::byte> values =
            contribution(facts, round, rank_, ledger_.worker_count());
        std::copy(values.begin(), values.end(), input->span().begin());
      });
  submission.device = {
      .ordinal = 0,
      .stream = reinterpret_cast<device::abi::Stream>(static_cast<std::uintptr_t>(step.stream))};
  if (operation.input != nullptr) {
    submission.input = SimDevice::far(operation.input->span().data());
  }
  if (operation.output != nullptr) {
    submission.output = SimDevice::far(operation.output->span().data());
  }
}

void Trainer::begin_barrier() {
  const Result<HandleId> handle = process_->door.begin_barrier();
  if (!handle.is_ok()) {
    if (ledger_.may_fail(rank_)) return ledger_.check_cause(process_->seat.name(), handle.status());
    return fail(Invariant::kOneEnd, "could not begin a barrier: " + handle.status().text());
  }
  Pending operation;
  operation.handle = handle.value();
  operation.begun_ns = cluster_.now();
  operation.is_barrier = true;
  operation.barrier = barriers_++;
  ledger_.begin_barrier(generation_, operation.barrier);
  operations_.push_back(operation);
}

void Trainer::finish_inputs() {
  const Result<HandleId> handle = process_->door.finish_inputs();
  if (!handle.is_ok()) {
    if (ledger_.may_fail(rank_)) return ledger_.check_cause(process_->seat.name(), handle.status());
    return fail(Invariant::kOneEnd, "could not finish its inputs: " + handle.status().text());
  }
  Pending operation;
  operation.handle = handle.value();
  operation.begun_ns = cluster_.now();
  operation.is_finish = true;
  ledger_.finish_inputs(generation_, rank_);
  operations_.push_back(operation);
}

// ---- ends

void Trainer::look_for_ends() {
  if (process_->door.pending_handles() == operations_.size()) return;
  for (std::size_t i = 0; i < operations_.size();) {
    const Result<bool> finished = process_->door.poll(operations_[i].handle);
    if (!finished.is_ok()) return fail(Invariant::kOneEnd, "a handle is unknown before its end");
    if (!finished.value()) {
      ++i;
      continue;
    }
    Pending operation = operations_[i];
    operations_.erase(operations_.begin() + static_cast<std::ptrdiff_t>(i));
    ended(operation, process_->door.wait(operation.handle, 0));
  }
}

void Trainer::ended(Pending& operation, const Status& status) {
  trace_.note(cluster_.now(), Trace::What::kFinish, rank_, operation.tensor,
              operation.round + (static_cast<std::uint64_t>(status.code()) << 32));
  if (trace_.keeps_text()) {
    trace_.say(cluster_.now(),
               process_->seat.name() + " ends " + describe(operation) + ": " + status.text());
  }
  if (process_->door.poll(operation.handle).is_ok()) {
    fail(Invariant::kOneEnd, describe(operation) + " is still known after its end");
  }
  if (operation.is_barrier) {
    if (!status.is_ok() && ledger_.may_fail(rank_)) {
      return ledger_.check_cause(process_->seat.name(), status);
    }
    if (!status.is_ok()) fail(Invariant::kOneEnd, describe(operation) + ": " + status.text());
    if (ledger_.begun_barriers(generation_, operation.barrier) + ledger_.lost_count() <
        ledger_.worker_count()) {
      fail(Invariant::kOneEnd, describe(operation) + " ended before all had begun it");
    }
    return;
  }
  if (operation.is_finish) {
    if (!status.is_ok() && ledger_.may_fail(rank_)) {
      return ledger_.check_cause(process_->seat.name(), status);
    }
    if (!status.is_ok())
      return fail(Invariant::kOneEnd, describe(operation) + ": " + status.text());
    const std::uint32_t last = process_->door.membership().last_with_inputs();
    if (!ledger_.all_finished(generation_, rank_, last)) {
      fail(Invariant::kOneEnd, describe(operation) + " came before all had none, or other ranks " +
                                   "have heard of another last one than " + std::to_string(last));
    }
    for (const TensorPlan& tensor : plan().tensors) {
      if (ledger_.has_lost() || ledger_.lost_count() > 0 || !tensor.facts.has_member(last))
        continue;
      for (std::uint32_t rank = 0; rank < ledger_.worker_count(); ++rank) {
        if (!tensor.facts.has_member(rank) || tensor.rounds_at(rank) <= tensor.rounds_at(last))
          continue;
        fail(Invariant::kOneEnd, describe(operation) + ": worker " + std::to_string(rank) +
                                     " had more than the last one, " + std::to_string(last));
      }
    }
    return;
  }
  const TensorPlan& tensor = plan().tensors[operation.tensor];
  const bool odd = tensor.odd_rank.has_value();
  const bool as_it_must =
      odd ? is_end_of_odd(tensor, status, plan(), ledger_.plan()) : status.is_ok();
  const bool has_lost_root = ends_by_lost_root(tensor.facts, status, ledger_);
  if (!as_it_must && !has_lost_root && (status.is_ok() || !ledger_.may_fail(rank_))) {
    fail(Invariant::kOneEnd, describe(operation) + " ended with " + status.text());
  }
  // A device does what nobody else takes part in until its process leaves the job.
  const bool is_left = operation.is_alone && status.is(Code::kCancelled);
  if (!as_it_must && !has_lost_root && !status.is_ok() && !is_left) {
    ledger_.check_cause(process_->seat.name(), status);
  }
  if (!odd && status.is_ok()) check_result(operation);
  free_all(operation);
}

void Trainer::free_all(const Pending& operation) {
  if (operation.kernel != 0) {
    process_->device->gpu.cancel(operation.step->stream, operation.kernel);
  }
  if (operation.output != nullptr) {
    free_memory(*operation.output, describe(operation));
    memory_.idle[{operation.tensor, true}] = operation.output;
  }
  if (operation.input != nullptr && operation.input != operation.output) {
    free_memory(*operation.input, describe(operation));
    memory_.idle[{operation.tensor, false}] = operation.input;
  }
}

void Trainer::check_result(Pending& operation) {
  const TensorFacts& facts = plan().tensors[operation.tensor].facts;
  std::optional<std::span<const std::byte>> result;
  if (operation.output != nullptr) result = operation.output->span();
  ledger_.check_result(rank_, process_->seat.name() + ": " + describe(operation),
                       {generation_, operation.tensor, operation.round}, result);
  const std::vector<std::byte> given =
      contribution(facts, operation.round, rank_, ledger_.worker_count());
  // Where this process codes itself what it gives; rounds behind this one may have changed the residual already.
  const Pipeline* const pipeline = process_->worker.pipeline();
  const bool codes = !process_->relay && pipeline != nullptr && facts.members.size() != 1;
  const bool goes_on = std::any_of(
      operations_.begin(), operations_.end(),
      [&](const Pending& each) { return each.step != nullptr && each.tensor == operation.tensor; });
  const bool carries = plan().tensors[operation.tensor].feeds_back || facts.codec.error_feedback ||
                       facts.codec.momentum;
  if (codes && carries) {
    const std::uint32_t before = operation.inputs == 0 ? 0 : facts.uneven_rounds;
    const CodedWhere where = {
        .placement = pipeline->tensors().placement(),
        .rank = rank_,
        .step = operation.round,
        .round = Round(first_round(operation.inputs).value + operation.round - before)};
    if (!fed_back_.is_right_after(operation.tensor, facts, where, given) && !goes_on) {
      fail(Invariant::kExactResult, describe(operation) + " left another residual than its codes");
    }
  }
  if (operation.input == nullptr || operation.input == operation.output) return;
  const std::span<const std::byte> input = operation.input->span();
  if (!std::equal(input.begin(), input.end(), given.begin(), given.end())) {
    fail(Invariant::kExactResult, describe(operation) + " changed its input");
  }
}

void Trainer::free_memory(GuardedMemory& memory, const std::string& what) {
  const std::string claim = process_->claim_on(memory.span());
  // A GPU that stands still is left to itself so long after the job has ended, with the memory that it works on.
  const bool is_left = job_end_ns_ != kNever && process_->device &&
                       cluster_.now() >= job_end_ns_ + ledger_.plan().config.timeout.failure_ns &&
                       !process_->device->gpu.claim_on(memory.span()).empty();
  if (is_left) return memory.use();
  if (!claim.empty()) fail(Invariant::kMemoryIsFree, what + " has ended, but " + claim);
  if (!memory.is_whole()) fail(Invariant::kMemoryIsFree, what + ": bytes beside it were written");
  memory.scribble(++scribbles_);
}

void Trainer::look() {
  if (state_ == State::kLeaving && process_->is_finished()) end_life();
}

void Trainer::check_time() {
  for (const Pending& operation : operations_) {
    if (operation.is_alone) continue;  // it waits for nobody
    const TimeNs begun_ns = std::max(operation.begun_ns, paused_until_ns_);
    if (cluster_.now() < ledger_.handle_end_ns(begun_ns)) continue;
    fail(Invariant::kTimelyEnd,
         describe(operation) + " has not ended, " + ledger_.loss()->what + " " +
             std::to_string((cluster_.now() - ledger_.loss()->at) / kMillisecond) + " ms ago");
  }
}

void Trainer::check_memory() {
  for (const auto& memory : memory_.all) {
    if (!memory->is_whole()) {
      ledger_.fail(
          Invariant::kMemoryIsFree,
          "worker " + std::to_string(rank_) + ": memory was written to after its handle had ended");
    }
  }
}

// ---- words

void Trainer::fail(Invariant invariant, const std::string& text) {
  ledger_.fail(invariant, (process_ ? process_->seat.name() : "worker " + std::to_string(rank_)) +
                              ": " + text);
}

std::string Trainer::describe(const Pending& operation) const {
  if (operation.is_barrier) return "barrier " + std::to_string(operation.barrier);
  if (operation.is_finish) return "the end of all inputs";
  const TensorFacts& facts = plan().tensors[operation.tensor].facts_of(rank_);
  return facts.name + " round " + std::to_string(operation.round) + " (" +
         byteps::name(facts.dtype) + " x " + std::to_string(facts.element_count) + ", " +
         byteps::name(facts.operation) + (facts.root_only ? " for the root alone" : "") +
         (facts.format == Format::kPlain
              ? ""
              : std::string(" as ") + byteps::name(facts.format) + facts.codec.text()) +
         (facts.members.empty() ? "" : " of " + std::to_string(facts.members.size()) + " members") +
         (operation.input == operation.output ? ", in place)" : ")");
}

std::string Trainer::text() const {
  static constexpr const char* kStates[] = {"starting", "joining", "working",
                                            "ready",    "leaving", "done"};
  std::string text = "worker " + std::to_string(rank_) + " is " +
                     kStates[static_cast<std::size_t>(state_)] + " in generation " +
                     std::to_string(generation_);
  if (state_ == State::kDone || process_ == nullptr) return text;
  text += ", step " + std::to_string(step_) + " of " + std::to_string(own_plan().steps.size());
  for (const Pending& operation : operations_) text += "; waits for " + describe(operation);
  return text;
}

}  // namespace byteps::sim
