#include "worker/pipeline.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/phrases.h"
#include "base/planted.h"
#include "worker/stages.h"

namespace byteps {

namespace {

constexpr std::size_t kWantedEarlyMax = 65536;  // beyond it all are dropped: shards repeat Wanted
constexpr std::size_t kNamesInNotice = 5;
// Where the worker finds its credit by itself, a connection has so many frames: while one is summed the next is on its
// way. That is what it begins with, and the least.
constexpr std::uint64_t kCreditLeastFrames = 2;
// In all, counted in lightest connections: unless there are more connections, beyond this the light ones have less.
constexpr std::uint64_t kLightestMost = 32;
// Of a worker that has few connections.
constexpr std::uint64_t kCreditMost = 4 << 20;

Credit credit_of(const PipelineConfig& config) {
  if (config.credit_bytes > 0) return {config.credit_bytes, config.credit_bytes};
  const std::uint64_t shard_count = config.placement.shard_count();
  const std::uint64_t frame = config.placement.frame_bytes() + wire::kHeaderBytes;
  const std::uint64_t lightest = std::min<std::uint64_t>(config.placement.lightest_count(),
                                                         std::max(shard_count, kLightestMost));
  const std::uint64_t least = lightest * kCreditLeastFrames * frame;
  return {least, std::max(2 * least, kCreditMost)};
}

// All of it, into the caches.
template <typename Record>
void fetch(const Record& record) {
  const auto* const first = reinterpret_cast<const std::byte*>(&record);
  for (std::size_t at = 0; at < sizeof record; at += 64) __builtin_prefetch(first + at);
}

// On this connection. Also false for some that have, after a connection was lost.
bool has_unanswered(const PartState& part) {
  return part.next_frame > part.answered_frames;
}

std::uint64_t item_of(TensorIndex tensor, std::uint32_t part) {
  return std::uint64_t{tensor} << 32 | part;
}

}  // namespace

Pipeline::Pipeline(const PipelineConfig& config)
    : config_(config), tensors_(config.placement), credit_(credit_of(config)) {
  for (std::uint32_t shard = 0; shard < config.placement.shard_count(); ++shard) {
    shards_.emplace_back(Gate(config.priority_scheduling, 0));
  }
  share_credit();
  if (!config.autotune) return;
  if (config.credit_bytes == 0) {
    tuner_.emplace();
    credit_.set_horizon(tuner_->horizon_ns());
    tell(PipelineOutput::Kind::kTuned,
         "autotune: looks for the best credit while training; what it finds is said here, first "
         "after a few GB of gradients");
  } else {
    tell(PipelineOutput::Kind::kTuned,
         "autotune: does nothing, since BYTEPS_CREDIT_BYTES or BYTEPS_SCHEDULING_CREDIT fixes the "
         "credit at " +
             std::to_string(config.credit_bytes) + " bytes; unset them to have it found");
  }
}

// A connection may have as much under way as it has of the tensors: the flows share the worker's card as their bytes
// under way do. With equal flows, a light shard would be done early and a heavy one late.
void Pipeline::share_credit() {
  const std::uint64_t frame = config_.placement.frame_bytes() + wire::kHeaderBytes;
  const std::uint64_t least = config_.credit_bytes > 0 ? config_.credit_frames_min * frame : 0;
  const std::vector<std::uint32_t>& weights = config_.placement.weights();
  const std::uint64_t sum = std::accumulate(weights.begin(), weights.end(), std::uint64_t{0});
  const std::uint64_t bytes = credit_.bytes();
  for (std::size_t shard = 0; shard < shards_.size(); ++shard) {
    const std::uint64_t weight = weights[shard];
    const std::uint64_t share = bytes / sum * weight + bytes % sum * weight / sum;
    const std::uint64_t capacity = config_.credit_bytes > 0 ? 0 : shards_[shard].capacity_bytes;
    shards_[shard].gate.set_credit(capacity > 0 ? std::clamp(capacity, frame, kCreditMost)
                                                : std::max(least, share));
  }
}

void Pipeline::set_capacity(ShardIndex shard, std::uint64_t bytes) {
  if (std::exchange(shards_[shard.value].capacity_bytes, bytes) != bytes) share_credit();
}

// A frame of so much was answered on this connection.
void Pipeline::free_credit(ShardState& shard, std::uint64_t cost_bytes) {
  shard.gate.on_answered(cost_bytes);
  const std::uint64_t before = credit_.bytes();
  credit_.on_answered(cost_bytes, now_);
  if (tuner_ && tuner_->on_answered(cost_bytes, credit_.bytes(), now_)) {
    credit_.set_horizon(tuner_->horizon_ns());
    if (std::string news = tuner_->take_news(); !news.empty()) {
      tell(PipelineOutput::Kind::kTuned, std::move(news));
    }
  }
  if (credit_.bytes() != before) share_credit();
}

// ---- operations: submitted, started, ended

void Pipeline::submit(PipelineCall&& call, TimeNs now) {
  if (!job_failed_.is_ok()) return complete(call.handle, call.spec, job_failed_);
  if (finish_handle_) {
    return complete(call.handle, call.spec,
                    Status(Code::kInvalidArgument,
                           "tensor '" + call.name +
                               "' was submitted after this rank had said "
                               "that it has no more inputs, and before all others have"));
  }
  const Result<TensorIndex> found = tensors_.find_or_add(call.name, call.spec);
  if (!found.is_ok()) return complete(call.handle, call.spec, found.status());
  const TensorIndex index = found.value();
  Tensor& tensor = tensors_[index];
  if (!tensor.failed.is_ok()) return complete(call.handle, call.spec, tensor.failed);
  CHECK_EQ(call.output.size(), call.spec.gets(config_.self) ? call.spec.total_bytes : 0);

  const OpIndex op = new_op(call, index, now);
  tensor.once = call.once;
  if (tensor.active == kNoOp) {
    tensor.active = op;
    start(index);
  } else {
    (tensor.line_last == kNoOp ? tensor.line_first : ops_[tensor.line_last].line_next) = op;
    tensor.line_last = op;
  }
}

OpIndex Pipeline::new_op(const PipelineCall& call, TensorIndex tensor, TimeNs now) {
  OpIndex index = 0;
  if (free_ops_.empty()) {
    index = static_cast<OpIndex>(ops_.size());
    ops_.emplace_back();
  } else {
    index = free_ops_.back();
    free_ops_.pop_back();
  }
  Op& op = ops_[index];
  op.state = OpState::kWaiting;
  op.priority = call.priority;
  op.once = call.once;
  op.handle = call.handle;
  op.tensor = tensor;
  op.input = call.input;
  op.output = call.output;
  op.submission = ++last_submission_;
  op.submitted_ns = now;
  op.older = newest_;
  (newest_ == kNoOp ? oldest_ : ops_[newest_].newer) = index;
  newest_ = index;
  ++pending_operations_;

  if (next_notice_ns_ == kNever) next_notice_ns_ = now + config_.first_notice_ns;
  if (!departed_.empty()) {
    next_departed_ns_ = std::min(next_departed_ns_, now + config_.departed_ns / 8);
  }
  set_deadline();
  return index;
}

// Takes the operation out of the list of pending ones, ends its handle, and frees its place.
void Pipeline::end_op(OpIndex index, const Status& status) {
  Op& op = ops_[index];
  (op.older == kNoOp ? oldest_ : ops_[op.older].newer) = op.newer;
  (op.newer == kNoOp ? newest_ : ops_[op.newer].older) = op.older;
  complete(op.handle, tensors_[op.tensor].spec, status);
  op = Op{};
  free_ops_.push_back(index);
  if (--pending_operations_ > 0) return;
  credit_.on_idle();
  if (tuner_) tuner_->on_idle();
}

void Pipeline::complete(HandleId handle, const Spec& spec, const Status& status) {
  if (status.is_ok()) {
    ++counters_.finished_operations;
    counters_.finished_bytes += spec.total_bytes;
  } else {
    ++counters_.failed_operations;
  }
  PipelineOutput& output = outputs_.emplace_back();
  output.kind = PipelineOutput::Kind::kComplete;
  output.handle = handle;
  output.status = status;
}

// The tensor's active operation begins its round.
void Pipeline::start(TensorIndex index) {
  Tensor& tensor = tensors_[index];
  Op& op = ops_[tensor.active];
  op.state = OpState::kActive;
  op.tag = ++tag_count_ << kTagOpBits | tensor.active;
  tensor.finished_parts = 0;
  std::fill(tensor.answered.begin(), tensor.answered.end(), 0);
  apply_wanted_early(tensor);
  if (needs_landing(tensor)) {
    const std::size_t shard_count = std::min(tensor.parts.size(), shards_.size());
    for (std::size_t part = 0; part < shard_count; ++part) {
      const ShardIndex shard = tensor.parts[part].shard;
      if (shards_[shard.value].up) land_on(shard, tensor);
    }
  }
  for (std::uint32_t part = 0; part < tensor.parts.size(); ++part) {
    PartState& state = tensor.parts[part];
    state.next_frame = 0;
    state.sent_frames = 0;
    state.answered_frames = 0;
    open_gate(index, part);
  }
  if (timeline_) timeline_->on_started(index, tensor, op.submitted_ns);
}

// What shards wanted before the tensor was submitted here for the first time.
void Pipeline::apply_wanted_early(Tensor& tensor) {
  auto found = wanted_early_.lower_bound({tensor.key, PartIndex(0)});
  while (found != wanted_early_.end() && found->first.first == tensor.key) {
    const std::uint32_t part = found->first.second.value;
    if (part < tensor.parts.size()) tensor.parts[part].wanted_rounds = found->second.value + 1;
    found = wanted_early_.erase(found);
  }
}

void Pipeline::open_gate(TensorIndex index, std::uint32_t part) {
  Tensor& tensor = tensors_[index];
  PartState& state = tensor.parts[part];
  if (state.ticket != Gate::kNoTicket) return;
  const Op& op = ops_[tensor.active];
  const Gate::Order order{.priority = op.priority,
                          .round = tensor.round,
                          .key = tensor.key,
                          .part = PartIndex(part),
                          .submission = op.submission};
  const bool wanted = state.wanted_rounds > tensor.round.value;
  state.ticket = shards_[state.shard.value].gate.add(order, wanted, item_of(index, part));
}

// Steps over frames that are answered already; a part without anything left to send leaves the gate.
void Pipeline::advance(Tensor& tensor, std::uint32_t part) {
  PartState& state = tensor.parts[part];
  const std::uint32_t count = state.frame_count;
  while (state.next_frame < count && tensor.is_answered(part, state.next_frame)) ++state.next_frame;
  if (state.next_frame < count || state.ticket == Gate::kNoTicket) return;
  shards_[state.shard.value].gate.remove(state.ticket);
  state.ticket = Gate::kNoTicket;
}

// A wanted part goes first and without credit, a frame at a time: the first frame that the shard misses is either on
// its way or the next to go. All of them at once would fill the queues on the way, and so make more parts late.
void Pipeline::favour_wanted(const Tensor& tensor, const PartState& part) {
  if (part.ticket == Gate::kNoTicket || part.wanted_rounds <= tensor.round.value) return;
  shards_[part.shard.value].gate.set_wanted(part.ticket, !has_unanswered(part));
}

// Nothing more of the active operation is sent, and what is unanswered no longer counts.
void Pipeline::leave_gates(Tensor& tensor) {
  for (std::uint32_t part = 0; part < tensor.parts.size(); ++part) {
    PartState& state = tensor.parts[part];
    ShardState& shard = shards_[state.shard.value];
    for (std::uint32_t frame = 0; frame < state.next_frame; ++frame) {
      if (tensor.is_answered(part, frame)) continue;
      free_credit(shard, cost(tensors_.frame_bytes(state, frame)));
    }
    state.next_frame = 0;
    if (state.ticket != Gate::kNoTicket) shard.gate.remove(state.ticket);
    state.ticket = Gate::kNoTicket;
  }
}

// The tensor cannot go on: its operations end with this status as soon as nothing of them is lent, later ones at once.
// (A round that was begun and not finished leaves the ranks' rounds apart, so the name is of no use any more.)
void Pipeline::end_early(TensorIndex index, const Status& status) {
  Tensor& tensor = tensors_[index];
  if (!tensor.failed.is_ok()) return;
  tensor.failed = status;
  if (tensor.active != kNoOp) {
    leave_gates(tensor);
    withdraw(tensor);
    ops_[tensor.active].state = OpState::kEnding;
  }
  while (tensor.line_first != kNoOp) {
    const OpIndex waiting = tensor.line_first;
    tensor.line_first = ops_[waiting].line_next;
    end_op(waiting, status);
  }
  tensor.line_last = kNoOp;
  settle(index);
}

// Ends the active operation if it is at its end.
void Pipeline::settle(TensorIndex index) {
  Tensor& tensor = tensors_[index];
  if (tensor.active == kNoOp || (tensor.lent_count > 0 && !PLANTED(ended_while_lent))) return;
  if (ops_[tensor.active].state == OpState::kEnding) {
    end_op(std::exchange(tensor.active, kNoOp), tensor.failed);
  } else if (tensor.finished_parts == tensor.parts.size()) {
    finish_well(index);
  }
}

void Pipeline::finish_well(TensorIndex index) {
  Tensor& tensor = tensors_[index];
  const Op& op = ops_[tensor.active];
  withdraw(tensor);
  if (is_root(tensor) && !op.output.empty() && op.input.data() != op.output.data()) {
    std::memcpy(op.output.data(), op.input.data(), op.output.size());
  }
  if (timeline_) timeline_->on_done(index, tensor, op.submitted_ns);
  const bool once = op.once;
  end_op(std::exchange(tensor.active, kNoOp), Status::ok());
  ++tensor.round.value;
  if (once) {
    forget(tensor);
    tensors_.give_up(index);
  } else if (tensor.line_first != kNoOp) {
    tensor.active = tensor.line_first;
    tensor.line_first = ops_[tensor.active].line_next;
    if (tensor.line_first == kNoOp) tensor.line_last = kNoOp;
    ops_[tensor.active].line_next = kNoOp;
    start(index);
  }
}

void Pipeline::forget(const Tensor& tensor) {
  const std::size_t shard_count = std::min(tensor.parts.size(), shards_.size());
  for (std::size_t part = 0; part < shard_count; ++part) {
    shards_[tensor.parts[part].shard.value].forgets.push_back(tensor.key);
  }
}

// Connections keep the order: who answers a frame has heard what was said before that frame was sent first.
void Pipeline::drop_heard_forgets(ShardState& shard, const PartState& answered) {
  for (; shard.forgets_heard < answered.forgets_before; ++shard.forgets_heard) {
    shard.forgets.pop_front();
    --shard.forgets_sent;
  }
}

// ---- landings

bool Pipeline::is_root(const Tensor& tensor) const {
  return tensor.spec.operation == Operation::kBroadcast && tensor.spec.root == config_.self;
}

bool Pipeline::needs_landing(const Tensor& tensor) const {
  return tensor.spec.total_bytes > 0 && tensor.spec.is_sent_to(config_.self);
}

bool Pipeline::uses(const Tensor& tensor, ShardIndex shard) const {
  return first_part_on(tensor, shard) < tensor.parts.size();
}

// Parts go round the shards: those of this shard are the returned one and every shard_count-th after it.
std::size_t Pipeline::first_part_on(const Tensor& tensor, ShardIndex shard) const {
  return (shard.value + shards_.size() - tensor.parts[0].shard.value) % shards_.size();
}

void Pipeline::land_on(ShardIndex shard, const Tensor& tensor) {
  PipelineOutput& output = outputs_.emplace_back();
  output.kind = PipelineOutput::Kind::kLand;
  output.shard = shard;
  output.tag = ops_[tensor.active].tag;
  output.landing = ops_[tensor.active].output;
}

// From the connections that are up; at the others it has ended with them.
void Pipeline::withdraw(const Tensor& tensor) {
  if (!needs_landing(tensor)) return;
  const std::size_t shard_count = std::min(tensor.parts.size(), shards_.size());
  for (std::size_t part = PLANTED(landing_kept) ? 1 : 0; part < shard_count; ++part) {
    const ShardIndex shard = tensor.parts[part].shard;
    if (!shards_[shard.value].up) continue;
    PipelineOutput& output = outputs_.emplace_back();
    output.kind = PipelineOutput::Kind::kWithdraw;
    output.shard = shard;
    output.tag = ops_[tensor.active].tag;
  }
}

// ---- connections

void Pipeline::on_shard_up(ShardIndex index) {
  ShardState& shard = shards_[index.value];
  CHECK(!shard.up) << index << " is up already";
  shard.up = true;
  if (!PLANTED(undeclared_repeat)) ++shard.connection;
  if (!PLANTED(forget_said_once)) shard.forgets_sent = 0;
  shard.inputs_told = 0;
  for (OpIndex op = oldest_; op != kNoOp; op = ops_[op].newer) {
    if (ops_[op].state != OpState::kActive) continue;
    const Tensor& tensor = tensors_[ops_[op].tensor];
    if (needs_landing(tensor) && uses(tensor, index)) land_on(index, tensor);
  }
}

void Pipeline::on_shard_down(ShardIndex index) {
  ShardState& shard = shards_[index.value];
  CHECK(shard.up) << index << " is down already";
  shard.up = false;
  if (tuner_) tuner_->on_shard_down();
  if (!PLANTED(credit_leaked)) shard.gate.forget_sent();
  credit_.on_idle();
  for (OpIndex op = oldest_; op != kNoOp; op = ops_[op].newer) {
    if (ops_[op].state != OpState::kActive) continue;
    Tensor& tensor = tensors_[ops_[op].tensor];
    for (std::size_t part = first_part_on(tensor, index); part < tensor.parts.size();
         part += shards_.size()) {
      const std::uint32_t part_index = static_cast<std::uint32_t>(part);
      PartState& state = tensor.parts[part];
      state.forgets_before = 0;  // what was sent on another connection says nothing of this one
      if (state.answered_frames == state.frame_count) continue;
      // What was sent and not answered goes first and without credit: if only its answer was lost, no shard
      // will ever want it, while all others may wait for what this worker does after it.
      if (state.sent_frames > state.answered_frames) {
        state.wanted_rounds = std::max(state.wanted_rounds, tensor.round.value + 1);
        if (state.ticket != Gate::kNoTicket) shards_[index.value].gate.want(state.ticket);
      }
      if (!PLANTED(nothing_repeated)) state.next_frame = 0;
      open_gate(ops_[op].tensor, part_index);
      advance(tensor, part_index);
    }
  }
}

// ---- messages from shards

// By the landing, if it is that of an operation which is under way; a repeated answer names none.
TensorIndex Pipeline::tensor_of(const wire::Header& answer) const {
  const std::uint64_t op = answer.landing & ((std::uint64_t{1} << kTagOpBits) - 1);
  if (answer.landing != kNoLanding && op < ops_.size() && ops_[op].tag == answer.landing) {
    const TensorIndex index = ops_[op].tensor;
    if (tensors_[index].key == answer.key) return index;
  }
  return tensors_.find(answer.key);
}

void Pipeline::expect(const wire::Glimpse& answer, int distance) const {
  const std::uint64_t place = answer.landing & ((std::uint64_t{1} << kTagOpBits) - 1);
  if (answer.landing == kNoLanding || place >= ops_.size()) return;
  const Op& op = ops_[place];
  if (distance == kFarthest) return fetch(op);
  if (op.tag != answer.landing) return;
  const Tensor& tensor = tensors_[op.tensor];
  if (distance == kFarthest - 1) return fetch(tensor);
  __builtin_prefetch(tensor.parts.data());
  __builtin_prefetch(tensor.answered.data());
}

Status Pipeline::on_answer(ShardIndex shard, const wire::Header& header,
                           std::span<const std::byte> payload, bool landed) {
  if (header.epoch != config_.epoch) return Status::ok();
  const TensorIndex index = tensor_of(header);
  if (index == kNoTensor) return Status::ok();
  Tensor& tensor = tensors_[index];
  if (tensor.active == kNoOp || ops_[tensor.active].state != OpState::kActive) return Status::ok();
  const std::int32_t ahead = later_by(header.round, tensor.round);
  if (ahead < 0 && !PLANTED(round_unchecked)) return Status::ok();

  const auto broken = [&](const char* what) {
    return Status(Code::kDisconnected, "an answer for tensor '" + tensor.name + "' " + what);
  };
  if (ahead > 0) return broken("is of a round that was not pushed");
  const std::uint32_t part = header.part.value;
  if (part >= tensor.parts.size()) return broken("names a part that it has not");
  PartState& state = tensor.parts[part];
  if (state.shard != shard) return broken("comes from a shard that does not own the part");
  const std::uint64_t unit_bytes = state.frame_bytes;
  const std::uint64_t frame_index = header.offset_bytes / unit_bytes;
  if (header.offset_bytes % unit_bytes != 0 || frame_index >= state.sent_frames) {
    return broken("names a frame that was not pushed");
  }
  const std::uint32_t frame = static_cast<std::uint32_t>(frame_index);
  const std::uint64_t bytes = tensors_.frame_bytes(state, frame);
  const std::uint64_t payload_bytes = tensor.spec.is_sent_to(config_.self) ? bytes : 0;
  if (payload.size() != payload_bytes) return broken("has a wrong size");
  std::byte* const place =
      payload_bytes == 0 ? nullptr
                         : ops_[tensor.active].output.data() + state.offset + header.offset_bytes;
  if (landed && !payload.empty() && payload.data() != place) {
    // It was written over other bytes of the tensor, which may have been right.
    end_early(index, broken("was placed over another part of it by the shard"));
    return broken("was placed over another part of it");
  }
  if (tensor.is_answered(part, frame) && !PLANTED(answer_counted_twice)) return Status::ok();

  if (!landed && !payload.empty()) std::memcpy(place, payload.data(), payload.size());
  counters_.pulled_bytes += payload.size();
  answers_came_ = true;
  tensor.set_answered(part, frame);
  ++state.answered_frames;
  drop_heard_forgets(shards_[shard.value], state);
  if (timeline_) timeline_->on_answered(index, tensor, part);
  if (frame < state.next_frame) {
    free_credit(shards_[shard.value], cost(bytes));
  } else {
    advance(tensor, part);  // sent on an earlier connection only
  }
  favour_wanted(tensor, state);
  if (state.answered_frames == state.frame_count) {
    ++tensor.finished_parts;
    if (timeline_) timeline_->on_part_done(index, tensor, part);
    settle(index);
  }
  return Status::ok();
}

void Pipeline::on_wanted(ShardIndex shard, const wire::Header& header) {
  if (header.epoch != config_.epoch || header.round.value == 0xffffffff) return;
  if (later_by(header.round, first_round(generation_)) < 0) return;  // of inputs that have ended
  const TensorIndex index = tensors_.find(header.key);
  if (index == kNoTensor) {
    if (wanted_early_.size() >= kWantedEarlyMax) wanted_early_.clear();
    wanted_early_[{header.key, header.part}] = header.round;
    return;
  }
  Tensor& tensor = tensors_[index];
  if (header.part.value >= tensor.parts.size()) return;
  PartState& state = tensor.parts[header.part.value];
  if (state.shard != shard) return;
  state.wanted_rounds = std::max(state.wanted_rounds, header.round.value + 1);
  favour_wanted(tensor, state);
}

void Pipeline::on_missing(ShardIndex shard, const wire::Header& header, const Members& whom) {
  const TensorIndex index = tensors_.find(header.key);
  if (index == kNoTensor || header.epoch != config_.epoch) return;
  Tensor& tensor = tensors_[index];
  if (tensor.active == kNoOp || header.round != tensor.round) return;
  if (header.part.value >= tensor.parts.size() || tensor.parts[header.part.value].shard != shard) {
    return;
  }
  std::vector<Lack>& lacks = ops_[tensor.active].lacks;
  std::erase_if(lacks,
                [&](const Lack& lack) { return tensor.parts[lack.part.value].shard == shard; });
  lacks.push_back({header.part, whom});
}

std::vector<HandleId> Pipeline::pending_handles() const {
  std::vector<HandleId> handles;
  for (OpIndex index = oldest_; index != kNoOp; index = ops_[index].newer) {
    handles.push_back(ops_[index].handle);
  }
  if (finish_handle_) handles.push_back(*finish_handle_);
  std::sort(handles.begin(), handles.end());
  return handles;
}

bool Pipeline::add_awaited(std::span<const HandleId> handles, std::vector<wire::Awaited>& awaited) {
  const auto has = [handles](HandleId handle) {
    return std::binary_search(handles.begin(), handles.end(), handle);
  };
  const bool all = finish_handle_ && has(*finish_handle_);
  if (all && pending_operations_ == 0) {
    awaited.push_back({.name = {}, .key = wire::kInputsKey, .round = generation_});
  }
  for (OpIndex index = oldest_; index != kNoOp; index = ops_[index].newer) {
    if (!all && !has(ops_[index].handle)) continue;
    Tensor& tensor = tensors_[ops_[index].tensor];
    if (tensor.active == kNoOp || ops_[tensor.active].state != OpState::kActive) return false;
    favour_first_part(tensor);
    awaited.push_back({tensor.name, tensor.key, tensor.round.value});
  }
  return true;
}

// It goes in spite of credit, so that its shard asks the others for it and says whom it misses.
void Pipeline::favour_first_part(Tensor& tensor) {
  PartState& first = tensor.parts[0];
  first.wanted_rounds = std::max(first.wanted_rounds, tensor.round.value + 1);
  if (first.ticket != Gate::kNoTicket) shards_[first.shard.value].gate.want(first.ticket);
}

std::vector<wire::NotBegun> Pipeline::not_begun(std::size_t count_max) const {
  std::vector<wire::NotBegun> rounds;
  for (TensorIndex index = 0; index < tensors_.slot_count(); ++index) {
    const Tensor& tensor = tensors_[index];
    if (tensor.active != kNoOp) continue;
    std::uint32_t wanted_rounds = 0;
    for (const PartState& part : tensor.parts) {
      wanted_rounds = std::max(wanted_rounds, part.wanted_rounds);
    }
    if (wanted_rounds <= tensor.round.value) continue;
    rounds.push_back({tensor.key, wanted_rounds - 1});
    if (rounds.size() == count_max) return rounds;
  }
  for (const auto& [place, round] : wanted_early_) {
    const wire::NotBegun wanted{place.first, round.value};
    if (!rounds.empty() && rounds.back() == wanted) continue;  // another part of it
    rounds.push_back(wanted);
    if (rounds.size() == count_max) break;
  }
  return rounds;
}

void Pipeline::on_mismatch(Key key, const Status& why) {
  const TensorIndex index = tensors_.find(key);
  if (index != kNoTensor) end_early(index, why);
}

void Pipeline::on_sent(SendToken token) {
  if (token == 0) return;
  const TensorIndex index = static_cast<TensorIndex>(token - 1);
  Tensor& tensor = tensors_[index];
  CHECK_GT(tensor.lent_count, 0u) << "tensor '" << tensor.name << "'";
  if (--tensor.lent_count == 0) settle(index);
}

// ---- messages to shards

bool Pipeline::front(ShardIndex index, Outgoing& message) {
  ShardState& shard = shards_[index.value];
  if (!shard.up) return false;
  staged_shard_ = index;
  message = Outgoing{};
  message.header = staged_header_;
  wire::Header header;
  header.epoch = config_.epoch;
  header.worker = config_.self;
  if (shard.forgets_sent < shard.forgets.size()) {
    header.kind = wire::Kind::kForget;
    header.key = shard.forgets[shard.forgets_sent];
    staged_ = Staged::kForget;
    staged_header_ = wire::encode(header);
    return true;
  }
  if (const std::uint64_t word = inputs_word(index); word != shard.inputs_told) {
    header.kind = wire::Kind::kInputs;
    header.round = Round(generation_);
    header.flags = word % 2 == 1 ? wire::kNoMore : 0;
    staged_ = Staged::kInputs;
    staged_header_ = wire::encode(header);
    return true;
  }
  if (shard.gate.empty()) return false;
  const std::uint64_t item = shard.gate.front_item();
  staged_tensor_ = static_cast<TensorIndex>(item >> 32);
  staged_part_ = static_cast<std::uint32_t>(item);
  const Tensor& tensor = tensors_[staged_tensor_];
  const PartState& part = tensor.parts[staged_part_];
  const std::uint32_t frame = part.next_frame;
  const std::uint64_t bytes = tensors_.frame_bytes(part, frame);
  if (!shard.gate.may_pass(cost(bytes))) {
    credit_.on_blocked();
    if (tuner_ && shard.capacity_bytes == 0) tuner_->on_blocked();
    return false;
  }

  header.key = tensor.key;
  message.token = SendToken{staged_tensor_} + 1;
  if (tensor.declared_on[staged_part_ % tensor.declared_on.size()] != shard.connection) {
    header.kind = wire::Kind::kDeclare;
    message.payload = tensor.declaration;
    staged_ = Staged::kDeclare;
  } else {
    stage_push(tensor, frame, bytes, header, message);
  }
  staged_header_ = wire::encode(header);
  return true;
}

void Pipeline::stage_push(const Tensor& tensor, std::uint32_t frame, std::uint64_t bytes,
                          wire::Header& header, Outgoing& message) {
  const Op& op = ops_[tensor.active];
  header.kind = wire::Kind::kPush;
  header.part = PartIndex(staged_part_);
  header.round = tensor.round;
  header.offset_bytes = frame * tensor.parts[staged_part_].frame_bytes;
  header.landing = needs_landing(tensor) ? op.tag : kNoLanding;
  if (!tensor.spec.gives(config_.self)) {
    header.flags = wire::kNoPayload;
  } else {
    message.payload =
        op.input.subspan(tensor.parts[staged_part_].offset + header.offset_bytes, bytes);
  }
  staged_ = Staged::kPush;
  staged_bytes_ = bytes;
  staged_payload_bytes_ = message.payload.size();
}

void Pipeline::pop() {
  ShardState& shard = shards_[staged_shard_.value];
  switch (std::exchange(staged_, Staged::kNothing)) {
    case Staged::kNothing:
      CHECK(false) << "pop() without front()";
      break;
    case Staged::kForget:
      ++shard.forgets_sent;
      break;
    case Staged::kInputs:
      shard.inputs_told = inputs_word(staged_shard_);
      break;
    case Staged::kDeclare: {
      Tensor& tensor = tensors_[staged_tensor_];
      tensor.declared_on[staged_part_ % tensor.declared_on.size()] = shard.connection;
      ++tensor.lent_count;
      break;
    }
    case Staged::kPush: {
      Tensor& tensor = tensors_[staged_tensor_];
      PartState& state = tensor.parts[staged_part_];
      shard.gate.on_sent(cost(staged_bytes_));
      counters_.pushed_bytes += staged_payload_bytes_;
      ++tensor.lent_count;
      if (state.sent_frames == 0) state.forgets_before = shard.forgets_heard + shard.forgets_sent;
      ++state.next_frame;
      state.sent_frames = std::max(state.sent_frames, state.next_frame);
      advance(tensor, staged_part_);
      favour_wanted(tensor, state);
      if (timeline_) timeline_->on_sent(staged_tensor_, tensor, staged_part_);
      break;
    }
  }
}

// ---- time, departures, the end

void Pipeline::on_worker_left(WorkerRank rank, TimeNs now) {
  for (const Departed& gone : departed_) {
    if (gone.rank == rank) return;
  }
  departed_.push_back({rank, now});
  if (pending_operations_ > 0 || finish_handle_) next_departed_ns_ = now;
  set_deadline();
}

void Pipeline::fail_all(const Status& status) {
  CHECK(!status.is_ok());
  if (!job_failed_.is_ok()) return;
  job_failed_ = status;
  for (TensorIndex index = 0; index < tensors_.slot_count(); ++index) {
    if (tensors_[index].active != kNoOp) end_early(index, status);
  }
  if (finish_handle_) end_inputs(status);
}

// ---- the end of inputs

void Pipeline::finish_inputs(HandleId handle, TimeNs now) {
  const auto refuse = [&](const Status& why) {
    PipelineOutput& output = outputs_.emplace_back();
    output.handle = handle;
    output.status = why;
  };
  if (!job_failed_.is_ok()) return refuse(job_failed_);
  if (finish_handle_) {
    return refuse({Code::kInvalidArgument,
                   "this rank has said already that it has no more inputs; wait for the others"});
  }
  if (const Status fine = check_rounds(); !fine.is_ok()) return refuse(fine);
  finish_handle_ = handle;
  first_shard_has_heard_ = false;
  if (!departed_.empty()) {
    next_departed_ns_ = std::min(next_departed_ns_, now + config_.departed_ns);
  }
  set_deadline();
}

// The next generation's rounds begin at a number of their own. A tensor that has come so far already would be summed
// with what is over.
Status Pipeline::check_rounds() const {
  const Tensor* const most = tensors_.most_rounds();
  if (most == nullptr) return Status::ok();
  const std::uint32_t rounds = most->round.value - first_round(generation_).value;
  if (rounds <= config_.finishing_rounds_max) return Status::ok();
  return {Code::kUnsupported,
          "tensor '" + most->name + "' has been exchanged " + std::to_string(rounds) +
              " times since the job, or the last end of all inputs, began: with more than " +
              std::to_string(config_.finishing_rounds_max) +
              " inputs cannot end together; leave the job and join it again instead"};
}

void Pipeline::on_inputs_done(ShardIndex shard, const wire::Header& header) {
  // Which worker was last may look different at other shards, and all must agree.
  if (header.epoch != config_.epoch || shard.value != 0 || !finish_handle_) return;
  if (pending_operations_ > 0) return;
  if (header.round.value == generation_) {
    first_shard_has_heard_ = true;
    return;
  }
  if (header.round.value != generation_ + 1) return;
  generation_ = header.round.value;
  last_with_inputs_ = header.worker;
  tensors_.begin_generation(first_round(generation_));
  wanted_early_.clear();
  end_inputs(Status::ok());
}

void Pipeline::end_inputs(const Status& status) {
  PipelineOutput& output = outputs_.emplace_back();
  output.handle = *std::exchange(finish_handle_, std::nullopt);
  output.status = status;
}

void Pipeline::tick(TimeNs now) {
  if (std::exchange(answers_came_, false) && !departed_.empty()) answered_ns_ = now;
  if (now < next_deadline_) return;
  if (now >= next_departed_ns_) fail_for_departed(now);
  if (now >= next_notice_ns_) notice(now);
  set_deadline();
}

void Pipeline::set_deadline() {
  next_deadline_ = std::min(next_notice_ns_, next_departed_ns_);
}

// Whether an answer cannot come because its shard is not connected: then that, not the worker that left, is the cause.
bool Pipeline::misses_shard(const Tensor& tensor) const {
  for (std::uint32_t part = 0; part < tensor.parts.size(); ++part) {
    const PartState& state = tensor.parts[part];
    if (shards_[state.shard.value].up) continue;
    if (state.answered_frames < state.frame_count) return true;
  }
  return false;
}

void Pipeline::fail_for_departed(TimeNs now) {
  std::vector<std::pair<TensorIndex, const Departed*>> due;
  next_departed_ns_ = kNever;
  for (OpIndex index = oldest_; index != kNoOp; index = ops_[index].newer) {
    const Op& op = ops_[index];
    Tensor& tensor = tensors_[op.tensor];
    if (op.state != OpState::kActive || !has_departed_member(tensor)) continue;
    favour_first_part(tensor);
    const Departed* const gone = missed_by(op);
    if (gone == nullptr || misses_shard(tensor)) {
      next_departed_ns_ = std::min(next_departed_ns_, now + config_.departed_ns / 8);
    } else if (departed_deadline(now, op, *gone)) {
      due.emplace_back(op.tensor, gone);
    }
  }
  if (finish_handle_ && !departed_.empty()) fail_inputs_for_departed(now);
  for (const auto& [tensor, gone] : due) {
    end_early(tensor, Status(Code::kDisconnected,
                             "tensor '" + tensors_[tensor].name + "' waits for worker " +
                                 std::to_string(gone->rank.value) + ", which has left the job"));
  }
}

// Whether it is time to give up waiting for that worker's contribution. What was submitted later gets as much time as
// what was under way.
bool Pipeline::departed_deadline(TimeNs now, const Op& op, const Departed& gone) {
  const TimeNs deadline =
      std::max({op.submitted_ns, gone.since_ns, answered_ns_}) + config_.departed_ns;
  if (now < deadline) next_departed_ns_ = std::min(next_departed_ns_, deadline);
  return now >= deadline;
}

void Pipeline::fail_inputs_for_departed(TimeNs now) {
  const Departed& gone = departed_.front();
  const TimeNs deadline = std::max(gone.since_ns, answered_ns_) + config_.departed_ns;
  if (pending_operations_ > 0) {
    next_departed_ns_ = std::min(next_departed_ns_, now + config_.departed_ns);
  } else if (now < deadline) {
    next_departed_ns_ = std::min(next_departed_ns_, deadline);
  } else {
    end_inputs(Status(Code::kDisconnected,
                      "this rank has no more inputs and waits until all have none, but worker " +
                          std::to_string(gone.rank.value) + " has left the job"));
  }
}

bool Pipeline::has_departed_member(const Tensor& tensor) const {
  return std::any_of(departed_.begin(), departed_.end(),
                     [&](const Departed& gone) { return tensor.spec.members.has(gone.rank); });
}

// Of those whom it misses, as a shard says, the first that left; null: none has.
const Pipeline::Departed* Pipeline::missed_by(const Op& op) const {
  const Tensor& tensor = tensors_[op.tensor];
  for (const Departed& gone : departed_) {
    for (const Lack& lack : op.lacks) {
      const PartState& part = tensor.parts[lack.part.value];
      if (part.answered_frames < part.frame_count && lack.whom.has(gone.rank)) return &gone;
    }
  }
  return nullptr;
}

void Pipeline::notice(TimeNs now) {
  if (oldest_ == kNoOp) {
    next_notice_ns_ = kNever;
    return;
  }
  const TimeNs first_ns = ops_[oldest_].submitted_ns + config_.first_notice_ns;
  if (now < first_ns) {
    next_notice_ns_ = first_ns;
    return;
  }
  next_notice_ns_ = now + config_.notice_every_ns;
  const std::string names = list_of_older_than(now - config_.first_notice_ns);
  if (names.empty()) return;
  tell(PipelineOutput::Kind::kNotice, "waiting for " +
                                          duration_text(now - ops_[oldest_].submitted_ns) + ": " +
                                          names + " (a worker may not have submitted it)");
}

// The first few of what was submitted by then and is under way.
std::string Pipeline::list_of_older_than(TimeNs submitted_ns) const {
  std::size_t count = 0;
  std::string names;
  for (OpIndex index = oldest_; index != kNoOp; index = ops_[index].newer) {
    const Op& op = ops_[index];
    if (op.submitted_ns > submitted_ns) break;
    if (op.state != OpState::kActive || ++count > kNamesInNotice) continue;
    names += (count > 1 ? "; " : "") + describe(tensors_[op.tensor]);
  }
  if (count > kNamesInNotice) names += "; and " + std::to_string(count - kNamesInNotice) + " more";
  return names;
}

std::string Pipeline::pending_text() const {
  const std::string names = list_of_older_than(kNever);
  if (!finish_handle_) return names;
  return names.empty() ? "the end of all workers' inputs (join)"
                       : names + "; then the end of inputs";
}

void Pipeline::tell(PipelineOutput::Kind kind, std::string text) {
  PipelineOutput& output = outputs_.emplace_back();
  output.kind = kind;
  output.status = Status(Code::kAgain, std::move(text));
}

// "tensor 'x' (3 of 8 parts wait at push for credit and the connection, 2 at pull for ...)"
std::string Pipeline::describe(const Tensor& tensor) const {
  std::array<std::size_t, kRoad.size()> waiting{};
  for (std::uint32_t part = 0; part < tensor.parts.size(); ++part) {
    const Stage stage = stage_of(tensor.parts[part]);
    if (stage != Stage::kDone) ++waiting[static_cast<std::size_t>(stage)];
  }
  const std::vector<Lack>& lacks = ops_[tensor.active].lacks;
  const std::string missing =
      lacks.empty() ? "" : " misses " + workers_text(lacks.back().whom.some());
  std::string text = "tensor '" + tensor.name + "'" + missing + " (" +
                     std::to_string(tensor.parts.size()) +
                     (tensor.parts.size() == 1 ? " part" : " parts");
  for (const StageInfo& info : kRoad) {
    const std::size_t count = waiting[static_cast<std::size_t>(info.stage)];
    if (count == 0) continue;
    text += ", " + std::to_string(count) + " at " + std::string(info.name) + " waiting for " +
            std::string(info.waits_for);
  }
  return text + ")";
}

}  // namespace byteps
