#include "relay/relay.h"

#include <algorithm>
#include <new>
#include <utility>
#include <variant>

#include "base/check.h"

namespace byteps {

Relay::Relay(const RelayConfig& config, BufferPool& pool)
    : config_(uplink_config(config.uplink)), shelf_(config.shelf, pool), uplink_(config_) {
  ShelfEpoch facts;
  facts.epoch = config_.epoch;
  facts.worker_count = config_.groups->worker_count();
  facts.placement = std::make_shared<const Placement>(config_.placement);
  facts.groups = config_.groups;
  facts.relay = config_.self;
  const Status begun = shelf_.begin_epoch(facts);
  CHECK(begun.is_ok()) << begun.message();
}

PipelineConfig Relay::uplink_config(PipelineConfig config) {
  config.road_ends.before_push.push_back(
      {.name = "reduce", .waits_for = "the other workers of this machine", .stage = &reduce_});
  return config;
}

// ---- the workers

void Relay::step(WorkerRank from, const wire::Header& header, std::span<const std::byte> payload,
                 TimeNs now) {
  now_ = now;
  uplink_.begin_turn(now);
  shelf_.step(from, header, payload, now, fresh_);
  absorb();
  settle();
}

// What is for the servers goes to the pipeline, the rest is for the workers.
void Relay::absorb() {
  while (!fresh_.empty()) {
    ShelfOutputs outputs;
    outputs.swap(fresh_);
    for (auto& output : outputs) {
      if (auto* const forward = std::get_if<ShelfOutput::Forward>(&output)) {
        forward_or_give_up(std::move(*forward));
        continue;
      }
      const auto* const spoiled = std::get_if<ShelfOutput::Spoiled>(&output);
      if (spoiled != nullptr && !spoiled->worker) {
        uplink_.on_mismatch(spoiled->key, {spoiled->code, spoiled->text});
        drop_unsubmitted(spoiled->key);
      }
      down_.push_back(std::move(output));
    }
  }
}

void Relay::forward_or_give_up(ShelfOutput::Forward&& forward) {
  const Key key = forward.header.key;
  try {
    take(std::move(forward));
  } catch (const std::bad_alloc&) {
    shelf_.give_up(key, {Code::kSystem, "a relay has no memory for a tensor"}, fresh_);
  }
}

void Relay::take(ShelfOutput::Forward&& forward) {
  const wire::Header& header = forward.header;
  const wire::Declare* const declared = shelf_.declared(header.key);
  if (declared == nullptr) return;
  Relayed& relayed = tensors_[header.key];
  Batch& batch = batch_of(relayed, header.key, *declared, header.round);
  const bool is_complete =
      batch.put(header.part, header.offset_bytes, std::move(forward.buffer), forward.payload_bytes);
  if (!is_complete) return;
  if (!batch.is_submitted) {
    batch.is_submitted = true;
    submitted_[++last_handle_] = {header.key, &batch};
    uplink_.submit({.handle = HandleId(last_handle_),
                    .name = declared->name,
                    .spec = static_cast<const Spec&>(*declared),
                    .input = {},
                    .output = {},
                    .priority = relayed.priority,
                    .cargo = &batch});
    return;
  }
  const TensorIndex index = uplink_.tensors().find(header.key);
  if (index == kNoTensor) return;
  // Otherwise the round before has not ended, and the part will find itself complete; or the operation has failed.
  const Tensor& tensor = uplink_.tensors()[index];
  const bool is_on_its_way = tensor.active != kNoOp && tensor.round == header.round &&
                             tensor.parts[header.part.value].stage != PartState::kOffRoad;
  if (is_on_its_way) reduce_.leave({index, header.part.value});
}

Batch& Relay::batch_of(Relayed& relayed, Key key, const wire::Declare& declared, Round round) {
  if (!relayed.batches.empty() && relayed.batches.back()->round() == round) {
    return *relayed.batches.back();
  }
  const Groups& groups = *config_.groups;
  RelayedTensor tensor{.key = key,
                       .total_bytes = declared.total_bytes,
                       .crew = groups.crew_of(groups.group_of(config_.self), declared.members),
                       .self = config_.self};
  Batch::Listener& listener = *this;
  relayed.batches.push_back(
      std::make_unique<Batch>(listener, config_.placement, std::move(tensor), round));
  return *relayed.batches.back();
}

void Relay::drop_unsubmitted(Key key) {
  const auto found = tensors_.find(key);
  if (found == tensors_.end()) return;
  std::erase_if(found->second.batches, [](const auto& batch) { return !batch->is_submitted; });
}

// ---- the servers

Status Relay::on_answer(ShardIndex shard, const wire::Header& header,
                        std::span<const std::byte> payload) {
  const Status fine = uplink_.on_answer(shard, header, payload, false);
  absorb();
  settle();
  return fine;
}

void Relay::answered(const wire::Header& header, std::span<const std::byte> payload) {
  shelf_.answered(header, payload, fresh_);
}

void Relay::on_wanted(ShardIndex shard, const wire::Header& header) {
  if (header.epoch != config_.epoch) return;
  uplink_.on_wanted(shard, header);
  shelf_.want(header.key, header.part, header.round, fresh_);
  absorb();
}

void Relay::on_mismatch(Key key, const Status& why) {
  uplink_.on_mismatch(key, why);
  shelf_.give_up(key, why, fresh_);
  absorb();
  settle();
}

void Relay::on_sent(SendToken token) {
  uplink_.on_sent(token);
  settle();
}

void Relay::fail_all(const Status& status) {
  uplink_.fail_all(status);
  settle();
}

// Operations that have ended.
void Relay::settle() {
  while (!uplink_.outputs().empty()) {
    const PipelineOutputs ended = uplink_.outputs();
    uplink_.clear_outputs();
    for (const auto& output : ended) {
      if (const auto* const end = std::get_if<PipelineOutput::Complete>(&output)) {
        end_batch(end->handle, end->status);
      }
    }
  }
}

void Relay::end_batch(HandleId handle, const Status& status) {
  const auto found = submitted_.find(handle.value);
  const Submitted ended = found->second;
  submitted_.erase(found);
  std::erase_if(tensors_[ended.key].batches,
                [&](const auto& batch) { return batch.get() == ended.batch; });
  if (status.is_ok()) return;
  shelf_.give_up(ended.key, status, fresh_);
  absorb();
}

// ---- time

void Relay::tick(TimeNs now) {
  now_ = now;
  uplink_.begin_turn(now);
  shelf_.tick(now, fresh_);
  absorb();
  uplink_.tick();
  settle();
}

TimeNs Relay::next_deadline() const {
  return std::min(shelf_.next_deadline(), uplink_.next_deadline());
}

// ---- the stage

void Relay::Reduce::enter(PartRef part, Tensor& tensor, TimeNs /*now*/) {
  const auto& batches = relay_.tensors_[tensor.key].batches;
  const auto batch = std::find_if(batches.begin(), batches.end(),
                                  [&](const auto& each) { return each->round() == tensor.round; });
  if (batch != batches.end() && (*batch)->is_complete(part.part)) complete_.push_back(part);
}

void Relay::Reduce::abandon(PartRef part, Tensor& /*tensor*/) {
  std::erase_if(complete_, [&](const PartRef& each) {
    return each.tensor == part.tensor && each.part == part.part;
  });
}

void Relay::Reduce::tick(TimeNs /*now*/, StageOutput& out) {
  out.leaving.insert(out.leaving.end(), complete_.begin(), complete_.end());
  complete_.clear();
}

}  // namespace byteps
