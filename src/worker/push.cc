#include "worker/push.h"

#include <algorithm>

#include "base/check.h"
#include "base/planted.h"

namespace byteps {
namespace {

constexpr std::size_t kWantedEarlyMax = 65536;  // beyond it all are dropped: shards repeat Wanted

// On this connection. Also false for some that have, after a connection was lost.
bool has_unanswered(const PartState& part) {
  return part.next_frame > part.answered_frames;
}

// One frame of a large part goes ahead, and the others wait for its answer behind the parts of which some frame is
// answered: those all workers have begun. Where workers are some milliseconds apart, who is ahead would else fill its
// credit with what nobody else has yet, and who is behind with what the first has left for that. Small parts go at
// once.
constexpr std::uint32_t kFewFrames = 4;

bool is_alone(const PartState& part) {
  return part.frame_count > kFewFrames && part.next_frame > 0 && part.answered_frames == 0;
}

std::uint64_t item_of(PartRef part) {
  return std::uint64_t{part.tensor} << 32 | part.part;
}

PartRef part_of_item(std::uint64_t item) {
  return {static_cast<TensorIndex>(item >> 32), static_cast<std::uint32_t>(item)};
}

constexpr std::uint64_t kAllOfIt = UINT64_MAX;

// Of the part, from its start.
std::uint64_t wanted_end_of(const wire::Header& header) {
  return header.offset_bytes == 0 ? kAllOfIt : header.offset_bytes;
}

// Not 0, which is no token.
SendToken token_of(PartRef part) {
  return SendToken{part.part} << 32 | (part.tensor + 1);
}

}  // namespace

// ---- the stage

void Push::enter(PartRef ref, Tensor& tensor, TimeNs /*now*/) {
  if (work_.timeline) work_.timeline->on_queued(ref.tensor, tensor, ref.part);
  PartState& part = tensor.parts[ref.part];
  if (part.ticket != Gate::kNoTicket || !has_next_frame(tensor, ref.part)) return;
  const Op& op = work_.operations[tensor.active];
  const Gate::Order order{.priority = op.priority,
                          .round = tensor.round,
                          .key = tensor.key,
                          .part = PartIndex(ref.part),
                          .submission = op.submission};
  const bool wanted = part.is_wanted(tensor.round);
  part.ticket = work_.shard_of(part).gate().add(order, wanted, item_of(ref));
  work_.shard_of(part).gate().set_alone(part.ticket, is_alone(part));
}

// Nothing more of it is sent, and what is unanswered no longer counts.
void Push::abandon(PartRef ref, Tensor& tensor) {
  PartState& part = tensor.parts[ref.part];
  ShardWay& shard = work_.shard_of(part);
  for (std::uint32_t frame = 0; frame < part.next_frame; ++frame) {
    if (tensor.is_answered(ref.part, frame)) continue;
    flow_.free(shard, credit_cost(tensor.payload_bytes(part, frame)),
               work_.operations[tensor.active].priority);
  }
  part.next_frame = 0;
  if (part.ticket != Gate::kNoTicket) shard.gate().remove(part.ticket);
  part.ticket = Gate::kNoTicket;
}

void Push::begin_round(Tensor& tensor) {
  auto found = wanted_early_.lower_bound({tensor.key, PartIndex(0)});
  while (found != wanted_early_.end() && found->first.first == tensor.key) {
    const std::uint32_t part = found->first.second.value;
    if (part < tensor.parts.size()) tensor.parts[part].want(found->second.round, found->second.end);
    found = wanted_early_.erase(found);
  }
}

bool Push::advance(Tensor& tensor, std::uint32_t index) {
  PartState& part = tensor.parts[index];
  while (part.next_frame < part.frame_count && tensor.is_answered(index, part.next_frame)) {
    ++part.next_frame;
  }
  if (part.ticket == Gate::kNoTicket || has_next_frame(tensor, index)) return false;
  work_.shard_of(part).gate().remove(part.ticket);
  part.ticket = Gate::kNoTicket;
  return part.next_frame == part.frame_count;
}

// Whether the next frame of this part can be sent, if there is one.
bool Push::has_next_frame(const Tensor& tensor, std::uint32_t index) const {
  const PartState& part = tensor.parts[index];
  return part.next_frame <
         (tensor.cargo == nullptr ? part.frame_count : tensor.cargo->ready_frames(index));
}

// The first frame that the shard misses is either on its way or the next to go. All of them at once would fill the
// queues on the way, and so make more parts late.
void Push::place(const Tensor& tensor, const PartState& part) {
  if (part.ticket == Gate::kNoTicket) return;
  Gate& gate = work_.shard_of(part).gate();
  gate.set_alone(part.ticket, is_alone(part));
  if (part.wanted_rounds <= tensor.round.value) return;
  gate.set_wanted(part.ticket, part.is_wanted(tensor.round) && !has_unanswered(part));
}

// ---- from the shards

void Push::forget_sent(const Tensor& tensor, PartState& part) {
  if (part.sent_frames <= part.answered_frames) return;
  part.want(tensor.round, part.sent_frames * part.frame_bytes);
  if (part.ticket != Gate::kNoTicket) work_.shard_of(part).gate().want(part.ticket);
}

void Push::on_wanted(ShardIndex shard, const wire::Header& header) {
  ++work_.counters.wanted_messages;
  if (header.epoch != work_.config.epoch || header.round.value == 0xffffffff) return;
  if (later_by(header.round, first_round(inputs_.generation())) < 0) return;  // of ended inputs
  const TensorIndex index = work_.tensors.find(header.key);
  if (index == kNoTensor) {
    if (wanted_early_.size() >= kWantedEarlyMax) wanted_early_.clear();
    Early& early = wanted_early_[{header.key, header.part}];
    const std::uint64_t end = wanted_end_of(header);
    early = {header.round, early.round == header.round ? std::max(early.end, end) : end};
    return;
  }
  Tensor& tensor = work_.tensors[index];
  if (header.part.value >= tensor.parts.size()) return;
  PartState& part = tensor.parts[header.part.value];
  if (part.shard != shard) return;
  part.want(header.round, wanted_end_of(header));
  place(tensor, part);
  if (part.wanted_rounds > tensor.round.value) road_.want({index, header.part.value}, tensor);
}

void Push::want_first_part(TensorIndex index) {
  Tensor& tensor = work_.tensors[index];
  PartState& first = tensor.parts[0];
  first.want(tensor.round, kAllOfIt);
  if (first.ticket != Gate::kNoTicket) work_.shard_of(first).gate().want(first.ticket);
  road_.want({index, 0}, tensor);
}

bool Push::on_sent(SendToken token) {
  if (token < kWordToken) return false;
  lent_words_.erase(token);
  return true;
}

PartRef Push::part_of(SendToken token) {
  return {static_cast<TensorIndex>(token) - 1, static_cast<std::uint32_t>(token >> 32)};
}

std::vector<wire::NotBegun> Push::not_begun(std::size_t count_max) const {
  std::vector<wire::NotBegun> rounds;
  for (TensorIndex index = 0; index < work_.tensors.slot_count(); ++index) {
    const Tensor& tensor = work_.tensors[index];
    if (tensor.active != kNoOp) continue;
    std::uint32_t wanted_rounds = 0;
    for (const PartState& part : tensor.parts) {
      wanted_rounds = std::max(wanted_rounds, part.wanted_rounds);
    }
    if (wanted_rounds <= tensor.round.value) continue;
    rounds.push_back({tensor.key, wanted_rounds - 1});
    if (rounds.size() == count_max) return rounds;
  }
  for (const auto& [place, early] : wanted_early_) {
    const wire::NotBegun wanted{place.first, early.round.value};
    if (!rounds.empty() && rounds.back() == wanted) continue;  // another part of it
    rounds.push_back(wanted);
    if (rounds.size() == count_max) break;
  }
  return rounds;
}

// ---- to the shards

bool Push::front(ShardIndex index, Outgoing& message) {
  ShardWay& shard = work_.shards[index.value];
  if (!shard.is_up()) return false;
  staged_shard_ = index;
  message = Outgoing{};
  message.header = staged_header_;
  wire::Header header;
  header.epoch = work_.config.epoch;
  header.worker = work_.config.self;
  if (!stage_control(index, header, message) && !stage_tensor(shard, header, message) &&
      !stage_ack(index, header)) {
    return false;
  }
  staged_header_ = wire::encode(header);
  return true;
}

bool Push::stage_control(ShardIndex index, wire::Header& header, Outgoing& message) {
  const ShardWay& shard = work_.shards[index.value];
  if (kept_.is_telling(index)) {
    if (stage_inputs(index, true, header)) return true;
    if (const std::shared_ptr<const Word> kept = kept_.next(index)) {
      stage_word(*kept, header, message);
      staged_ = Staged::kKept;
      return true;
    }
  }
  if (const std::shared_ptr<const Word> said = shard.next_word()) {
    stage_word(*said, header, message);
    staged_ = Staged::kWord;
    return true;
  }
  if (const Key* const key = shard.next_forget()) {
    header.kind = wire::Kind::kForget;
    header.key = *key;
    staged_ = Staged::kForget;
    return true;
  }
  return stage_inputs(index, false, header);
}

// Where no push says it.
bool Push::stage_ack(ShardIndex shard, wire::Header& header) {
  if (!kept_.owes_ack(shard)) return false;
  header.kind = wire::Kind::kAck;
  header.count = kept_.came(shard);
  staged_ = Staged::kAck;
  return true;
}

void Push::stage_word(const Word& word, wire::Header& header, Outgoing& message) {
  header.kind = word.kind;
  header.flags = word.flags;
  header.key = word.key;
  header.part = word.part;
  header.round = word.round;
  header.offset_bytes = word.offset_bytes;
  if (word.kind == wire::Kind::kPush) header.count = kept_.came(staged_shard_);
  message.payload = word.payload;
  message.bulk = word.kind == wire::Kind::kPush;
  message.token = ++last_word_;
}

// `before_sums`: which generation the worker is in. That it has no more inputs counts behind what sums it has.
bool Push::stage_inputs(ShardIndex index, bool before_sums, wire::Header& header) {
  const std::uint64_t word = inputs_.word_for(index);
  const std::uint64_t told = work_.shards[index.value].inputs_told();
  if (before_sums ? word == 0 || told != 0 : word == told) return false;
  header.kind = wire::Kind::kInputs;
  header.round = Round(inputs_.generation());
  header.flags = Inputs::flags_of(word);
  staged_inputs_ = word;
  if (before_sums) {
    staged_inputs_ = kInputsBefore;
    if (header.flags != 0) header.flags = wire::kEnding;
  }
  header.offset_bytes = inputs_.rounds();
  if (inputs_.generation() > 0) header.tag = static_cast<std::uint32_t>(inputs_.last().value + 1);
  staged_ = Staged::kInputs;
  return true;
}

bool Push::stage_tensor(ShardWay& shard, wire::Header& header, Outgoing& message) {
  if (shard.gate().empty()) return false;
  staged_part_ = part_of_item(shard.gate().front_item());
  Tensor& tensor = work_.tensors[staged_part_.tensor];
  const PartState& part = tensor.parts[staged_part_.part];
  const std::uint32_t frame = part.next_frame;
  staged_bytes_ = TensorTable::frame_bytes(part, frame);
  staged_cost_ = credit_cost(tensor.payload_bytes(part, frame));
  if (!shard.gate().may_pass(staged_cost_)) {
    flow_.on_blocked(shard, staged_cost_);
    return false;
  }
  header.key = tensor.key;
  message.token = token_of(staged_part_);
  if (declared_on(tensor) == shard.connection()) {
    stage_frame(tensor, frame, header, message);
  } else {
    header.kind = wire::Kind::kDeclare;
    message.payload = tensor.declaration;
    staged_ = Staged::kDeclare;
  }
  return true;
}

void Push::stage_frame(Tensor& tensor, std::uint32_t frame, wire::Header& header,
                       Outgoing& message) {
  const Op& op = work_.operations[tensor.active];
  const PartState& part = tensor.parts[staged_part_.part];
  header.kind = wire::Kind::kPush;
  header.part = PartIndex(staged_part_.part);
  header.round = tensor.round;
  header.offset_bytes = frame * part.frame_bytes;
  header.tag = Operations::tag_of(tensor.active);
  header.count = kept_.came(staged_shard_);
  header.priority = op.priority;
  if (!work_.gives(tensor.spec)) {
    header.flags = wire::kNoPayload;
  } else if (tensor.cargo != nullptr) {
    message.payload = tensor.cargo->frame(staged_part_.part, frame);
    header.flags = tensor.cargo->note(staged_part_.part, frame).flags;
  } else {
    message.payload = op.input.subspan(part.offset + header.offset_bytes, staged_bytes_);
  }
  staged_element_bytes_ = message.payload.size();
  if (tensor.codes != nullptr && !message.payload.empty()) {
    message.payload = code(tensor, frame, message.payload);
  }
  if (tensor.cargo != nullptr) header.lost = tensor.cargo->note(staged_part_.part, frame).lost;
  message.bulk = true;
  staged_ = Staged::kPush;
  staged_payload_bytes_ = message.payload.size();
}

// With what is carried of what is pushed, if there is something: of a relay that is its worker's.
std::span<const std::byte> Push::code(Tensor& tensor, std::uint32_t frame,
                                      std::span<const std::byte> elements) {
  const PartState& part = tensor.parts[staged_part_.part];
  const TimeNs encoded_ns = work_.coder.encode_ns();
  std::span<const std::byte> payload;
  const auto code_with = [&](const Carry& carry) {
    const std::uint64_t offset = part.offset + frame * part.frame_bytes;
    payload = work_.coder.payload(
        tensor, {staged_part_.part, frame}, work_.config.self, elements,
        carry.of(PLANTED(residual_of_first_frame) ? 0 : offset, elements.size()));
    work_.counters.encode_ns = work_.coder.encode_ns();
  };
  if (work_.config.is_relay && work_.config.relays.residuals != nullptr) {
    work_.config.relays.residuals->code_with(tensor.key, tensor.spec.total_bytes, code_with);
  } else {
    const Carry* const carry = work_.operations[tensor.active].carry.get();
    code_with(carry != nullptr ? *carry : Carry());
  }
  if (work_.timeline) {
    work_.timeline->on_encoded(staged_part_.tensor, tensor, staged_part_.part,
                               work_.coder.encode_ns() - encoded_ns);
  }
  return payload;
}

Push::Sent Push::pop() {
  ShardWay& shard = work_.shards[staged_shard_.value];
  switch (std::exchange(staged_, Staged::kNothing)) {
    case Staged::kNothing:
      CHECK(false) << "pop() without front()";
      break;
    case Staged::kWord:
      lent_words_.emplace(last_word_, shard.next_word());
      shard.word_is_said();
      break;
    case Staged::kKept:
      lent_words_.emplace(last_word_, kept_.next(staged_shard_));
      kept_.said(staged_shard_);
      break;
    case Staged::kForget:
      shard.forget_is_said();
      break;
    case Staged::kInputs:
      shard.inputs_are_told(staged_inputs_);
      break;
    case Staged::kAck:
      kept_.came_is_said(staged_shard_);
      break;
    case Staged::kDeclare: {
      Tensor& tensor = work_.tensors[staged_part_.tensor];
      declared_on(tensor) = shard.connection();
      lend(tensor);
      break;
    }
    case Staged::kPush:
      return pop_frame(shard);
  }
  return {};
}

void Push::lend(Tensor& tensor) {
  ++tensor.lent_count;
  if (tensor.cargo != nullptr) tensor.cargo->on_lent(staged_part_.part);
}

Push::Sent Push::pop_frame(ShardWay& shard) {
  Tensor& tensor = work_.tensors[staged_part_.tensor];
  PartState& part = tensor.parts[staged_part_.part];
  flow_.on_sent();
  shard.gate().on_sent(staged_cost_, work_.operations[tensor.active].priority);
  work_.counters.pushed_bytes += staged_element_bytes_;
  work_.counters.pushed_wire_bytes += staged_payload_bytes_;
  ++work_.counters.pushed_frames;
  lend(tensor);
  kept_.came_is_said(staged_shard_);
  if (part.sent_frames == 0) part.forgets_before = shard.forgets_so_far();
  ++part.next_frame;
  part.sent_frames = std::max(part.sent_frames, part.next_frame);
  const bool leaves = advance(tensor, staged_part_.part);
  place(tensor, part);
  if (work_.timeline) work_.timeline->on_sent(staged_part_.tensor, tensor, staged_part_.part);
  return {staged_part_, leaves};
}

}  // namespace byteps
