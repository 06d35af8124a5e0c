#include "server/settling.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/planted.h"
#include "server/worker_bits.h"

namespace byteps {
namespace {

// Counts go on beyond 2^32.
std::int32_t further_by(std::uint32_t count, std::uint32_t than) {
  return static_cast<std::int32_t>(count - than);
}

}  // namespace

void Settling::begin_epoch(std::uint32_t worker_count, bool is_below) {
  above_ = is_below ? std::optional(WorkerRank(worker_count)) : std::nullopt;
  words_ = bit_words_of(worker_count + (is_below ? 1 : 0));
  crew_has_.clear();
  records_.clear();
  lacks_.clear();
  told_.clear();
  told_settled_.clear();
  free_.clear();
  answers_.clear();
  answers_.resize(worker_count);
  answerable_.clear();
  left_.assign(words_, 0);
  due_ns_ = kNever;
}

std::size_t Settling::bytes_of_frame(std::uint32_t worker_count) {
  return sizeof(Record) + bit_words_of(worker_count) * sizeof(std::uint64_t) +
         2 * worker_count * sizeof(Answer);
}

std::span<std::uint64_t> Settling::lacks_of(Index index) {
  return std::span(lacks_).subspan(index * words_, words_);
}

std::span<std::uint64_t> Settling::told_of(Index index) {
  return std::span(told_).subspan(index * words_, words_);
}

// ---- sums

void Settling::begin(PartSum& part, std::uint32_t frame_index, const Generations& generations) {
  if (!is_on()) return;
  end(part.frames[frame_index]);
  Index index = 0;
  if (free_.empty()) {
    index = static_cast<Index>(records_.size());
    records_.emplace_back();
    lacks_.resize(lacks_.size() + words_, 0);
    told_.resize(lacks_.size(), 0);
  } else {
    index = free_.back();
    free_.pop_back();
  }
  records_[index] = {.part = &part,
                     .frame = frame_index,
                     .round = Round(part.frames[frame_index].round.value - 1),
                     .holders = 1};
  const std::span lacks = lacks_of(index);
  std::fill(lacks.begin(), lacks.end(), 0);
  const std::span told = told_of(index);
  std::fill(told.begin(), told.end(), 0);
  const Contributors& contributors = *part.tensor->contributors;
  for (std::uint32_t place = 0; place < contributors.count(); ++place) {
    if (generations.is_done(contributors, place) || contributors.are_all_at(place, left_)) continue;
    set_bit(lacks, contributors.at(place, part.tensor->key, part.index));
  }
  part.frames[frame_index].settling = index + 1;
  if (!above_) return;
  set_bit(lacks, *above_);
  look_at_crew(index);
}

// Whether nobody of the crew lacks it any more.
void Settling::look_at_crew(Index index) {
  Record& record = records_[index];
  if (record.crew_has || record.part == nullptr) return;
  const std::span lacks = lacks_of(index);
  const bool is_above = has_bit(lacks, *above_);
  clear_bit(lacks, *above_);
  const bool any = has_any_bit(lacks);
  if (is_above) set_bit(lacks, *above_);
  if (!any) say_crew_has(index);
}

void Settling::say_crew_has(Index index) {
  Record& record = records_[index];
  if (std::exchange(record.crew_has, true)) return;
  const PartSum& part = *record.part;
  crew_has_.push_back({.key = part.tensor->key,
                       .part = part.index,
                       .frame = record.frame,
                       .offset_bytes = record.frame * part.frame_bytes,
                       .round = record.round});
}

void Settling::wait_for_root(PartSum& part, std::uint32_t frame_index,
                             const Generations& generations) {
  const TensorSum& tensor = *part.tensor;
  if (!is_on() || !tensor.declared.root_only || PLANTED(root_unawaited)) return;
  if (has_bit(left_, tensor.declared.root)) return;
  if (above_ && !tensor.contributors->has(tensor.declared.root)) return;  // the servers have waited
  const std::uint32_t place = tensor.contributors->place_of(
      tensor.contributors->speaker_of(tensor.declared.root, tensor.key, part.index));
  part.frames[frame_index].waits_for_root = !generations.is_done(*tensor.contributors, place);
}

bool Settling::may_answer(const PartSum& part, std::uint32_t frame_index, WorkerRank to) {
  return !part.frames[frame_index].waits_for_root ||
         part.tensor->contributors->speaks_for(to, part.tensor->declared.root);
}

void Settling::end(FrameSum& frame) {
  frame.waits_for_root = false;
  if (frame.settling == 0) return;
  const Index index = std::exchange(frame.settling, 0) - 1;
  if (above_) say_crew_has(index);  // N2
  tell_those(index);
  records_[index].part = nullptr;
  let_go(index);
  if (due_ns_ == kNever) due_ns_ = now_ + kSilenceNs;
}

void Settling::note_told(FrameSum& frame, WorkerRank worker) {
  if (frame.settling == 0) return;
  set_bit(told_of(frame.settling - 1), worker);
  note_has(frame, worker);
}

void Settling::tell_those(Index index) {
  const std::span told = told_of(index);
  if (!has_any_bit(told)) return;
  const Record& record = records_[index];
  const PartSum& part = *record.part;
  for (WorkerRank worker(0); worker.value < answers_.size(); ++worker.value) {
    if (!has_bit(told, worker)) continue;
    told_settled_.push_back({.frame = {.key = part.tensor->key,
                                       .part = part.index,
                                       .frame = record.frame,
                                       .offset_bytes = record.frame * part.frame_bytes,
                                       .round = record.round},
                             .worker = worker});
  }
}

// All have the sum.
void Settling::settle(Index index) {
  Record& record = records_[index];
  FrameSum& frame = record.part->frames[record.frame];
  if (!frame.is_forwarded) frame.finished = {};  // or that is what goes to the servers
  end(frame);
}

void Settling::let_go(Index index) {
  if (--records_[index].holders == 0) free_.push_back(index);
}

void Settling::note_has(FrameSum& frame, WorkerRank worker) {
  if (frame.settling == 0) return;
  const Index index = frame.settling - 1;
  const Record& record = records_[index];
  if (frame.waits_for_root && may_answer(*record.part, record.frame, worker)) root_has(frame);
  const std::span lacks = lacks_of(index);
  clear_bit(lacks, worker);
  if (above_) look_at_crew(index);
  if (!has_any_bit(lacks) || PLANTED(settled_by_first)) settle(index);
}

void Settling::root_has(FrameSum& frame) {
  const Record& record = records_[frame.settling - 1];
  frame.waits_for_root = false;
  answerable_.push_back({.key = record.part->tensor->key,
                         .part = record.part->index,
                         .frame = record.frame,
                         .round = record.round});
}

void Settling::note_left(WorkerRank worker) {
  if (!is_on()) return;
  set_bit(left_, worker);
  for (Index index = 0; index < records_.size(); ++index) {
    if (records_[index].part == nullptr) continue;
    PartSum& part = *records_[index].part;
    FrameSum& frame = part.frames[records_[index].frame];
    if (frame.waits_for_root && part.tensor->declared.root == worker) root_has(frame);
    const Contributors& contributors = *part.tensor->contributors;
    for (std::uint32_t place = 0; place < contributors.count() && frame.settling != 0; ++place) {
      const WorkerRank speaker = contributors.at(place, part.tensor->key, part.index);
      const bool lacks = has_bit(lacks_of(index), speaker);
      if (lacks && contributors.are_all_at(place, left_)) note_has(frame, speaker);
    }
  }
}

// ---- counts

std::uint32_t Settling::answer(const FrameSum& frame, WorkerRank to) {
  if (!is_on()) return 0;
  Answers& answers = answers_[to.value];
  const std::uint32_t number = ++answers.sent;
  if (frame.settling != 0) {
    answers.open.push_back({number, frame.settling - 1});
    ++records_[frame.settling - 1].holders;
    if (answers.open.size() >= answers.sweep_at) sweep(answers);
  }
  return answers.told = settled_of(answers);
}

const char* Settling::ack(WorkerRank from, std::uint32_t count) {
  if (!is_on()) return nullptr;
  Answers& answers = answers_[from.value];
  if (further_by(count, answers.acked) < 0) return "it says that fewer answers came than before";
  if (further_by(count, answers.sent) > 0) return "it says that more answers came than were sent";
  answers.acked = count;
  while (answers.acked_open < answers.open.size()) {
    const Answer next = answers.open[answers.acked_open];
    if (further_by(count, next.number) < 0) break;
    ++answers.acked_open;
    const Record& record = records_[next.record];
    if (record.part != nullptr) note_has(record.part->frames[record.frame], from);
  }
  return nullptr;
}

void Settling::connect(WorkerRank worker) {
  if (!is_on()) return;
  Answers& answers = answers_[worker.value];
  for (const Answer& each : answers.open) let_go(each.record);
  answers = Answers{};
}

// Those before the first that is not settled.
void Settling::drop_settled(Answers& answers) {
  while (!answers.open.empty() && records_[answers.open.front().record].part == nullptr) {
    let_go(answers.open.front().record);
    answers.open.pop_front();
    if (answers.acked_open > 0) --answers.acked_open;
  }
}

// Of how many answers, without a gap, the sums are settled.
std::uint32_t Settling::settled_of(Answers& answers) {
  drop_settled(answers);
  return answers.open.empty() ? answers.sent : answers.open.front().number - 1;
}

// N3: those behind one that is not settled, too.
void Settling::sweep(Answers& answers) {
  std::deque<Answer> open;
  std::size_t acked_open = 0;
  for (std::size_t at = 0; at < answers.open.size(); ++at) {
    const Answer each = answers.open[at];
    if (records_[each.record].part == nullptr) {
      let_go(each.record);
      continue;
    }
    open.push_back(each);
    if (at < answers.acked_open) ++acked_open;
  }
  answers.open = std::move(open);
  answers.acked_open = acked_open;
  answers.sweep_at = kIdleMax + 2 * answers.open.size();
}

std::size_t Settling::answer_count() const {
  std::size_t count = 0;
  for (const Answers& each : answers_) count += each.open.size();
  return count;
}

// ---- time

void Settling::tick(TimeNs now, ShelfOutputs& out) {
  now_ = now;
  if (now < due_ns_) return;
  due_ns_ = kNever;
  for (WorkerRank worker(0); worker.value < answers_.size(); ++worker.value) {
    Answers& answers = answers_[worker.value];
    const std::uint32_t settled = settled_of(answers);
    if (settled == answers.told) continue;
    answers.told = settled;
    out.emplace_back(ShelfOutput::Settled{worker, settled});
  }
}

}  // namespace byteps
