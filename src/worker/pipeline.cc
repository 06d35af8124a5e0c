#include "worker/pipeline.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "base/check.h"
#include "base/planted.h"

namespace byteps {
namespace {

// A row each: the stages that a part passes.
Road road_of(const RoadEnds& ends, Push& push, Pull& pull) {
  std::vector<Road::Row> rows = ends.before_push;
  rows.push_back({.name = "push",
                  .waits_for = "credit and the connection",
                  .stage = &push,
                  .has_time = false});
  rows.push_back({.name = "pull",
                  .waits_for = "the other workers' contributions",
                  .stage = &pull,
                  .has_time = false});
  rows.insert(rows.end(), ends.after_pull.begin(), ends.after_pull.end());
  return Road(std::move(rows));
}

// It is new here. `early`: what was said of tensors before.
void begin_tensor(Work& work, std::map<Key, Status>& early, Tensor& tensor) {
  if (const auto known = early.find(tensor.key); known != early.end()) {
    tensor.failed = known->second;
    early.erase(known);
    return;
  }
  if (!work.is_behind_relays()) return;
  // Relays hold back what not all of their workers have contributed. So what it is here is said at once, whatever
  // credit there is: others may take it for another one, and wait for less or more.
  const auto declare_at = [&](ShardIndex shard) {
    work.shards[shard.value].say(
        {.kind = wire::Kind::kDeclare, .key = tensor.key, .payload = tensor.declaration});
  };
  TensorWay& first = tensor.ways[tensor.parts[0].way];
  first.declared_on = work.shards[first.shard.value].connection();
  declare_at(first.shard);
  if (tensor.meeting && !PLANTED(members_never_meet)) declare_at(*tensor.meeting);
}

// At a relay, of a part that is where frames are pushed, or answered: none is left.
bool is_passed(Work& work, const Road& road, Push& push, const Pull& pull, PartRef ref) {
  Tensor& tensor = work.tensors[ref.tensor];
  PartState& part = tensor.parts[ref.part];
  if (!work.config.is_relay || part.answered_frames == 0) return false;
  if (road.is_at(part, pull)) return part.answered_frames == part.frame_count;
  if (!road.is_at(part, push)) return false;
  return push.advance(tensor, ref.part) ||
         (part.ticket == Gate::kNoTicket && part.next_frame == part.frame_count);
}

}  // namespace

Pipeline::Pipeline(const PipelineConfig& config)
    : work_(config), road_(road_of(work_.config.road_ends, push_, pull_)) {}

// ---- an operation's life

void Pipeline::submit(PipelineCall&& call) {
  const auto refuse = [&](const Status& why) { work_.complete(call.handle, call.spec, why); };
  if (!job_failed_.is_ok()) return refuse(job_failed_);
  if (inputs_.is_finishing() && !work_.config.is_relay) {
    return refuse({Code::kInvalidArgument,
                   "tensor '" + call.name +
                       "' was submitted after this rank had said that it has no more inputs, and "
                       "before all others have"});
  }
  const std::size_t known_count = work_.tensors.size();
  const Result<TensorIndex> found = work_.find_or_add(call.name, call.spec);
  if (!found.is_ok()) return refuse(found.status());
  const TensorIndex index = found.value();
  Tensor& tensor = work_.tensors[index];
  if (work_.tensors.size() > known_count) begin_tensor(work_, early_mismatches_, tensor);
  if (!tensor.failed.is_ok()) return refuse(tensor.failed);
  const bool has_output = call.cargo == nullptr && call.spec.gets(work_.config.self);
  CHECK_EQ(call.output.size(), has_output ? call.spec.total_bytes : 0);

  const OpIndex place = work_.operations.add(index, work_.now);
  Op& op = work_.operations[place];
  op.priority = call.priority;
  op.once = call.once;
  op.handle = call.handle;
  op.input = call.input;
  op.output = call.output;
  if (!call.carry.empty()) op.carry = std::make_unique<Carry>(call.carry);
  op.cargo = call.cargo;
  patience_.on_submitted();
  tensor.once = call.once;
  if (tensor.active == kNoOp) {
    if (call.round) tensor.round = *call.round;
    tensor.active = place;
    return start(index);
  }
  (tensor.line.last == kNoOp ? tensor.line.first : work_.operations[tensor.line.last].line_next) =
      place;
  tensor.line.last = place;
}

// The tensor's active operation begins its round.
void Pipeline::start(TensorIndex index) {
  Tensor& tensor = work_.tensors[index];
  Op& op = work_.operations[tensor.active];
  op.state = OpState::kActive;
  tensor.cargo = op.cargo;
  tensor.finished_parts = 0;
  std::fill(tensor.answered.begin(), tensor.answered.end(), 0);
  if (work_.lends_carry(op)) {
    work_.config.relays.residuals->lend(tensor.key, *op.carry, tensor.spec.total_bytes);
  }
  push_.begin_round(tensor);
  for (std::uint32_t part = 0; part < tensor.parts.size(); ++part) {
    tensor.parts[part].begin_round();
    if (tensor.cargo != nullptr && !tensor.cargo->leads(part)) {
      ++tensor.finished_parts;
    } else {
      road_.begin({index, part}, tensor, work_.now);
    }
  }
  if (work_.timeline) work_.timeline->on_started(index, tensor, op.submitted_ns);
}

// The part goes on; with the last one at the end of the road the operation ends.
void Pipeline::leave_stage(PartRef part) {
  Tensor& tensor = work_.tensors[part.tensor];
  if (!road_.leave(part, tensor, work_.now)) {
    if (is_passed(work_, road_, push_, pull_, part)) leave_stage(part);
    return;
  }
  ++tensor.finished_parts;
  if (work_.timeline) work_.timeline->on_part_done(part.tensor, tensor, part.part);
  settle(part.tensor);
}

void Pipeline::take_had(PartRef ref, std::uint32_t frame) {
  Tensor& tensor = work_.tensors[ref.tensor];
  if (!work_.is_active(tensor) || tensor.is_answered(ref.part, frame)) return;
  if (pull_.take_had(ref, frame).was_unsent || is_passed(work_, road_, push_, pull_, ref))
    leave_stage(ref);
}

// The tensor cannot go on: its operations end with this status as soon as nothing of them is lent, later ones at once.
// (A round that was begun and not finished leaves the ranks' rounds apart, so the name is of no use any more.)
void Pipeline::end_early(TensorIndex index, const Status& status) {
  Tensor& tensor = work_.tensors[index];
  if (!tensor.failed.is_ok()) return;
  tensor.failed = status;
  if (tensor.active != kNoOp) {
    road_.abandon(index, tensor);
    for (std::uint32_t part = 0; tensor.cargo != nullptr && part < tensor.parts.size(); ++part) {
      tensor.lent_count += tensor.cargo->abandon(part);
    }
    work_.operations[tensor.active].state = OpState::kEnding;
  }
  while (tensor.line.first != kNoOp) {
    const OpIndex waiting = tensor.line.first;
    tensor.line.first = work_.operations[waiting].line_next;
    end_op(waiting, status);
  }
  tensor.line.last = kNoOp;
  settle(index);
}

// Ends the active operation if it is at its end.
void Pipeline::settle(TensorIndex index) {
  Tensor& tensor = work_.tensors[index];
  if (tensor.active == kNoOp || (tensor.lent_count > 0 && !PLANTED(ended_while_lent))) return;
  if (work_.operations[tensor.active].state == OpState::kEnding) {
    end_op(std::exchange(tensor.active, kNoOp), tensor.failed);
  } else if (tensor.finished_parts == tensor.parts.size()) {
    finish_well(index);
  }
}

void Pipeline::finish_well(TensorIndex index) {
  Tensor& tensor = work_.tensors[index];
  const Op& op = work_.operations[tensor.active];
  // A broadcast's root is sent nothing: it has the result.
  const bool has_it = !op.output.empty() && !work_.is_sent_to(tensor.spec);
  if (has_it && op.input.data() != op.output.data()) {
    std::memcpy(op.output.data(), op.input.data(), op.output.size());
  }
  if (work_.timeline) work_.timeline->on_done(index, tensor, op.submitted_ns);
  const bool once = op.once;
  kept_.release(tensor);
  end_op(std::exchange(tensor.active, kNoOp), Status::ok());
  ++tensor.round.value;
  if (once) {
    work_.forget(tensor);
    kept_.retire(tensor);
    work_.tensors.give_up(index);
  } else if (tensor.line.first != kNoOp) {
    tensor.active = tensor.line.first;
    Op& next = work_.operations[tensor.active];
    tensor.line.first = std::exchange(next.line_next, kNoOp);
    if (tensor.line.first == kNoOp) tensor.line.last = kNoOp;
    start(index);
  }
}

void Pipeline::end_op(OpIndex index, const Status& status) {
  const Op& op = work_.operations[index];
  if (op.state != OpState::kWaiting) {
    Tensor& tensor = work_.tensors[op.tensor];
    tensor.cargo = nullptr;
    if (work_.lends_carry(op)) work_.config.relays.residuals->take_back(tensor.key);
    Coder::end(tensor);
  }
  work_.complete(op.handle, work_.tensors[op.tensor].spec, status);
  work_.operations.remove(index);
  if (work_.operations.count() == 0) flow_.on_idle();
}

// ---- connections

void Pipeline::on_shard_up(ShardIndex index, bool is_successor) {
  ShardWay& shard = work_.shards[index.value];
  CHECK(!shard.is_up()) << index << " is up already";
  shard.up();
  kept_.on_up(index, is_successor);
}

void Pipeline::on_shard_down(ShardIndex index) {
  ShardWay& shard = work_.shards[index.value];
  CHECK(shard.is_up()) << index << " is down already";
  shard.down();
  flow_.on_shard_down(shard);
  const Operations& operations = work_.operations;
  for (OpIndex op = operations.oldest(); op != kNoOp; op = operations[op].newer) {
    if (operations[op].state != OpState::kActive) continue;
    const TensorIndex tensor_index = operations[op].tensor;
    Tensor& tensor = work_.tensors[tensor_index];
    for (std::uint32_t part = 0; part < tensor.parts.size(); ++part) {
      if (tensor.parts[part].shard == index) send_again({tensor_index, part});
    }
  }
}

// What was sent on another connection says nothing of this one.
void Pipeline::send_again(PartRef ref) {
  Tensor& tensor = work_.tensors[ref.tensor];
  PartState& part = tensor.parts[ref.part];
  part.forgets_before = 0;
  const bool is_pushed = road_.is_at(part, push_) || road_.is_at(part, pull_);
  if (!is_pushed || part.answered_frames == part.frame_count) return;
  push_.forget_sent(tensor, part);
  if (!PLANTED(nothing_repeated)) part.next_frame = 0;
  if (road_.is_at(part, pull_)) {
    road_.come_back(ref, tensor, push_, work_.now);
  } else {
    push_.enter(ref, tensor, work_.now);
  }
  if (push_.advance(tensor, ref.part)) leave_stage(ref);
}

// ---- messages from shards

Status Pipeline::on_answer(ShardIndex shard, const wire::Header& header,
                           std::span<const std::byte> payload) {
  kept_.begin_answer(shard, header);
  const Pull::Taken taken = pull_.take(shard, header, payload);
  if (taken.part.tensor == kNoTensor) return taken.broken;
  patience_.on_answer();
  if (taken.was_unsent) leave_stage(taken.part);
  const Tensor& tensor = work_.tensors[taken.part.tensor];
  // (At a relay it has gone on from where frames are pushed, if that was the last.)
  const bool has_gone_on = work_.config.is_relay && taken.was_unsent;
  if (taken.is_complete && !has_gone_on && road_.is_at(tensor.parts[taken.part.part], pull_)) {
    leave_stage(taken.part);
  }
  return Status::ok();
}

void Pipeline::on_recovery(ShardIndex shard, const wire::Header& header) {
  if (header.kind == wire::Kind::kForgotten) return kept_.on_forgotten(shard, header.key);
  if (header.kind == wire::Kind::kSettled) {
    if ((header.flags & wire::kOfFrame) != 0) return kept_.on_settled_frame(shard, header);
    return kept_.on_settled(shard, header.count);
  }
  if (header.kind == wire::Kind::kGive) return kept_.on_give(shard, header);
  // Who had the sum of one of its frames is lost.
  const TensorIndex index = work_.tensors.find(header.key);
  if (index == kNoTensor || header.part.value >= work_.tensors[index].parts.size()) return;
  Tensor& tensor = work_.tensors[index];
  const PartState& part = tensor.parts[header.part.value];
  if (part.shard != shard || !work_.is_active(tensor) || header.round != tensor.round) return;
  const bool is_pushed = road_.is_at(part, push_) || road_.is_at(part, pull_);
  if (!is_pushed || part.answered_frames == part.frame_count) return;
  const PartRef ref{index, header.part.value};
  push_.abandon(ref, tensor);
  send_again(ref);
}

void Pipeline::on_mismatch(Key key, const Status& why) {
  const TensorIndex index = work_.tensors.find(key);
  // What stands in for another relay is answered what that has pushed, and may not know it.
  if (index != kNoTensor || work_.config.duties.stands_in) kept_.note_spoiled(key);
  if (index != kNoTensor) {
    // Another shard has what others have pushed of it, and waits for this one. Where sums go when all have them, that
    // is to go as well.
    const Tensor& tensor = work_.tensors[index];
    if (tensor.failed.is_ok() && work_.config.keeps_sums) work_.forget(tensor);
    return end_early(index, why);
  }
  // Who comes to a shard later is told then. A relay may have left with its worker.
  if (work_.is_behind_relays() && early_mismatches_.size() < kEarlyMismatchesMax) {
    early_mismatches_.try_emplace(key, why);
  }
}

void Pipeline::on_sent(SendToken token) {
  if (token == 0 || push_.on_sent(token)) return;
  const PartRef part = Push::part_of(token);
  Cargo* const cargo = work_.tensors[part.tensor].cargo;
  if (cargo != nullptr) cargo->on_given_back(part.part);
  give_back(part.tensor);
}

// Memory of the tensor was lent, and is ours again.
void Pipeline::give_back(TensorIndex index) {
  Tensor& tensor = work_.tensors[index];
  CHECK_GT(tensor.lent_count, 0u) << "tensor '" << tensor.name << "'";
  if (--tensor.lent_count == 0) settle(index);
}

void Pipeline::pop() {
  const Push::Sent sent = push_.pop();
  if (sent.leaves) leave_stage(sent.part);
}

// ---- the end, of inputs and of all

void Pipeline::finish_inputs(HandleId handle, std::optional<std::uint64_t> rounds) {
  if (!job_failed_.is_ok()) return work_.complete(handle, job_failed_);
  inputs_.finish(handle, rounds);
  if (inputs_.is_finishing()) patience_.on_finishing();
}

void Pipeline::on_inputs_done(ShardIndex shard, const wire::Header& header) {
  if (inputs_.on_done(shard, header)) push_.forget_wanted();
}

void Pipeline::fail_all(const Status& status) {
  CHECK(!status.is_ok());
  if (!job_failed_.is_ok()) return;
  job_failed_ = status;
  for (TensorIndex index = 0; index < work_.tensors.slot_count(); ++index) {
    if (work_.tensors[index].active != kNoOp) end_early(index, status);
  }
  if (inputs_.is_finishing()) inputs_.end(status);
}

// ---- time

void Pipeline::tick() {
  if (inputs_.settle()) push_.forget_wanted();
  flow_.tick();
  patience_.tick();
  if (work_.now >= patience_.next_deadline()) {
    for (const Patience::Verdict& verdict : patience_.give_up()) {
      if (verdict.tensor == kNoTensor) {
        inputs_.end(verdict.why);
      } else {
        end_early(verdict.tensor, verdict.why);
      }
    }
    patience_.notice(road_);
  }
  if (!road_.has_time()) return;
  stage_output_.clear();
  road_.tick(work_.now, stage_output_);
  for (const PartRef part : stage_output_.leaving) leave_stage(part);
  for (const PartRef part : stage_output_.ready) uplink_.on_ready(part);
  for (const TensorIndex tensor : stage_output_.given_back) give_back(tensor);
}

TimeNs Pipeline::next_deadline() const {
  return std::min({patience_.next_deadline(), road_.next_deadline(), flow_.next_deadline(),
                   kept_.next_deadline()});
}

}  // namespace byteps
