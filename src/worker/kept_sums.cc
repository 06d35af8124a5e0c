#include "worker/kept_sums.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/planted.h"
#include "net/wire_text.h"

namespace byteps {
namespace {

bool goes_to(const Tensor& tensor, ShardIndex shard) {
  return std::any_of(tensor.ways.begin(), tensor.ways.end(),
                     [&](const TensorWay& way) { return way.shard == shard; });
}

Word declare_of(const Tensor& tensor) {
  return {.kind = wire::Kind::kDeclare, .key = tensor.key, .payload = tensor.declaration};
}

}  // namespace

// ---- what is kept

bool KeptSums::has_members(const Spec& spec) const {
  return spec.members.is_all() || spec.members.some().size() > 1;
}

void KeptSums::keep(Tensor& tensor, std::uint32_t index, std::uint32_t frame,
                    std::span<const std::byte> sum) {
  if (!work_.config.keeps_sums || !has_members(tensor.spec) || PLANTED(sum_not_kept)) return;
  const PartState& part = tensor.parts[index];
  const std::uint64_t offset = part.offset + frame * part.frame_bytes;
  if (PLANTED(give_contribution) && tensor.cargo == nullptr && work_.gives(tensor.spec)) sum = {};
  if (sum.empty() && work_.gives(tensor.spec) && !tensor.spec.root_only) {  // it brings a broadcast
    sum = tensor.cargo != nullptr ? tensor.cargo->frame(index, frame)
                                  : work_.operations[tensor.active].input.subspan(
                                        offset, TensorTable::frame_bytes(part, frame));
  }
  const bool is_empty = TensorTable::frame_bytes(part, frame) == 0;
  if (sum.empty() && !is_empty) return;
  if (!tensor.kept) {
    tensor.kept = std::make_unique_for_overwrite<std::byte[]>(tensor.spec.total_bytes);
  }
  if (is_empty) return;
  std::memcpy(tensor.kept.get() + offset, sum.data(), sum.size());
}

void KeptSums::retire(Tensor& tensor) {
  if (!work_.config.keeps_sums || !has_members(tensor.spec)) return;
  Tensor& retired = retired_[tensor.key];
  retired = Tensor{};
  retired.key = tensor.key;
  retired.round = tensor.round;
  retired.spec = tensor.spec;
  retired.frames_per_part = tensor.frames_per_part;
  retired.answered.assign(tensor.answered.size(), 0);
  retired.parts = std::move(tensor.parts);
  retired.ways = std::move(tensor.ways);
  retired.declaration = std::move(tensor.declaration);
  retired.kept = std::move(tensor.kept);
}

void KeptSums::on_settled(ShardIndex shard, Key key) {
  const auto found = retired_.find(key);
  if (found == retired_.end()) return;
  std::vector<TensorWay>& ways = found->second.ways;
  std::erase_if(ways, [&](const TensorWay& way) { return way.shard == shard; });
  if (ways.empty()) retired_.erase(found);
}

// ---- what it has

// In the round under way. (What was answered in the one before is remembered until the next begins.)
bool KeptSums::is_answered(const Tensor& tensor, std::uint32_t part, std::uint32_t frame) const {
  return work_.is_active(tensor) && tensor.is_answered(part, frame);
}

// In a generation of inputs that has begun, nobody lacks anything of the one before.
bool KeptSums::has_former(const Tensor& tensor) const {
  return tensor.kept != nullptr && round_in_generation(tensor.round.value) > 0;
}

bool KeptSums::has_sum(const Tensor& tensor, std::uint32_t part, std::uint32_t frame,
                       Round round) const {
  if (is_answered(tensor, part, frame)) return tensor.kept != nullptr && round == tensor.round;
  return has_former(tensor) && later_by(tensor.round, round) == 1;
}

const Tensor* KeptSums::find(Key key) const {
  const TensorIndex index = work_.tensors.find(key);
  if (index != kNoTensor) return &work_.tensors[index];
  const auto found = retired_.find(key);
  return found == retired_.end() ? nullptr : &found->second;
}

// ---- to a shard

void KeptSums::on_up(ShardIndex shard, bool is_successor) {
  if (!work_.config.keeps_sums) return;
  Telling& telling = tellings_[shard.value];
  telling = Telling{};
  telling.is_successor = is_successor;
  telling.stage = is_successor ? Telling::Stage::kTensors : Telling::Stage::kRetired;
  if (PLANTED(have_not_said)) telling.stage = Telling::Stage::kNothing;
}

void KeptSums::on_give(ShardIndex shard, const wire::Header& header) {
  const Tensor* const tensor = find(header.key);
  if (tensor == nullptr || header.part.value >= tensor->parts.size()) return;
  const PartState& part = tensor->parts[header.part.value];
  const std::uint64_t frame = header.offset_bytes / part.frame_bytes;
  if (part.shard != shard || frame >= part.frame_count) return;
  if (header.offset_bytes % part.frame_bytes != 0) return;
  tellings_[shard.value].gifts.push_back(header);
}

std::shared_ptr<const Word> KeptSums::next(ShardIndex shard) {
  Telling& telling = tellings_[shard.value];
  if (telling.staged || !telling.is_telling()) return telling.staged;
  std::optional<Word> word = next_word(shard, telling);
  if (word) telling.staged = std::make_shared<const Word>(std::move(*word));
  return telling.staged;
}

std::optional<Word> KeptSums::next_word(ShardIndex shard, Telling& telling) {
  if (telling.stage == Telling::Stage::kTensors) {
    if (std::optional<Word> word = next_of_tensors(shard, telling)) return word;
    telling.stage = Telling::Stage::kRetired;
  }
  if (telling.stage == Telling::Stage::kRetired) {
    if (std::optional<Word> word = next_of_retired(shard, telling)) return word;
    telling.stage = telling.is_successor ? Telling::Stage::kAll : Telling::Stage::kNothing;
  }
  if (telling.stage == Telling::Stage::kAll) {
    return Word{.kind = wire::Kind::kHave, .flags = wire::kAll};
  }
  return next_gift(telling);
}

void KeptSums::said(ShardIndex shard) {
  Telling& telling = tellings_[shard.value];
  const std::shared_ptr<const Word> word = std::exchange(telling.staged, nullptr);
  const bool is_of_tensor = telling.stage == Telling::Stage::kTensors;
  switch (word->kind) {
    case wire::Kind::kDeclare:
      telling.is_declared = true;
      if (!is_of_tensor) return;
      for (TensorWay& way : work_.tensors[telling.tensor].ways) {
        if (way.shard == shard) way.declared_on = work_.shards[shard.value].connection();
      }
      return;
    case wire::Kind::kHave:
      if (telling.stage == Telling::Stage::kAll) telling.stage = Telling::Stage::kNothing;
      telling.part = word->part.value + 1;
      return;
    case wire::Kind::kPush:
      telling.gifts.pop_front();
      return;
    case wire::Kind::kForget:
      telling.key = word->key;
      break;
    default:  // kMismatch
      ++telling.tensor;
      break;
  }
  telling.part = 0;
  telling.is_declared = false;
}

// Of one part: of which frames there are sums. None: there is nothing to say.
std::optional<Word> KeptSums::have_of(const Tensor& tensor, std::uint32_t index) const {
  const PartState& part = tensor.parts[index];
  Word word{.kind = wire::Kind::kHave,
            .flags = has_former(tensor) ? wire::kHasFormer : std::uint8_t{0},
            .key = tensor.key,
            .part = PartIndex(index),
            .round = tensor.round};
  if (tensor.kept != nullptr && work_.is_active(tensor) && part.answered_frames > 0) {
    word.payload.resize((part.frame_count + 7) / 8);
    for (std::uint32_t frame = 0; frame < part.frame_count; ++frame) {
      if (!tensor.is_answered(index, frame)) continue;
      word.payload[frame / 8] |= std::byte{1} << (frame % 8);
    }
  }
  if (word.flags == 0 && word.payload.empty()) return std::nullopt;
  return word;
}

// The next of its parts at this shard. What is under way is declared in any case: who does not name what others have
// forgotten knows that it is settled.
std::optional<Word> KeptSums::next_of(const Tensor& tensor, ShardIndex shard,
                                      Telling& telling) const {
  if (tensor.active != kNoOp && !telling.is_declared) return declare_of(tensor);
  for (; telling.part < tensor.parts.size(); ++telling.part) {
    if (tensor.parts[telling.part].shard != shard) continue;
    if (!work_.leads(tensor, telling.part) && !PLANTED(unled_part_claimed)) continue;
    std::optional<Word> have = have_of(tensor, telling.part);
    if (!have) continue;
    return telling.is_declared ? std::move(have) : declare_of(tensor);
  }
  return std::nullopt;
}

std::optional<Word> KeptSums::next_of_tensors(ShardIndex shard, Telling& telling) {
  for (; telling.tensor < work_.tensors.slot_count(); ++telling.tensor) {
    const Tensor& tensor = work_.tensors[telling.tensor];
    if (!tensor.name.empty() && goes_to(tensor, shard)) {
      if (spoiled_.contains(tensor.key) && !PLANTED(spoiled_not_retold)) {
        return Word{.kind = wire::Kind::kMismatch,
                    .key = tensor.key,
                    .payload = wire::encode(text_of(tensor.failed))};
      }
      if (tensor.failed.is_ok()) {
        if (std::optional<Word> word = next_of(tensor, shard, telling)) return word;
      }
    }
    telling.part = 0;
    telling.is_declared = false;
  }
  return std::nullopt;
}

std::optional<Word> KeptSums::next_of_retired(ShardIndex shard, Telling& telling) {
  auto at = telling.key ? retired_.upper_bound(*telling.key) : retired_.begin();
  for (; at != retired_.end(); ++at) {
    const Tensor& tensor = at->second;
    if (!goes_to(tensor, shard)) continue;
    if (telling.is_successor) {
      if (std::optional<Word> word = next_of(tensor, shard, telling)) return word;
    }
    return Word{.kind = wire::Kind::kForget, .key = tensor.key};
  }
  return std::nullopt;
}

// Who asks may have got it meanwhile.
std::optional<Word> KeptSums::next_gift(Telling& telling) const {
  for (; !telling.gifts.empty(); telling.gifts.pop_front()) {
    const wire::Header& wanted = telling.gifts.front();
    const Tensor* const tensor = find(wanted.key);
    if (tensor == nullptr || wanted.part.value >= tensor->parts.size()) continue;
    const PartState& part = tensor->parts[wanted.part.value];
    const auto frame = static_cast<std::uint32_t>(wanted.offset_bytes / part.frame_bytes);
    Word word{.kind = wire::Kind::kPush,
              .flags = wire::kSum,
              .key = wanted.key,
              .part = wanted.part,
              .round = wanted.round,
              .offset_bytes = wanted.offset_bytes};
    if (tensor->spec.root_only) {
      const Status why(Code::kDisconnected,
                       "tensor '" + tensor->name +
                           "': its sum was lost with a server, and only its root is given it");
      word = {
          .kind = wire::Kind::kMismatch, .key = wanted.key, .payload = wire::encode(text_of(why))};
      return word;
    }
    if (!has_sum(*tensor, wanted.part.value, frame, wanted.round)) continue;
    const std::byte* const sum = tensor->kept.get() + part.offset + wanted.offset_bytes;
    word.payload.assign(sum, sum + TensorTable::frame_bytes(part, frame));
    return word;
  }
  return std::nullopt;
}

}  // namespace byteps
