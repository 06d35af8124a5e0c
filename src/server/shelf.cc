#include "server/shelf.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <sstream>
#include <utility>

#include "base/check.h"
#include "base/planted.h"
#include "server/declaration.h"
#include "server/worker_bits.h"

namespace byteps {

Shelf::Shelf(const ShelfSettings& settings, BufferPool& pool)
    : settings_(settings),
      alarms_(settings.wanted_ns),
      inventory_(settings_, pool, alarms_),
      summing_(inventory_) {}

void Shelf::end_epoch() {
  inventory_.clear();
  facts_ = {};
}

Status Shelf::begin_epoch(const ShelfEpoch& facts) {
  end_epoch();
  std::ostringstream wrong;
  if (facts.worker_count == 0 || facts.worker_count > kWorkersMax) {
    wrong << facts.worker_count << " workers; 1 to " << kWorkersMax << " can be served";
  } else if (facts.placement->frame_bytes() > kPayloadBytesMax) {
    wrong << "frames of " << facts.placement->frame_bytes() << " bytes; they must have at most "
          << kPayloadBytesMax;
  } else if (facts.placement->partition_bytes() / facts.placement->frame_bytes() >=
             kFramesPerPartMax) {
    wrong << "parts of " << facts.placement->partition_bytes() << " bytes; they must be below "
          << kFramesPerPartMax << " frames of " << facts.placement->frame_bytes() << " bytes";
  } else {
    facts_ = facts;
    if (!facts_.groups) {
      facts_.groups = std::make_shared<const Groups>(Groups::apart(facts.worker_count));
    }
    CHECK_EQ(facts_.groups->worker_count(), facts.worker_count);
    missing_.assign(bit_words_of(facts.worker_count), 0);
    generations_.begin_epoch(facts.worker_count);
    return Status::ok();
  }
  return {Code::kInvalidArgument, "the roster cannot be served: " + wrong.str()};
}

void Shelf::connect(WorkerRank worker, ShelfOutputs& out) {
  CHECK_LT(worker.value, facts_.worker_count);
  for (const auto& [key, tensor] : inventory_.tensors()) {
    clear_bit(tensor->declared_here, worker);
    if (tensor->spoiled != Code::kOk) {
      out.emplace_back(ShelfOutput::Spoiled{worker, key, tensor->spoiled, tensor->spoiled_text});
    }
  }
}

void Shelf::step(WorkerRank from, const wire::Header& header, std::span<const std::byte> payload,
                 TimeNs now, ShelfOutputs& out) {
  CHECK_LT(from.value, facts_.worker_count);
  try {
    dispatch(from, header, payload, now, out);
  } catch (const std::bad_alloc&) {
    out_of_memory(header.key, out);
  }
}

void Shelf::dispatch(WorkerRank from, const wire::Header& header,
                     std::span<const std::byte> payload, TimeNs now, ShelfOutputs& out) {
  if (header.worker != from) return violation(from, "a message in the name of another rank", out);
  if (facts_.relay && facts_.groups->group_of(from) != facts_.groups->group_of(*facts_.relay)) {
    return violation(from, "a message to the relay of another machine", out);
  }
  const std::int32_t ahead = later_by(header.epoch, facts_.epoch);
  if (ahead > 0) return violation(from, "a message of an epoch that has not begun", out);
  if (ahead < 0) return;  // late, of a job that is over
  switch (header.kind) {
    case wire::Kind::kPush:
      return push(from, header, payload, now, out);
    case wire::Kind::kDeclare:
      return declare(from, header, payload, out);
    case wire::Kind::kForget:
      if (facts_.relay) break;  // it would have to go on to the servers
      return forget(from, header.key);
    case wire::Kind::kInputs:
      if (facts_.relay) break;
      return inputs(from, header, out);
    default:
      break;
  }
  violation(from, "a message of a kind that workers do not send here", out);
}

void Shelf::violation(WorkerRank from, std::string text, ShelfOutputs& out) const {
  out.emplace_back(ShelfOutput::Violation{from, std::move(text)});
}

void Shelf::out_of_memory(Key key, ShelfOutputs& out) {
  TensorSum* const tensor = inventory_.find(key);
  const std::size_t used = inventory_.used_bytes();
  if (tensor != nullptr) {  // first, or there may be no memory for words
    inventory_.drop_parts(*tensor);
    inventory_.trim();
  }
  const std::string text = inventory_.out_of_memory_text(used);
  if (tensor == nullptr) {
    out.emplace_back(ShelfOutput::Failure{{Code::kSystem, text, {.kind = CauseKind::kNoMemory}}});
    return;
  }
  spoil(*tensor, Code::kSystem,
        "tensor " + quoted_name(tensor->declared.name) + " " + described(tensor->declared) + ": " +
            text + ". Use more servers, or servers with more memory",
        out);
}

// ---- tensors

void Shelf::declare(WorkerRank from, const wire::Header& header, std::span<const std::byte> payload,
                    ShelfOutputs& out) {
  Result<wire::Declare> decoded = wire::decode_declare(payload);
  if (!decoded.is_ok()) return violation(from, "a declaration: " + decoded.status().message(), out);
  wire::Declare& declared = decoded.value();
  const std::string flaw =
      flaw_of(declared, header.key, from, facts_.worker_count, *facts_.placement);
  if (!flaw.empty()) {
    return violation(from, "a declaration of " + quoted_name(declared.name) + ": " + flaw, out);
  }

  TensorSum* const known = inventory_.find(header.key);
  if (known == nullptr) return make_tensor(from, header.key, std::move(declared), out);
  TensorSum& tensor = *known;
  set_bit(tensor.declared_here, from);
  if (tensor.declared.members.has(from)) set_bit(tensor.declared_ever, from);
  if (tensor.spoiled != Code::kOk) {
    if (PLANTED(mismatch_untold)) return;
    out.emplace_back(ShelfOutput::Spoiled{from, tensor.key, tensor.spoiled, tensor.spoiled_text});
  } else if (tensor.declared != declared) {
    spoil(tensor, Code::kMismatch,
          difference_text(tensor.declared_by, tensor.declared, from, declared), out);
  } else if (has_bit(tensor.forgotten, from)) {
    std::ostringstream text;
    text << "tensor " << quoted_name(declared.name) << ": " << from
         << " uses again a name that it said it would use once, and others still use it";
    spoil(tensor, Code::kInvalidArgument, text.str(), out);
  }
}

void Shelf::make_tensor(WorkerRank from, Key key, wire::Declare declared, ShelfOutputs& out) {
  if (std::string flaw = inventory_.flaw_of_another(declared, facts_); !flaw.empty()) {
    out.emplace_back(ShelfOutput::Failure{{Code::kSystem, std::move(flaw)}});
    return;
  }
  TensorSum& tensor = inventory_.make(key, from, std::move(declared), facts_);
  set_bit(tensor.declared_here, from);
  set_bit(tensor.declared_ever, from);
}

void Shelf::spoil(TensorSum& tensor, Code code, std::string text, ShelfOutputs& out) {
  inventory_.drop_parts(tensor);
  tensor.spoiled = code;
  tensor.spoiled_text = std::move(text);
  out.emplace_back(ShelfOutput::Spoiled{std::nullopt, tensor.key, code, tensor.spoiled_text});
}

void Shelf::give_up(Key key, const Status& why, ShelfOutputs& out) {
  TensorSum* const tensor = inventory_.find(key);
  if (tensor != nullptr && tensor->spoiled == Code::kOk) {
    spoil(*tensor, why.code(), why.message(), out);
  }
}

const wire::Declare* Shelf::declared(Key key) const {
  const TensorSum* const tensor = inventory_.find(key);
  return tensor == nullptr ? nullptr : &tensor->declared;
}

void Shelf::forget(WorkerRank from, Key key) {
  TensorSum* const tensor = inventory_.find(key);
  if (tensor == nullptr) return;  // all have forgotten it: a repeat
  if (!tensor->declared.members.has(from)) return;
  set_bit(tensor->forgotten, from);
  if (is_forgotten(*tensor)) inventory_.drop(*tensor);
}

// By all who have declared it, of each crew one at least; who has no more inputs need not say it. (Of a crew, those
// who lead no part here declare nothing.)
bool Shelf::is_forgotten(const TensorSum& tensor) const {
  std::vector<std::uint64_t> done = tensor.forgotten;
  for (std::size_t word = 0; word < done.size(); ++word) done[word] |= generations_.no_more()[word];
  return count_bits_without(tensor.declared_ever, done) == 0 &&
         tensor.contributors->has_one_of_each(done);
}

// ---- the end of inputs

void Shelf::inputs(WorkerRank from, const wire::Header& header, ShelfOutputs& out) {
  const std::uint32_t generation = header.round.value;
  const bool no_more = (header.flags & wire::kNoMore) != 0;
  const std::optional<std::int32_t> ahead = generations_.hear(from, generation, no_more);
  if (!ahead) {
    std::ostringstream text;
    text << "inputs of generation " << generation << ", while generation " << generations_.number()
         << " is summed";
    return violation(from, text.str(), out);
  }
  if (!no_more) return;
  const auto say = [&](std::optional<WorkerRank> to, WorkerRank last) {
    out.emplace_back(ShelfOutput::InputsDone{to, generations_.number(), last});
  };
  if (*ahead > 0) begin_by_word_of(generation, from, out);
  if (*ahead < 0) return say(from, generations_.last());  // it has not heard that all are done
  if (generations_.has_no_more(from)) return say(from, from);
  if (generations_.finish(from)) {
    restart_tensors(generations_.begin(generations_.number() + 1, from));
    return say(std::nullopt, generations_.last());
  }
  say(from, from);
  for (auto at = inventory_.tensors().begin(); at != inventory_.tensors().end();) {
    TensorSum& tensor = *(at++)->second;
    if (tensor.declared.members.has(from)) finish_without(tensor, out);
  }
}

// One contributor less is awaited: what waited for it alone is finished.
void Shelf::finish_without(TensorSum& tensor, ShelfOutputs& out) {
  for (const auto& [index, part] : tensor.parts) {
    for (std::uint32_t frame = 0; frame < part->frames.size(); ++frame) {
      if (!part->frames[frame].is_begun() || !is_complete(*part, frame)) continue;
      try {
        finish(*part, frame, out);
      } catch (const std::bad_alloc&) {
        out_of_memory(tensor.key, out);
      }
      if (tensor.spoiled != Code::kOk) return;
    }
  }
  if (has_any_bit(tensor.forgotten) && is_forgotten(tensor)) inventory_.drop(tensor);
}

// Whether all have contributed who may have inputs. Who has no more may have contributed as well, to what has failed.
bool Shelf::is_complete(const PartSum& part, std::uint32_t frame_index) const {
  const TensorSum& tensor = *part.tensor;
  const std::uint32_t count = tensor.contributors->count();
  if (generations_.no_more_count() == 0) {
    return part.frames[frame_index].contributed == count;
  }
  const std::span bits = part.bits_of(frame_index);
  bool any = false;
  for (std::uint32_t place = 0; place < count; ++place) {
    const WorkerRank each = tensor.contributors->at(place, tensor.key, part.index);
    if (generations_.has_no_more(each)) continue;
    if (!has_bit(bits, each)) return false;
    any = true;
  }
  return any;
}

// Sums are lost already, by another's word. Nobody must wait for them.
void Shelf::look_for_contradiction(WorkerRank from, const wire::Header& header, ShelfOutputs& out) {
  const auto untrue = generations_.contradict_late(from, header.round);
  TensorSum* const tensor = untrue ? inventory_.find(header.key) : nullptr;
  if (tensor == nullptr || tensor->spoiled != Code::kOk) return;
  if (later_by(header.round, tensor->next_round) < 0) return;  // a repeat
  violation(untrue->by, untrue->text, out);
  spoil(*tensor, Code::kMismatch,
        "tensor " + quoted_name(tensor->declared.name) + ": " + untrue->text, out);
}

namespace {

// That all frames have come to at least.
Round next_round_of(const TensorSum& tensor, Round first) {
  Round next = first;
  bool any = false;
  for (const auto& [index, part] : tensor.parts) {
    for (const FrameSum& frame : part->frames) {
      if (!any || later_by(frame.round, next) < 0) next = frame.round;
      any = true;
    }
  }
  return next;
}

}  // namespace

// The next generation, because one worker says that nobody has more in this one. Who has contributed here to what is
// incomplete, and has not said so itself, may wait for it still: on a new connection it pushes that again, which shows
// that the word was untrue. If its operation has ended, there is nothing to push again.
void Shelf::begin_by_word_of(std::uint32_t generation, WorkerRank by, ShelfOutputs& out) {
  std::vector<std::uint64_t> contributed(bit_words_of(facts_.worker_count), 0);
  for (const auto& [key, tensor] : inventory_.tensors()) {
    for (const auto& [index, part] : tensor->parts) {
      for (std::size_t frame = 0; frame < part->frames.size(); ++frame) {
        if (part->frames[frame].contributed == 0) continue;
        const std::span bits = part->bits_of(frame);
        for (std::size_t word = 0; word < bits.size(); ++word) contributed[word] |= bits[word];
      }
    }
  }
  for (WorkerRank worker(0); worker.value < facts_.worker_count; ++worker.value) {
    if (worker == by || !has_bit(contributed, worker) || generations_.has_no_more(worker)) continue;
    std::ostringstream text;
    text << by << " says that nobody has more inputs in generation " << generations_.number()
         << "; say again what you wait for";
    out.emplace_back(ShelfOutput::Renew{worker, text.str()});
  }
  restart_tensors(generations_.begin_by_word_of(generation, by));
}

// A generation of inputs begins: all operations have ended everywhere. What somebody has forgotten is not used again.
void Shelf::restart_tensors(Round former_first) {
  for (auto at = inventory_.tensors().begin(); at != inventory_.tensors().end();) {
    TensorSum& tensor = *(at++)->second;
    tensor.next_round = next_round_of(tensor, former_first);
    inventory_.drop_parts(tensor);
    if (has_any_bit(tensor.forgotten)) inventory_.drop(tensor);
  }
}

// ---- frames

void Shelf::push(WorkerRank from, const wire::Header& header, std::span<const std::byte> payload,
                 TimeNs now, ShelfOutputs& out) {
  if (generations_.begins(from, header.round)) {
    begin_by_word_of(generations_.heard_of(from), from, out);
  }
  PartSum* const known = inventory_.find(header.key, header.part);
  PartSum* const part = known != nullptr ? known : open_part(from, header, out);
  if (part == nullptr) return;
  const char* flaw = flaw_of_push(*part, from, header, payload.size());
  if (flaw != nullptr) {
    std::ostringstream text;
    text << "a push of tensor " << quoted_name(part->tensor->declared.name) << ", " << header.part
         << ", offset " << header.offset_bytes << ", " << payload.size() << " bytes: " << flaw;
    return violation(from, text.str(), out);
  }

  const auto frame_index = static_cast<std::uint32_t>(header.offset_bytes / part->frame_bytes);
  const std::int32_t ahead = later_by(header.round, part->frames[frame_index].round);
  if (ahead == 0) {
    if (auto untrue = generations_.contradict(from)) {
      violation(untrue->by, std::move(untrue->text), out);
    }
    part->landings[from.value] = header.landing;
    contribute(*part, frame_index, from, payload, now, out);
  } else if (ahead > 0 || facts_.relay) {  // I11
    std::ostringstream text;
    text << "a push of tensor " << quoted_name(part->tensor->declared.name) << ", " << header.part
         << ", " << header.round << ", while " << part->frames[frame_index].round
         << " is being summed";
    violation(from, text.str(), out);
  } else if (ahead == -1) {
    if (PLANTED(mean_divided_twice) && part->tensor->kernels.in_place()) {
      const std::span sum = part->frames[frame_index].finished.span().first(payload.size());
      part->tensor->kernels.finish(sum, sum, part->tensor->finishing);
    }
    const LandingTag landing = PLANTED(repeat_lands_again) ? header.landing : kNoLanding;  // I9
    answer(*part, frame_index, from, landing, out);
  } else {  // earlier still: all have that sum
    look_for_contradiction(from, header, out);
  }
}

void Shelf::expect(Key key, PartIndex part_index, int distance) const {
  if (distance == kFarthest) return inventory_.prefetch(key, part_index);
  const PartSum* const found = inventory_.find(key, part_index);
  if (found == nullptr) return;
  const PartSum& part = *found;
  if (distance == kFarthest - 1) {
    const auto* const record = reinterpret_cast<const std::byte*>(&part);
    for (std::size_t at = 0; at < sizeof(PartSum); at += 64) __builtin_prefetch(record + at);
  } else if (distance == kFarthest - 2) {
    __builtin_prefetch(part.frames.data());
    __builtin_prefetch(part.bits.data());
    __builtin_prefetch(part.landings.data());
    __builtin_prefetch(part.tensor);
  } else {
    __builtin_prefetch(part.tensor->declared_here.data());
    part.frames.front().finished.prefetch();
    part.frames.front().accumulator.prefetch();
  }
}

// The record of a part that has none. nullptr: the push goes no further.
PartSum* Shelf::open_part(WorkerRank from, const wire::Header& header, ShelfOutputs& out) {
  TensorSum* const found = inventory_.find(header.key);
  if (found == nullptr) {
    violation(from, "a push of a tensor that nobody declared", out);
    return nullptr;
  }
  TensorSum& tensor = *found;
  if (!has_bit(tensor.declared_here, from)) {
    violation(from,
              "a push of tensor " + quoted_name(tensor.declared.name) +
                  " without a declaration on this connection",
              out);
    return nullptr;
  }
  if (tensor.spoiled != Code::kOk) return nullptr;  // everyone was told
  if (header.part.value >= tensor.part_count) {
    std::ostringstream text;
    text << "a push of tensor " << quoted_name(tensor.declared.name) << ", " << header.part
         << " of " << tensor.part_count;
    violation(from, text.str(), out);
    return nullptr;
  }
  if (facts_.relay && tensor.contributors->leader(tensor.key, header.part) != *facts_.relay) {
    violation(from,
              "a push of tensor " + quoted_name(tensor.declared.name) +
                  " to a relay that does not lead its part",
              out);
    return nullptr;
  }
  return &inventory_.make_part(tensor, header.part, generations_.first_round(), facts_);
}

// nullptr: the push is one that a worker may send, whatever its round.
const char* Shelf::flaw_of_push(const PartSum& part, WorkerRank from, const wire::Header& header,
                                std::size_t payload_bytes) const {
  const TensorSum& tensor = *part.tensor;
  if (!has_bit(tensor.declared_here, from)) return "it was not declared on this connection";
  if (generations_.has_no_more(from) && later_by(header.round, generations_.first_round()) >= 0 &&
      later_by(header.round, part.frames[0].round) >= 0) {
    return "it has said that it has no more inputs";
  }
  if (header.offset_bytes % part.frame_bytes != 0) return "no frame starts there";
  const std::uint64_t frame_index = header.offset_bytes / part.frame_bytes;
  if (frame_index >= part.frames.size()) return "the part ends before";
  if (!tensor.contributors->place_of(from, tensor.key, part.index)) {
    return "another worker of its machine leads this part";
  }
  const bool without =
      tensor.is_broadcast && !tensor.contributors->speaks_for(from, tensor.declared.root);
  if (header.flags != (without ? wire::kNoPayload : 0)) return "the flags are wrong";
  const std::size_t expected_bytes =
      without ? 0 : part.frame_length(static_cast<std::uint32_t>(frame_index));
  if (payload_bytes != expected_bytes) return "the payload has another length than the frame";
  return nullptr;
}

void Shelf::contribute(PartSum& part, std::uint32_t frame_index, WorkerRank from,
                       std::span<const std::byte> payload, TimeNs now, ShelfOutputs& out) {
  FrameSum& frame = part.frames[frame_index];
  const std::span bits = part.bits_of(frame_index);
  if (has_bit(bits, from) && !PLANTED(repeat_counted_twice)) return;  // a repeat
  const TimeNs begun_ns = part.timeline ? part.timeline->begin(frame.round, frame_index) : 0;

  if (!payload.empty()) {
    const TensorSum& tensor = *part.tensor;
    const auto place = tensor.contributors->place_of(from, tensor.key, part.index);
    summing_.add(part, frame_index, *place, payload);
  }
  if (part.timeline) part.timeline->on_added(from, frame_index, begun_ns);
  set_bit(bits, from);
  if (frame.contributed++ == 0) {
    if (PLANTED(last_sum_forgotten)) frame.finished = {};
    frame.since_ns = now;
    inventory_.begin_frame(part);
  }
  if (is_complete(part, frame_index)) {
    finish(part, frame_index, out);
  } else if (frame.contributed == 1) {
    alarms_.watch(part, frame);
  }
}

void Shelf::finish(PartSum& part, std::uint32_t frame_index, ShelfOutputs& out) {
  const TensorSum& tensor = *part.tensor;
  if (generations_.no_more_count() > 0) {
    const auto has_bringer = [&] {
      return !generations_.has_no_more(
          tensor.contributors->speaker_of(tensor.declared.root, tensor.key, part.index));
    };
    if (tensor.is_broadcast && !has_bringer()) {
      std::ostringstream text;
      text << "tensor " << quoted_name(tensor.declared.name) << ' ' << described(tensor.declared)
           << ": " << tensor.declared.root << " has said that it has no more inputs";
      return spoil(*part.tensor, Code::kMismatch, text.str(), out);
    }
    summing_.add_held(part, frame_index);
  }
  if (facts_.relay) return forward(part, frame_index, out);
  summing_.finish(part, frame_index);
  inventory_.end_frame(part);
  end_round(part, frame_index, out);
}

// The next round of a frame begins: all are answered.
void Shelf::end_round(PartSum& part, std::uint32_t frame_index, ShelfOutputs& out) {
  FrameSum& frame = part.frames[frame_index];
  const TensorSum& tensor = *part.tensor;
  const std::span bits = part.bits_of(frame_index);
  std::fill(bits.begin(), bits.end(), 0);
  frame.contributed = 0;
  ++frame.round.value;
  // Each frame's answers begin with another worker, or the last one would be last with all of them.
  const std::uint64_t first = part.index.value + std::uint64_t{frame_index};
  const std::uint32_t count = tensor.contributors->count();
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto place = static_cast<std::uint32_t>((first + i) % count);
    const WorkerRank to = tensor.contributors->at(place, tensor.key, part.index);
    if (generations_.has_no_more(to)) continue;
    answer(part, frame_index, to, part.landings[to.value], out);
  }
  if (part.timeline) part.timeline->on_frame_summed(Round(frame.round.value - 1));
}

// ---- a relay's frames

void Shelf::forward(PartSum& part, std::uint32_t frame_index, ShelfOutputs& out) {
  FrameSum& frame = part.frames[frame_index];
  const TensorSum& tensor = *part.tensor;
  const bool is_without =
      tensor.is_broadcast && !has_bit(part.bits_of(frame_index), tensor.declared.root);
  if (!is_without) summing_.finish(part, frame_index);
  inventory_.end_frame(part);
  frame.is_forwarded = true;
  auto& forward =
      std::get<ShelfOutput::Forward>(out.emplace_back(std::in_place_type<ShelfOutput::Forward>));
  forward.header.kind = wire::Kind::kPush;
  forward.header.flags = is_without ? wire::kNoPayload : 0;
  forward.header.epoch = facts_.epoch;
  forward.header.key = tensor.key;
  forward.header.part = part.index;
  forward.header.round = frame.round;
  forward.header.offset_bytes = frame_index * part.frame_bytes;
  forward.buffer = frame.finished;
  forward.payload_bytes = is_without ? 0 : part.frame_length(frame_index);
}

void Shelf::answered(const wire::Header& header, std::span<const std::byte> payload,
                     ShelfOutputs& out) {
  PartSum* const part = inventory_.find(header.key, header.part);
  if (part == nullptr || header.epoch != facts_.epoch) return;
  const std::uint64_t frame_index = header.offset_bytes / part->frame_bytes;
  if (frame_index >= part->frames.size()) return;
  FrameSum& frame = part->frames[frame_index];
  if (!frame.is_forwarded || frame.round != header.round) return;
  try {
    if (!payload.empty()) {
      frame.finished = inventory_.take(payload.size());
      std::memcpy(frame.finished.span().data(), payload.data(), payload.size());
    }
    frame.is_forwarded = false;
    end_round(*part, static_cast<std::uint32_t>(frame_index), out);
    frame.finished = {};  // I11
  } catch (const std::bad_alloc&) {
    out_of_memory(header.key, out);
  }
}

namespace {

// To all frames of that round.
bool has_contributed(const PartSum& part, WorkerRank worker, Round round) {
  for (std::size_t frame = 0; frame < part.frames.size(); ++frame) {
    const std::int32_t ahead = later_by(round, part.frames[frame].round);
    if (ahead > 0 || (ahead == 0 && !has_bit(part.bits_of(frame), worker))) return false;
  }
  return true;
}

}  // namespace

void Shelf::want(Key key, PartIndex part_index, Round round, ShelfOutputs& out) {
  const TensorSum* const tensor = inventory_.find(key);
  if (tensor == nullptr) {  // nobody has begun it here: whoever it is for will know
    for (const WorkerRank each :
         facts_.groups->crew_of(facts_.groups->group_of(*facts_.relay), Members())) {
      out.emplace_back(ShelfOutput::Wanted{each, key, part_index, round});
    }
    return;
  }
  if (part_index.value >= tensor->part_count) return;
  const PartSum* const part = inventory_.find(key, part_index);
  for (std::uint32_t place = 0; place < tensor->contributors->count(); ++place) {
    const WorkerRank each = tensor->contributors->at(place, key, part_index);
    if (generations_.has_no_more(each)) continue;
    if (part != nullptr && has_contributed(*part, each, round)) continue;
    out.emplace_back(ShelfOutput::Wanted{each, key, part_index, round});
  }
}

namespace {

// Whether this contributor's answers have a payload: who brings a broadcast has it already, and a root that alone gets
// the result is of one machine.
bool is_sent_to(const TensorSum& tensor, WorkerRank to) {
  if (!tensor.declared.has_root()) return true;
  return tensor.contributors->speaks_for(to, tensor.declared.root) == tensor.declared.root_only;
}

}  // namespace

// The finished sum of one frame to one worker.
void Shelf::answer(const PartSum& part, std::uint32_t frame_index, WorkerRank to,
                   LandingTag landing, ShelfOutputs& out) const {
  const FrameSum& frame = part.frames[frame_index];
  const TensorSum& tensor = *part.tensor;
  auto& answer =
      std::get<ShelfOutput::Answer>(out.emplace_back(std::in_place_type<ShelfOutput::Answer>));
  answer.header.kind = wire::Kind::kAnswer;
  answer.header.epoch = facts_.epoch;
  answer.header.key = tensor.key;
  answer.header.part = part.index;
  answer.header.round = Round(frame.round.value - 1);
  answer.header.offset_bytes = frame_index * part.frame_bytes;
  answer.header.worker = to;
  answer.header.landing = landing;
  answer.landing_offset = part.offset + answer.header.offset_bytes;
  if (!is_sent_to(tensor, to)) {
    answer.header.flags = wire::kNoPayload;
  } else {
    answer.buffer = frame.finished;
    answer.payload_bytes = part.frame_length(frame_index);
  }
}

// ---- asking for what is missing

void Shelf::tick(TimeNs now, ShelfOutputs& out) {
  while (const std::optional<Alarms::Due> due = alarms_.take_due(now)) {
    if (due->young != nullptr) {
      ring(*due->young, now, out);
      continue;
    }
    PartSum* const part = inventory_.find(due->key, due->part);
    if (part == nullptr || part->alarm_number != due->number) continue;
    part->alarm_due_ns = kNever;
    if (part->incomplete_count > 0) ring(*part, now, out);
  }
}

// Asks the workers that miss in an overdue frame of this part, and sets the next alarm.
void Shelf::ring(PartSum& part, TimeNs now, ShelfOutputs& out) {
  const FrameSum* oldest = nullptr;
  for (const FrameSum& frame : part.frames) {
    if (!frame.is_begun()) continue;
    if (oldest == nullptr || frame.since_ns < oldest->since_ns) oldest = &frame;
  }
  if (oldest == nullptr) return;
  if (oldest->since_ns + settings_.wanted_ns > now) {
    return alarms_.set(part, oldest->since_ns + settings_.wanted_ns);
  }

  std::fill(missing_.begin(), missing_.end(), 0);
  for (std::size_t i = 0; i < part.frames.size(); ++i) {
    const FrameSum& frame = part.frames[i];
    if (!frame.is_begun() || frame.round != oldest->round) continue;
    if (frame.since_ns + settings_.wanted_ns > now) continue;
    const std::span bits = part.bits_of(i);
    for (std::size_t word = 0; word < bits.size(); ++word) missing_[word] |= ~bits[word];
  }
  const Contributors& contributors = *part.tensor->contributors;
  for (std::uint32_t place = 0; place < contributors.count(); ++place) {
    const WorkerRank each = contributors.at(place, part.tensor->key, part.index);
    if (!has_bit(missing_, each) || generations_.has_no_more(each)) continue;
    out.emplace_back(ShelfOutput::Wanted{each, part.tensor->key, part.index, oldest->round});
  }

  if (oldest->since_ns + settings_.missing_ns <= now) tell_missing(part, *oldest, now, out);

  if (part.wanted_round != oldest->round) part.wanted_count = 0;
  part.wanted_round = oldest->round;
  const std::uint32_t doublings = std::min(++part.wanted_count, kWantedDoublings);
  if (PLANTED(wanted_once)) return;
  alarms_.set(part, now + std::max<TimeNs>(1, settings_.wanted_ns << doublings));
}

// One word for all parts of a tensor: which frame it names does not matter to those who read it. missing_ is as ring()
// left it.
void Shelf::tell_missing(const PartSum& part, const FrameSum& oldest, TimeNs now,
                         ShelfOutputs& out) {
  TensorSum& tensor = *part.tensor;
  ShelfOutput::Missing told;
  const std::size_t frame_index = static_cast<std::size_t>(&oldest - part.frames.data());
  const std::span bits = part.bits_of(frame_index);
  for (std::uint32_t place = 0; place < tensor.contributors->count(); ++place) {
    const WorkerRank each = tensor.contributors->at(place, tensor.key, part.index);
    if (generations_.has_no_more(each)) continue;
    if (has_bit(missing_, each)) told.ranks.push_back(each.value);
    if (has_bit(bits, each)) told.to.push_back(each);
  }
  if (told.ranks.empty()) return;
  std::sort(told.ranks.begin(), told.ranks.end());
  std::sort(told.to.begin(), told.to.end());
  const bool said = tensor.missing_told == told.ranks &&
                    now < tensor.missing_told_ns + settings_.missing_every_ns &&
                    tensor.missing_told_ns >= oldest.since_ns;
  if (said) return;
  tensor.missing_told = told.ranks;
  tensor.missing_told_ns = now;
  told.key = tensor.key;
  told.part = part.index;
  told.round = oldest.round;
  out.emplace_back(std::move(told));
}

}  // namespace byteps
