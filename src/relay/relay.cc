#include "relay/relay.h"

#include <algorithm>
#include <new>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/planted.h"

namespace byteps {
namespace {

// What it was declared as; null: nobody has.
const wire::Declare* declared_in(const Shelf& shelf, Key key) {
  const TensorSum* const tensor = shelf.inventory().find(key);
  return tensor == nullptr ? nullptr : &tensor->declared;
}

// Nobody will contribute to this round of this frame: the crew have its sum, see ShelfOutput::Had.
bool is_had(const Shelf& shelf, Key key, PartIndex index, std::uint64_t offset_bytes, Round round) {
  const PartSum* const part = shelf.inventory().find(key, index);
  if (part == nullptr) return false;
  const auto frame = static_cast<std::uint32_t>(offset_bytes / part->frame_bytes);
  return later_by(part->frames[frame].round, round) > 0 &&
         shelf.inheritance().is_over(*part, frame);
}

ShelfEpoch facts_of(const RelayConfig& config) {
  ShelfEpoch facts;
  facts.epoch = config.uplink.epoch;
  facts.worker_count = config.uplink.groups->worker_count();
  facts.placement = std::make_shared<const Placement>(config.uplink.placement);
  facts.keeps_links = true;
  facts.recovers = config.recovers;
  facts.takes_over = config.takes_over;
  facts.lost = config.lost;
  if (config.is_alone) return facts;
  facts.groups = config.uplink.groups;
  facts.relay = config.uplink.self;
  return facts;
}

}  // namespace

Relay::Relay(const RelayConfig& config, BufferPool& pool)
    : config_(uplink_config(config.uplink)),
      stands_in_(config.takes_over && !config.is_alone),
      lost_(config.lost.begin(), config.lost.end()),
      shelf_(config.shelf, pool) {
  if (!config.is_alone) uplink_.emplace(config_);
  const Status begun = shelf_.begin_epoch(facts_of(config));
  CHECK(begun.is_ok()) << begun.message();
  if (stands_in_) end_inputs(Status::ok());
}

PipelineConfig Relay::uplink_config(PipelineConfig config) {
  config.is_relay = true;
  config.road_ends.before_push.push_back(
      {.name = "reduce", .waits_for = "the other workers of this machine", .stage = &reduce_});
  return config;
}

// ---- the workers

void Relay::step(WorkerRank from, const wire::Header& header, std::span<const std::byte> payload,
                 TimeNs now) {
  if (is_alone()) return shelf_.step(from, header, payload, now, down_);
  uplink_->begin_turn(now);
  shelf_.step(from, header, payload, now, fresh_);
  if (header.kind == wire::Kind::kDeclare) look_at_declaration(from, header.key, payload);
  absorb();
  settle();
  if (header.kind == wire::Kind::kHave || header.kind == wire::Kind::kForget) note_told();
}

void Relay::connect(WorkerRank worker) {
  shelf_.connect(worker, is_alone() ? down_ : fresh_);
  if (!is_alone()) absorb();
}

void Relay::disconnect(WorkerRank worker) {
  shelf_.disconnect(worker, is_alone() ? down_ : fresh_);
  if (is_alone()) return;
  absorb();
  if (left_.contains(worker)) note_told();
}

void Relay::leave(WorkerRank worker) {
  left_.insert(worker);
  shelf_.leave(worker, is_alone() ? down_ : fresh_);
  if (is_alone()) return;
  absorb();
  settle();
  note_told();
}

void Relay::lose(WorkerRank worker) {
  lost_.insert(worker);
  shelf_.lose(worker, is_alone() ? down_ : fresh_);
  if (is_alone()) return;
  absorb();
  settle();
  note_told();
}

// When all of the crew have said what they have, or will not.
void Relay::note_told() {
  if (!stands_in_) return;
  const Groups& groups = *config_.groups;
  const Crew machine = groups.crew_of(groups.group_of(config_.self), Members());
  const bool is_all_told = std::all_of(machine.begin(), machine.end(), [this](WorkerRank each) {
    const Inheritance& inheritance = shelf_.inheritance();
    if (left_.contains(each) && !inheritance.is_connected(each)) return true;
    return lost_.contains(each) || inheritance.has_told(each);
  });
  if (!is_all_told) return;
  uplink_->uplink().say_all();
  for (const Key key : std::exchange(given_up_, {})) {
    if (declared_in(shelf_, key) == nullptr) uplink_->uplink().forget_everywhere(key);
  }
}

void Relay::look_at_declaration(WorkerRank from, Key key, std::span<const std::byte> payload) {
  const wire::Declare* const declared = declared_in(shelf_, key);
  if (declared == nullptr) return;
  const auto mismatch = mismatches_.find(key);
  if (mismatch != mismatches_.end()) return shelf_.give_up(key, mismatch->second, fresh_);
  if (!batches_.try_emplace(key).second) return;  // known
  const Groups& groups = *config_.groups;
  const Crew crew = groups.crew_of(groups.group_of(config_.self), declared->members);
  const bool may_lead = std::find(crew.begin(), crew.end(), config_.self) != crew.end();
  if (stands_in_ && may_lead) uplink_->uplink().note_begun(*declared);
  if (leader_of(crew, key, 0, config_.placement.shard_count()) != config_.self) return;
  if (PLANTED(declared_when_pushed)) return;
  uplink_->uplink().say(config_.placement.first_shard(key),
                        {.kind = wire::Kind::kDeclare,
                         .key = key,
                         .part = PartIndex(from.value + 1),
                         .payload = {payload.begin(), payload.end()},
                         .lasts = true});
}

// ---- what the shelf says

// True: it was not for the workers.
struct Relay::Taking {
  Relay& relay;

  bool operator()(auto& /*for them*/) const { return false; }

  bool operator()(ShelfOutput::Forward& forward) const {
    try {
      relay.take(forward);
    } catch (const std::bad_alloc&) {
      relay.shelf_.out_of_memory(forward.header.key, relay.fresh_);
    }
    return true;
  }

  // Told to all here. What these have found goes on to the servers, which know what they have said themselves.
  bool operator()(ShelfOutput::Spoiled& spoiled) const {
    if (spoiled.worker) return false;
    const Status why(spoiled.code, spoiled.text, spoiled.cause);
    relay.uplink_->on_mismatch(spoiled.key, why);
    relay.drop_unsubmitted(spoiled.key);
    if (relay.mismatches_.try_emplace(spoiled.key, why).second &&
        !PLANTED(mismatch_kept_by_machine)) {
      const wire::Text text{spoiled.text, static_cast<std::uint32_t>(spoiled.code), why.cause()};
      relay.uplink_->uplink().say(relay.config_.placement.first_shard(spoiled.key),
                                  {.kind = wire::Kind::kMismatch,
                                   .key = spoiled.key,
                                   .payload = wire::encode(text),
                                   .lasts = true});
    }
    return false;
  }

  bool operator()(ShelfOutput::Missing& missing) const {
    const wire::Declare* const declared = declared_in(relay.shelf_, missing.key);
    if (declared == nullptr) return false;
    const Placement::Part place =
        relay.config_.placement.part(missing.key, declared->extent(), missing.part.value);
    relay.uplink_->uplink().say(place.shard,
                                {.kind = wire::Kind::kMissing,
                                 .key = missing.key,
                                 .part = missing.part,
                                 .round = missing.round,
                                 .payload = wire::encode(wire::Missing{Members(missing.ranks)})});
    return false;
  }

  bool operator()(ShelfOutput::InputsEnd& end) const {
    if (relay.inputs_handle_) return true;  // a repeat
    relay.inputs_handle_ = ++relay.last_handle_;
    relay.inputs_were_heard_ = false;
    relay.uplink_->finish_inputs(HandleId(*relay.inputs_handle_),
                                 PLANTED(rounds_of_relay_said) ? 0 : end.rounds);
    return true;
  }

  bool operator()(ShelfOutput::Forgotten& forgotten) const {
    relay.uplink_->uplink().take_back(relay.config_.placement.first_shard(forgotten.key),
                                      wire::Kind::kDeclare, forgotten.key);
    if (!PLANTED(forgotten_by_machine_alone))
      relay.uplink_->uplink().forget(forgotten.key, forgotten.declared);
    relay.mismatches_.erase(forgotten.key);
    const auto found = relay.batches_.find(forgotten.key);
    if (found != relay.batches_.end() && found->second.empty()) relay.batches_.erase(found);
    if (relay.config_.duties.waits_for_crew &&
        relay.uplink_->tensors().find(forgotten.key) == kNoTensor) {
      end_forgotten(forgotten.key);
    }
    return true;
  }

  // Other machines may lack what these have, until the servers say so. What one that stands in does not know, the
  // servers may know of the relay that was there before.
  bool operator()(ShelfOutput::ForgottenByAll& forgotten) const {
    if (relay.uplink_->uplink().is_forgetting(forgotten.key)) return true;
    if (relay.stands_in_) relay.given_up_.insert(forgotten.key);
    return relay.stands_in_;
  }

  bool operator()(ShelfOutput::Had& had) const {
    const wire::Declare* const declared = declared_in(relay.shelf_, had.key);
    if (declared == nullptr) return true;
    if (had.is_given) {
      std::optional<std::span<const std::byte>> sum;
      const bool is_without = had.payload_bytes == 0 && declared->root_only;
      if (!is_without) sum = std::span<const std::byte>();
      if (had.payload_bytes > 0) {
        sum = std::span<const std::byte>(had.buffer.span()).first(had.payload_bytes);
      }
      relay.uplink_->uplink().inherit(*declared, had.part, had.offset_bytes, had.round, sum);
    }
    const auto found = relay.batches_.find(had.key);
    if (found == relay.batches_.end()) return true;
    for (const auto& batch : found->second) {
      if (batch->round() != had.round) continue;
      if (batch->is_submitted) {
        take_had(had.key, *batch, had.part, had.offset_bytes);
      } else {
        batch->put_had(had.part, had.offset_bytes);
        if (batch->has_ready_frames()) relay.submit(had.key, *batch);
      }
      break;
    }
    return true;
  }

  bool operator()(ShelfOutput::CrewHas& has) const {
    relay.uplink_->uplink().note_crew_has(has.key, has.part, has.offset_bytes, has.round);
    return true;
  }

  // Nobody waits for what they have contributed last: it ends here, whether it is answered or not.
  bool operator()(ShelfOutput::CrewGone& gone) const {
    relay.drop_unsubmitted(gone.key);
    const auto found = relay.batches_.find(gone.key);
    if (found == relay.batches_.end() || found->second.empty()) return true;
    take_all_had(gone.key, *found->second.front(), true);
    return true;
  }

  // The servers have forgotten it as well, if they have said so, or never knew it.
  void end_forgotten(Key key) const {
    if (relay.uplink_->uplink().is_forgetting(key)) return;
    relay.shelf_.forgotten_above(key);
    relay.down_.emplace_back(ShelfOutput::ForgottenByAll{std::nullopt, key});
  }

  // It is not pushed.
  void take_had(Key key, Batch& batch, PartIndex part, std::uint64_t offset_bytes) const {
    const TensorIndex index = relay.uplink_->tensors().find(key);
    if (index == kNoTensor) return;
    const Tensor& tensor = relay.uplink_->tensors()[index];
    if (tensor.active == kNoOp || tensor.round != batch.round()) return;
    const std::uint32_t were_ready = batch.ready_frames(part.value);
    batch.put_had(part, offset_bytes);
    const PartState& state = tensor.parts[part.value];
    const auto frame = static_cast<std::uint32_t>(offset_bytes / state.frame_bytes);
    const bool is_on_its_way = state.stage != PartState::kOffRoad;
    relay.uplink_->take_had({index, part.value}, frame);
    // Frames behind it may have waited for it.
    if (!is_on_its_way || batch.ready_frames(part.value) == were_ready) return;
    if (were_ready > 0) {
      relay.uplink_->uplink().on_ready({index, part.value});
    } else {
      relay.reduce_.leave({index, part.value});
    }
  }

  // All inputs have ended, which they do when no worker has an operation under way: nobody waits for those that are
  // still under way here, as one that ended with an error of which this relay has not heard.
  void end_operations_before(Round round) const {
    for (auto& [key, batches] : relay.batches_) {
      std::erase_if(batches, [&](const auto& batch) {
        return !batch->is_submitted && later_by(batch->round(), round) < 0;
      });
      if (batches.empty() || later_by(batches.front()->round(), round) >= 0) continue;
      take_all_had(key, *batches.front(), true);
    }
  }

  // Of its frames those that are had, or all that are not answered.
  void take_all_had(Key key, Batch& batch, bool is_gone) const {
    const Extent& extent = batch.extent();
    const std::uint64_t parts = relay.config_.placement.part_count(extent);
    for (std::uint32_t index = 0; index < parts; ++index) {
      if (!batch.leads(index)) continue;
      const Placement::Part place = relay.config_.placement.part(key, extent, index);
      for (std::uint32_t frame = 0; frame < Placement::frame_count(place); ++frame) {
        const std::uint64_t offset_bytes = frame * place.frame_bytes;
        if (!is_gone && !is_had(relay.shelf_, key, PartIndex(index), offset_bytes, batch.round()))
          continue;
        take_had(key, batch, PartIndex(index), offset_bytes);
      }
    }
  }
};

// What is for the servers goes to the uplink, the rest is for the workers.
void Relay::absorb() {
  while (!fresh_.empty()) {
    ShelfOutputs outputs;
    outputs.swap(fresh_);
    for (auto& output : outputs) {
      const bool is_taken = std::visit(Taking{*this}, output);
      if (!is_taken) down_.push_back(std::move(output));
    }
  }
}

void Relay::take(ShelfOutput::Forward& forward) {
  const wire::Header& header = forward.header;
  const wire::Declare* const declared = declared_in(shelf_, header.key);
  if (declared == nullptr) return;
  Batch& batch = batch_of(header.key, *declared, header.round);
  batch.priority = header.priority;
  const bool was_ready = batch.ready_frames(header.part.value) > 0;
  batch.put(header.part, header.offset_bytes, std::move(forward.buffer), forward.payload_bytes,
            {.flags = header.flags, .lost = header.lost});
  if (stands_in_ && !batch.is_submitted) {  // those before it may be had
    const Placement::Part place =
        config_.placement.part(header.key, batch.extent(), header.part.value);
    for (std::uint64_t offset = 0; offset < header.offset_bytes; offset += place.frame_bytes) {
      if (is_had(shelf_, header.key, header.part, offset, header.round)) {
        batch.put_had(header.part, offset);
      }
    }
  }
  if (batch.ready_frames(header.part.value) == 0) return;
  if (!batch.is_submitted) return submit(header.key, batch);
  const TensorIndex index = uplink_->tensors().find(header.key);
  if (index == kNoTensor) return;
  // Otherwise the round before has not ended, and the part will find itself ready; or the operation has failed.
  const Tensor& tensor = uplink_->tensors()[index];
  const bool is_on_its_way = tensor.active != kNoOp && tensor.round == header.round &&
                             tensor.parts[header.part.value].stage != PartState::kOffRoad;
  if (!is_on_its_way) return;
  const PartRef part{index, header.part.value};
  if (was_ready) {
    uplink_->uplink().on_ready(part);
  } else {
    reduce_.leave(part);
  }
}

Batch& Relay::batch_of(Key key, const wire::Declare& declared, Round round) {
  Batches& batches = batches_[key];
  if (!batches.empty() && batches.back()->round() == round) return *batches.back();
  const Groups& groups = *config_.groups;
  RelayedTensor tensor{.key = key,
                       .extent = declared.extent(),
                       .crew = groups.crew_of(groups.group_of(config_.self), declared.members),
                       .self = config_.self};
  Batch::Listener& listener = *this;
  batches.push_back(std::make_unique<Batch>(listener, config_.placement, std::move(tensor), round));
  return *batches.back();
}

// Some frame of it is ready. Another worker may be in the next generation of inputs already, when the uplink has not
// heard yet that all have ended; then it waits.
void Relay::submit(Key key, Batch& batch) {
  const Round next = first_round(uplink_->uplink().inputs_generation() + 1);
  if (later_by(batch.round(), next) >= 0) return;
  const wire::Declare* const declared = declared_in(shelf_, key);
  if (declared == nullptr) return;
  // From now on it is declared before it is pushed, on each connection.
  uplink_->uplink().take_back(config_.placement.first_shard(key), wire::Kind::kDeclare, key);
  batch.is_submitted = true;
  submitted_[++last_handle_] = {key, &batch};
  uplink_->submit({.handle = HandleId(last_handle_),
                   .name = declared->name,
                   .spec = static_cast<const Spec&>(*declared),
                   .input = {},
                   .output = {},
                   .priority = batch.priority,
                   .cargo = &batch,
                   .round = stands_in_ ? std::optional(batch.round()) : std::nullopt});
  if (stands_in_) Taking{*this}.take_all_had(key, batch, false);
}

void Relay::submit_held() {
  for (auto& [key, batches] : batches_) {
    for (const auto& batch : batches) {
      if (!batch->is_submitted && batch->has_ready_frames()) submit(key, *batch);
    }
  }
}

void Relay::drop_unsubmitted(Key key) {
  const auto found = batches_.find(key);
  if (found == batches_.end()) return;
  std::erase_if(found->second, [](const auto& batch) { return !batch->is_submitted; });
}

// ---- the servers

Status Relay::on_answer(ShardIndex shard, const wire::Header& header,
                        std::span<const std::byte> payload) {
  const Status fine = uplink_->on_answer(shard, header, payload);
  note_settled();
  absorb();
  settle();
  return fine;
}

// What all of other machines have.
void Relay::note_settled() {
  for (const KeptSums::Settled& each : uplink_->uplink().take_settled()) {
    shelf_.settled_above(each.key, each.part, each.offset_bytes, each.round);
  }
}

void Relay::on_recovery(ShardIndex shard, const wire::Header& header) {
  // It may hear so of what its crew have not all given up here yet, and other shards have not heard.
  const bool is_known = uplink_->uplink().is_forgetting(header.key);
  uplink_->on_recovery(shard, header);
  note_settled();
  if (header.kind == wire::Kind::kForgotten && config_.duties.waits_for_crew && is_known) {
    Taking{*this}.end_forgotten(header.key);
  }
}

void Relay::answered(const wire::Header& header, std::span<const std::byte> payload) {
  shelf_.answered(header, payload, fresh_);
}

void Relay::on_wanted(ShardIndex shard, const wire::Header& header) {
  if (header.epoch != config_.epoch) return;
  uplink_->on_wanted(shard, header);
  if (PLANTED(wanted_not_passed_on)) return;
  shelf_.want(header.key, header.part, header.round, header.offset_bytes, fresh_);
  absorb();
}

// All here have contributed, and wait for others.
void Relay::on_missing(const wire::Header& header, const Members& whom) {
  if (header.epoch != config_.epoch) return;
  const wire::Declare* const declared = declared_in(shelf_, header.key);
  if (declared == nullptr) return;
  const Groups& groups = *config_.groups;
  down_.emplace_back(
      ShelfOutput::Missing{.to = groups.crew_of(groups.group_of(config_.self), declared->members),
                           .key = header.key,
                           .part = header.part,
                           .round = header.round,
                           .ranks = whom.some()});
}

void Relay::on_mismatch(Key key, const Status& why) {
  mismatches_.try_emplace(key, why);
  uplink_->on_mismatch(key, why);
  // Whoever declares it to another relay only may find that one gone.
  if (declared_in(shelf_, key) == nullptr) {
    down_.emplace_back(
        ShelfOutput::Spoiled{std::nullopt, key, why.code(), why.message(), why.cause()});
  }
  shelf_.give_up(key, why, fresh_);
  absorb();
  settle();
}

void Relay::on_inputs_done(ShardIndex shard, const wire::Header& header) {
  uplink_->on_inputs_done(shard, header);
  if (uplink_->inputs().awaits_operations()) {
    Taking{*this}.end_operations_before(first_round(header.round.value));
  }
  if (inputs_handle_ && !inputs_were_heard_ && uplink_->uplink().inputs_are_heard()) {
    inputs_were_heard_ = true;
    shelf_.inputs_are_heard(uplink_->uplink().inputs_generation(), fresh_);
  }
  settle();
  absorb();
}

void Relay::on_sent(SendToken token) {
  uplink_->on_sent(token);
  settle();
}

void Relay::hand_on() {
  for (WorkerRank each(0); each.value < config_.groups->worker_count(); ++each.value) {
    shelf_.leave(each, is_alone() ? down_ : fresh_);
  }
  if (!is_alone()) absorb();
}

void Relay::fail_all(const Status& status) {
  if (is_alone()) return;
  uplink_->fail_all(status);
  settle();
}

// What has ended.
void Relay::settle() {
  while (!uplink_->outputs().empty()) {
    const PipelineOutputs outputs = uplink_->outputs();
    uplink_->clear_outputs();
    for (const auto& output : outputs) {
      if (const auto* const end = std::get_if<PipelineOutput::Complete>(&output)) {
        end_batch(end->handle, end->status);
      } else if (const auto* const tuned = std::get_if<PipelineOutput::Tuned>(&output)) {
        tuned_.push_back(*tuned);
      } else if (const auto* const notice = std::get_if<PipelineOutput::Notice>(&output)) {
        notices_.push_back(*notice);
      }
    }
  }
}

void Relay::end_batch(HandleId handle, const Status& status) {
  if (inputs_handle_ == handle.value) return end_inputs(status);
  const auto found = submitted_.find(handle.value);
  const Submitted ended = found->second;
  submitted_.erase(found);
  const auto batches = batches_.find(ended.key);
  std::erase_if(batches->second, [&](const auto& batch) { return batch.get() == ended.batch; });
  if (batches->second.empty() && declared_in(shelf_, ended.key) == nullptr) batches_.erase(batches);
  if (status.is_ok()) return;
  shelf_.give_up(ended.key, status, fresh_);
  absorb();
}

// Nobody in the job has more: the next generation begins. With an error: this job has ended.
void Relay::end_inputs(const Status& status) {
  inputs_handle_.reset();
  if (!status.is_ok()) return;
  if (stands_in_) {  // who is lost has no more in any generation
    inputs_handle_ = ++last_handle_;
    uplink_->finish_inputs(HandleId(*inputs_handle_), 0);
  }
  shelf_.begin_inputs(uplink_->uplink().inputs_generation(), uplink_->inputs().last(), fresh_);
  absorb();
  submit_held();
}

// ---- time

void Relay::tick(TimeNs now) {
  if (is_alone()) return shelf_.tick(now, down_);
  uplink_->begin_turn(now);
  shelf_.tick(now, fresh_);
  absorb();
  uplink_->tick();
  settle();
}

TimeNs Relay::next_deadline() const {
  return is_alone() ? shelf_.next_deadline()
                    : std::min(shelf_.next_deadline(), uplink_->next_deadline());
}

// ---- the stage

void Relay::Reduce::enter(PartRef part, Tensor& tensor, TimeNs /*now*/) {
  const Batches& batches = relay_.batches_[tensor.key];
  const auto batch = std::find_if(batches.begin(), batches.end(),
                                  [&](const auto& each) { return each->round() == tensor.round; });
  if (batch != batches.end() && (*batch)->ready_frames(part.part) > 0) ready_.push_back(part);
}

void Relay::Reduce::abandon(PartRef part, Tensor& /*tensor*/) {
  std::erase_if(ready_, [&](const PartRef& each) {
    return each.tensor == part.tensor && each.part == part.part;
  });
}

void Relay::Reduce::tick(TimeNs /*now*/, StageOutput& out) {
  out.leaving.insert(out.leaving.end(), ready_.begin(), ready_.end());
  ready_.clear();
}

}  // namespace byteps
