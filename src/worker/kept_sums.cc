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
  if (tensor.meeting == shard) return true;  // it is declared there
  return std::any_of(tensor.ways.begin(), tensor.ways.end(),
                     [&](const TensorWay& way) { return way.shard == shard; });
}

// Counts go on beyond 2^32.
std::int32_t further_by(std::uint32_t count, std::uint32_t than) {
  return static_cast<std::int32_t>(count - than);
}

Word declare_of(const Tensor& tensor) {
  return {.kind = wire::Kind::kDeclare, .key = tensor.key, .payload = tensor.declaration};
}

// At a relay: this is no news, and its crew have it already. One that stands in is also answered what the relay before
// it has pushed, perhaps before its crew have come: they are to get it yet.
bool may_count(const Tensor* tensor, const wire::Header& answer, bool stands_in) {
  if (tensor == nullptr) return !stands_in;
  if (answer.part.value >= tensor->parts.size()) return true;
  const PartState& part = tensor->parts[answer.part.value];
  const std::size_t place = tensor->place_of(
      answer.part.value, static_cast<std::uint32_t>(answer.offset_bytes / part.frame_bytes));
  if (place < tensor->kept.size() && tensor->kept[place].where != KeptFrame::Where::kNowhere &&
      tensor->kept[place].round == answer.round) {
    return tensor->kept[place].crew_has;
  }
  return later_by(answer.round, tensor->round) < 0;
}

// Of the active operation, which has no cargo: where its sums are.
std::span<const std::byte> memory_of(const Work& work, const Tensor& tensor) {
  const Op& op = work.operations[tensor.active];
  return work.is_sent_to(tensor.spec) ? std::span<const std::byte>(op.output) : op.input;
}

// In a generation of inputs that has begun, nobody lacks anything of the one before.
bool has_former(const Tensor& tensor) {
  return !tensor.kept.empty() && round_in_generation(tensor.round.value) > 0;
}

}  // namespace

// ---- what is kept

void KeptSums::keep(TensorIndex index, std::uint32_t part_index, std::uint32_t frame,
                    std::span<const std::byte> sum) {
  Tensor& tensor = work_.tensors[index];
  if (!work_.config.keeps_sums || PLANTED(sum_not_kept)) return;
  if (tensor.kept.empty()) {
    tensor.kept.resize(tensor.parts.size() * std::size_t{tensor.frames_per_part});
  }
  const PartState& part = tensor.parts[part_index];
  const std::size_t place = tensor.place_of(part_index, frame);
  KeptFrame& kept = tensor.kept[place];
  kept = {.copy = {}, .round = tensor.round, .where = KeptFrame::Where::kOperation};
  const bool is_here = work_.is_sent_to(tensor.spec);
  if (work_.is_alone_in(tensor.spec)) {
    kept.where = KeptFrame::Where::kOwn;
  } else if (tensor.spec.root_only && (!is_here || sum.empty())) {
    kept.where = KeptFrame::Where::kRoot;  // or lost with it
  } else if (tensor.codes != nullptr) {
    copy(kept, sum);
    kept.is_plain = sum.size() == TensorTable::frame_bytes(part, frame);
  } else if (tensor.cargo != nullptr) {
    // It brings a broadcast, unless its root is lost.
    copy(kept, is_here || !sum.empty() ? sum : tensor.cargo->frame(part_index, frame));
  } else if (PLANTED(give_contribution) && work_.gives(tensor.spec)) {
    copy(kept, work_.operations[tensor.active].input.subspan(
                   part.offset + frame * part.frame_bytes, TensorTable::frame_bytes(part, frame)));
  }
  Answers& answers = answers_[part.shard.value];
  if (further_by(answers.settled, answers.came) >= 0) {  // it has been given to this worker before
    kept = {.copy = {}, .round = tensor.round, .where = KeptFrame::Where::kGone};
    note_settled(tensor, place, tensor.round);
    return;
  }
  const bool is_awaited = is_here && tensor.spec.root_only;  // the others wait for its word
  if (is_awaited && !work_.config.duties.waits_for_crew) answers.due_ns = work_.now;
  if (answers.open.size() >= answers.sweep_at) sweep(answers);
  answers.open.push_back({.number = answers.came,
                          .tensor = index,
                          .place = static_cast<std::uint32_t>(place),
                          .round = tensor.round,
                          .key = tensor.key});
}

void KeptSums::copy(KeptFrame& kept, std::span<const std::byte> sum) {
  kept.copy = work_.kept.take(sum.size());
  kept.where = KeptFrame::Where::kCopy;
  work_.counters.kept_bytes = work_.kept.lent_bytes();
  if (!sum.empty()) std::memcpy(kept.copy.span().data(), sum.data(), sum.size());
}

void KeptSums::release(Tensor& tensor) {
  if (tensor.cargo != nullptr || tensor.kept.empty()) return;
  const std::span<const std::byte> memory = memory_of(work_, tensor);
  for (std::uint32_t index = 0; index < tensor.parts.size(); ++index) {
    const PartState& part = tensor.parts[index];
    for (std::uint32_t frame = 0; frame < part.frame_count; ++frame) {
      KeptFrame& kept = tensor.kept[tensor.place_of(index, frame)];
      if (kept.where != KeptFrame::Where::kOperation) continue;
      if (PLANTED(released_uncopied)) {
        kept.where = KeptFrame::Where::kGone;
        continue;
      }
      copy(kept, memory.subspan(part.offset + frame * part.frame_bytes,
                                TensorTable::frame_bytes(part, frame)));
    }
  }
}

void KeptSums::retire(Tensor& tensor) {
  begun_.erase(tensor.key);
  if (!work_.config.keeps_sums) return;
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
  retired.codes = std::move(tensor.codes);
}

void KeptSums::on_forgotten(ShardIndex shard, Key key) {
  const auto found = retired_.find(key);
  if (found == retired_.end()) return;
  std::vector<TensorWay>& ways = found->second.ways;
  std::erase_if(ways, [&](const TensorWay& way) { return way.shard == shard; });
  if (!ways.empty()) return;
  retired_.erase(found);
  work_.counters.kept_bytes = work_.kept.lent_bytes();
}

// ---- what is settled

void KeptSums::begin_answer(ShardIndex shard, const wire::Header& answer) {
  if (!work_.config.keeps_sums) return;
  Answers& answers = answers_[shard.value];
  on_settled(shard, answer.count);
  ++answers.came;
  if (work_.config.duties.waits_for_crew) {
    const TensorIndex index = work_.tensors.find(answer.key);
    const bool is_spoiled =  // nobody waits for it
        index == kNoTensor ? spoiled_.contains(answer.key) : !work_.tensors[index].failed.is_ok();
    answers.held.push_back({.number = answers.came,
                            .key = answer.key,
                            .part = answer.part,
                            .offset_bytes = answer.offset_bytes,
                            .round = answer.round,
                            .crew_has = is_spoiled || may_count(find(answer.key), answer,
                                                                work_.config.duties.stands_in)});
  }
  answers.count(work_.config.duties.waits_for_crew, work_.now);
}

void KeptSums::Answers::count(bool waits_for_crew, TimeNs now) {
  const std::uint32_t before = counted;
  if (!waits_for_crew) counted = came;
  while (!held.empty() && held.front().crew_has) {
    counted = held.front().number;
    held.pop_front();
  }
  if (before == said && counted != before) due_ns = now + kSilenceNs;
}

void KeptSums::note_spoiled(Key key) {
  spoiled_.insert(key);
  for (Answers& answers : answers_) {  // nobody waits for these
    for (Held& each : answers.held) each.crew_has = each.crew_has || each.key == key;
    if (!answers.held.empty()) answers.count(work_.config.duties.waits_for_crew, work_.now);
  }
}

// ---- at a relay

void KeptSums::note_crew_has(Key key, PartIndex part_index, std::uint64_t offset_bytes,
                             Round round) {
  Tensor* tensor = nullptr;
  if (const TensorIndex index = work_.tensors.find(key); index != kNoTensor) {
    tensor = &work_.tensors[index];
  } else if (const auto found = retired_.find(key); found != retired_.end()) {
    tensor = &found->second;
  }
  const bool is_known = tensor != nullptr && part_index.value < tensor->parts.size();
  KeptFrame* kept = nullptr;
  if (is_known) {
    const std::size_t place = tensor->place_of(
        part_index.value,
        static_cast<std::uint32_t>(offset_bytes / tensor->parts[part_index.value].frame_bytes));
    const bool is_kept = place < tensor->kept.size() && tensor->kept[place].round == round &&
                         tensor->kept[place].where != KeptFrame::Where::kNowhere;
    if (is_kept) kept = &tensor->kept[place];
  }
  if (kept != nullptr && std::exchange(kept->crew_has, true)) return;
  bool is_counted = false;
  for (Answers& answers : answers_) {
    bool is_its = false;
    for (Held& each : answers.held) {
      if (each.key != key || each.part != part_index || each.offset_bytes != offset_bytes ||
          each.round != round) {
        continue;
      }
      each.crew_has = is_its = true;
    }
    if (!is_its) continue;
    is_counted = true;
    answers.count(work_.config.duties.waits_for_crew, work_.now);
    const bool is_awaited =
        is_known && tensor->spec.root_only && work_.is_sent_to(tensor->spec);  // by the others
    if (is_awaited && answers.counted != answers.said) answers.due_ns = work_.now;
  }
  // It came on an earlier connection, or from the crew.
  if (!is_counted && kept != nullptr && kept->where != KeptFrame::Where::kGone) {
    tell_news(*tensor, part_index.value);
  }
}

void KeptSums::inherit(TensorIndex index, PartIndex part_index, std::uint64_t offset_bytes,
                       Round round, const std::optional<std::span<const std::byte>>& sum) {
  Tensor& tensor = work_.tensors[index];
  if (!work_.config.keeps_sums || !tensor.failed.is_ok()) return;
  if (part_index.value >= tensor.parts.size()) return;
  if (tensor.kept.empty()) {
    tensor.kept.resize(tensor.parts.size() * std::size_t{tensor.frames_per_part});
  }
  if (tensor.active == kNoOp && later_by(round, tensor.round) > 0) tensor.round = round;
  const PartState& part = tensor.parts[part_index.value];
  KeptFrame& kept = tensor.kept[tensor.place_of(
      part_index.value, static_cast<std::uint32_t>(offset_bytes / part.frame_bytes))];
  const bool is_known = kept.where != KeptFrame::Where::kNowhere;
  if (is_known && later_by(round, kept.round) <= 0) return;
  kept = {.copy = {}, .round = round, .where = KeptFrame::Where::kRoot};
  if (sum) copy(kept, *sum);
  kept.is_plain = sum && tensor.codes != nullptr;
  tell_news(tensor, part_index.value);
}

void KeptSums::note_begun(TensorIndex index) {
  const Tensor& tensor = work_.tensors[index];
  if (!work_.config.keeps_sums || !begun_.insert(tensor.key).second) return;
  for (std::uint32_t shard = 0; shard < tellings_.size(); ++shard) {
    Telling& telling = tellings_[shard];
    const bool will_say_all = telling.is_successor && telling.stage != Telling::Stage::kNothing;
    if (!will_say_all || !goes_to(tensor, ShardIndex(shard))) continue;
    telling.news.push_back(declare_of(tensor));
  }
}

// On the connection that is there; on another one it is told with all else.
void KeptSums::tell_news(const Tensor& tensor, std::uint32_t part) {
  if (work_.tensors.find(tensor.key) == kNoTensor) return;  // it is given up: Forget says it
  const ShardIndex shard = tensor.parts[part].shard;
  if (!work_.shards[shard.value].is_up()) return;
  Telling& telling = tellings_[shard.value];
  bool is_declared = false;
  for (const bool some : {false, true}) {
    std::optional<Word> word = have_of_crew(tensor, part, some);
    if (!word) continue;
    if (!std::exchange(is_declared, true)) telling.news.push_back(declare_of(tensor));
    telling.news.push_back(std::move(*word));
  }
}

// Those who wait below may hear it.
void KeptSums::note_settled(const Tensor& tensor, std::size_t place, Round round) {
  if (!work_.config.duties.waits_for_crew) return;
  const auto part = static_cast<std::uint32_t>(place / tensor.frames_per_part);
  settled_.push_back(
      {.key = tensor.key,
       .part = PartIndex(part),
       .offset_bytes = place % tensor.frames_per_part * tensor.parts[part].frame_bytes,
       .round = round});
}

void KeptSums::on_settled(ShardIndex shard, std::uint32_t count) {
  Answers& answers = answers_[shard.value];
  if (further_by(count, answers.settled) <= 0) return;
  answers.settled = count;
  while (!answers.open.empty() && further_by(count, answers.open.front().number) >= 0) {
    const Open open = answers.open.front();
    KeptFrame* const kept = frame_of(open);
    answers.open.pop_front();
    if (kept == nullptr) continue;
    if (const Tensor* const tensor = find(open.key)) note_settled(*tensor, open.place, open.round);
    kept->copy = {};
    kept->where = KeptFrame::Where::kGone;
  }
  if (work_.kept.idle_bytes() > kIdleBytesMax) work_.kept.trim();
  work_.counters.kept_bytes = work_.kept.lent_bytes();
}

void KeptSums::on_settled_frame(ShardIndex shard, const wire::Header& header) {
  const TensorIndex index = work_.tensors.find(header.key);
  const auto found = retired_.find(header.key);
  if (index == kNoTensor && found == retired_.end()) return;
  Tensor& tensor = index != kNoTensor ? work_.tensors[index] : found->second;
  if (header.part.value >= tensor.parts.size() || tensor.kept.empty()) return;
  const PartState& part = tensor.parts[header.part.value];
  if (part.shard != shard) return;
  const bool is_whole = header.offset_bytes == wire::kWholePart;
  for (std::uint32_t frame = 0; frame < part.frame_count; ++frame) {
    if (!is_whole && header.offset_bytes != frame * part.frame_bytes) continue;
    const std::size_t place = tensor.place_of(header.part.value, frame);
    KeptFrame& kept = tensor.kept[place];
    const std::int32_t later = later_by(kept.round, header.round);
    const bool is_it = is_whole ? later <= 0 : later == 0;
    if (kept.where == KeptFrame::Where::kNowhere || !is_it) continue;
    note_settled(tensor, place, kept.round);
    kept.copy = {};
    kept.where = KeptFrame::Where::kGone;
  }
  work_.counters.kept_bytes = work_.kept.lent_bytes();
}

// Null: its sum is not kept any more.
KeptFrame* KeptSums::frame_of(const Open& answer) {
  std::vector<KeptFrame>* kept = nullptr;
  if (work_.tensors[answer.tensor].key == answer.key) {
    kept = &work_.tensors[answer.tensor].kept;
  } else if (const auto found = retired_.find(answer.key); found != retired_.end()) {
    kept = &found->second.kept;
  }
  if (kept == nullptr || answer.place >= kept->size()) return nullptr;
  KeptFrame& frame = (*kept)[answer.place];
  return frame.round == answer.round ? &frame : nullptr;
}

// Behind one that stays open there may be any number of which nothing is kept.
void KeptSums::sweep(Answers& answers) {
  std::erase_if(answers.open, [&](const Open& each) { return frame_of(each) == nullptr; });
  answers.sweep_at = kSweepLeast + 2 * answers.open.size();
}

void KeptSums::came_is_said(ShardIndex shard) {
  Answers& answers = answers_[shard.value];
  answers.said = answers.counted;
  answers.due_ns = kNever;
}

// What is overdue goes as soon as its connection can take it.
TimeNs KeptSums::next_deadline() const {
  TimeNs next = kNever;
  for (const Answers& each : answers_) {
    if (each.due_ns > work_.now) next = std::min(next, each.due_ns);
  }
  return next;
}

// ---- what it has

// None: it has not, or nobody lacks it. Empty: the root has it, which alone gets it.
std::optional<std::span<const std::byte>> KeptSums::sum_of(const Tensor& tensor,
                                                           std::uint32_t index, std::uint32_t frame,
                                                           Round round) const {
  const std::size_t place = tensor.place_of(index, frame);
  if (place >= tensor.kept.size() || tensor.kept[place].round != round) return std::nullopt;
  const PartState& part = tensor.parts[index];
  const KeptFrame& kept = tensor.kept[place];
  const std::uint64_t bytes =
      kept.is_plain ? TensorTable::frame_bytes(part, frame) : tensor.payload_bytes(part, frame);
  if (kept.where == KeptFrame::Where::kCopy) {
    return std::span<const std::byte>(kept.copy.span()).first(bytes);
  }
  if (kept.where == KeptFrame::Where::kRoot) return std::span<const std::byte>();
  if (kept.where != KeptFrame::Where::kOperation || !work_.is_active(tensor)) return std::nullopt;
  return memory_of(work_, tensor).subspan(part.offset + frame * part.frame_bytes, bytes);
}

// Whether somebody may lack a sum of this part that it has.
bool KeptSums::is_open(const Tensor& tensor, std::uint32_t index) const {
  if (tensor.kept.empty()) return false;
  const auto* const first = &tensor.kept[tensor.place_of(index, 0)];
  return std::any_of(first, first + tensor.parts[index].frame_count, [](const KeptFrame& each) {
    return each.where != KeptFrame::Where::kNowhere && each.where != KeptFrame::Where::kGone;
  });
}

bool KeptSums::keeps_any() const {
  const auto keeps = [](const Tensor& tensor) {
    return std::any_of(tensor.kept.begin(), tensor.kept.end(), [](const KeptFrame& each) {
      return each.where == KeptFrame::Where::kCopy || each.where == KeptFrame::Where::kRoot;
    });
  };
  for (TensorIndex index = 0; index < work_.tensors.slot_count(); ++index) {
    if (keeps(work_.tensors[index])) return true;
  }
  return std::any_of(retired_.begin(), retired_.end(),
                     [&](const auto& each) { return keeps(each.second); });
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
  telling.stage = Telling::Stage::kTensors;
  answers_[shard.value] = Answers{};
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
  if (!telling.news.empty()) {
    telling.is_of_news = true;
    return telling.news.front();
  }
  if (telling.stage == Telling::Stage::kAll && may_say_all_) {
    return Word{.kind = wire::Kind::kHave, .flags = wire::kAll};
  }
  return next_gift(telling);
}

void KeptSums::said(ShardIndex shard) {
  Telling& telling = tellings_[shard.value];
  const std::shared_ptr<const Word> word = std::exchange(telling.staged, nullptr);
  if (std::exchange(telling.is_of_news, false)) return telling.news.pop_front();
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
      telling.part = word->part.value;
      if (work_.config.duties.waits_for_crew && (word->flags & wire::kSome) == 0) {
        telling.has_told_of_all = true;
      } else {
        ++telling.part;
        telling.has_told_of_all = false;
      }
      return;
    case wire::Kind::kPush:
      telling.gifts.pop_front();
      return;
    case wire::Kind::kForget:  // which says more than news; and nothing of that name may follow it
      telling.key = word->key;
      std::erase_if(telling.news, [&](const Word& news) { return news.key == word->key; });
      break;
    default:  // kMismatch
      ++telling.tensor;
      break;
  }
  telling.part = 0;
  telling.is_declared = false;
}

// Of one part: of which frames it has the sums, or knows that the root has them, which alone gets them. None: there is
// nothing to say.
std::optional<Word> KeptSums::have_of(const Tensor& tensor, std::uint32_t index) const {
  const PartState& part = tensor.parts[index];
  Word word{.kind = wire::Kind::kHave,
            .flags = has_former(tensor) ? wire::kHasFormer : std::uint8_t{0},
            .key = tensor.key,
            .part = PartIndex(index),
            .round = tensor.round};
  if (!tensor.kept.empty() && work_.is_active(tensor) && part.answered_frames > 0) {
    word.payload.resize((part.frame_count + 7) / 8);
    for (std::uint32_t frame = 0; frame < part.frame_count; ++frame) {
      if (!tensor.is_answered(index, frame)) continue;
      word.payload[frame / 8] |= std::byte{1} << (frame % 8);
    }
  }
  if (word.flags == 0 && word.payload.empty()) return std::nullopt;
  return word;
}

// The same at a relay: those that all of its crew have, or those that some may lack.
std::optional<Word> KeptSums::have_of_crew(const Tensor& tensor, std::uint32_t index,
                                           bool some) const {
  if (tensor.kept.empty()) return std::nullopt;
  const PartState& part = tensor.parts[index];
  const auto frame_of = [&](std::uint32_t frame) -> const KeptFrame& {
    return tensor.kept[tensor.place_of(index, frame)];
  };
  // Of the round under way; between two, of the one before.
  bool is_of_this = work_.is_active(tensor);
  for (std::uint32_t frame = 0; frame < part.frame_count && !is_of_this; ++frame) {
    const KeptFrame& kept = frame_of(frame);
    is_of_this = kept.where != KeptFrame::Where::kNowhere && kept.round == tensor.round;
  }
  Word word{.kind = wire::Kind::kHave,
            .flags = some ? wire::kSome : std::uint8_t{0},
            .key = tensor.key,
            .part = PartIndex(index),
            .round = is_of_this ? tensor.round : Round(tensor.round.value - 1)};
  // Who has begun a round has the one before.
  if (!some && is_of_this && has_former(tensor)) word.flags = wire::kHasFormer;
  word.payload.resize((part.frame_count + 7) / 8);
  bool any = false;
  for (std::uint32_t frame = 0; frame < part.frame_count; ++frame) {
    const KeptFrame& kept = frame_of(frame);
    if (kept.where == KeptFrame::Where::kNowhere || kept.round != word.round) continue;
    const bool crew_has = kept.crew_has || kept.where == KeptFrame::Where::kGone;
    if (crew_has == some) continue;
    word.payload[frame / 8] |= std::byte{1} << (frame % 8);
    any = true;
  }
  if (!any) word.payload.clear();
  if (!any && word.flags != wire::kHasFormer) return std::nullopt;
  return word;
}

// The next of its parts at this shard. A successor is told of all, of what is under way the declaration in any case:
// who does not name what others have forgotten knows that it is settled.
std::optional<Word> KeptSums::next_of(const Tensor& tensor, ShardIndex shard,
                                      Telling& telling) const {
  const bool is_under_way = tensor.active != kNoOp || begun_.contains(tensor.key);
  if (telling.is_successor && is_under_way && !telling.is_declared) return declare_of(tensor);
  for (; telling.part < tensor.parts.size(); ++telling.part) {
    if (tensor.parts[telling.part].shard != shard) continue;
    if (!work_.leads(tensor, telling.part) && !PLANTED(unled_part_claimed)) continue;
    if (!telling.is_successor && !is_open(tensor, telling.part)) continue;
    std::optional<Word> have = have_of(tensor, telling.part);
    if (work_.config.duties.waits_for_crew) {
      const bool is_told = std::exchange(telling.has_told_of_all, false);
      have = is_told ? std::nullopt : have_of_crew(tensor, telling.part, false);
      if (!have) have = have_of_crew(tensor, telling.part, true);
    }
    if (!have) continue;
    return telling.is_declared ? std::move(have) : declare_of(tensor);
  }
  return std::nullopt;
}

std::optional<Word> KeptSums::next_of_tensors(ShardIndex shard, Telling& telling) {
  for (; telling.tensor < work_.tensors.slot_count(); ++telling.tensor) {
    const Tensor& tensor = work_.tensors[telling.tensor];
    if (!tensor.name.empty() && goes_to(tensor, shard)) {
      if (telling.is_successor && spoiled_.contains(tensor.key) && !PLANTED(spoiled_not_retold)) {
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
    const auto sum = sum_of(*tensor, wanted.part.value, frame, wanted.round);
    if (!sum) {
      if (!work_.is_behind_relays() || work_.config.relays.are_alone) continue;
      word.flags = wire::kSum | wire::kNoPayload;
      return word;
    }
    word.payload.assign(sum->begin(), sum->end());
    return word;
  }
  return std::nullopt;
}

}  // namespace byteps
