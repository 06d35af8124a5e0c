#include "server/generations.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "server/worker_bits.h"

namespace byteps {

void Generations::begin_epoch(std::uint32_t worker_count) {
  no_more_.assign(bit_words_of(worker_count), 0);
  no_more_count_ = 0;
  number_ = 0;
  announced_by_.reset();
  begun_by_.reset();
  longest_.reset();
  heard_in_.assign(worker_count, 0);
}

bool Generations::has_no_more(WorkerRank worker) const {
  return no_more_count_ > 0 && has_bit(no_more_, worker);
}

std::optional<std::int32_t> Generations::hear(WorkerRank from, std::uint32_t generation,
                                              bool has_no_more) {
  const std::int32_t ahead = later_by(Round(generation), Round(number_));
  if (ahead > kAheadMax) return std::nullopt;
  if (ahead >= 0) heard_in_[from.value] = generation + (has_no_more ? 1 : 0);
  if (ahead > 0 && !announced_by_) announced_by_ = from;
  return ahead;
}

void Generations::note_rounds(WorkerRank from, std::uint64_t rounds) {
  if (longest_ && rounds < longest_rounds_) return;
  longest_ = from;
  longest_rounds_ = rounds;
}

bool Generations::finish(WorkerRank from) {
  set_bit(no_more_, from);
  return ++no_more_count_ == heard_in_.size();
}

Round Generations::begin(std::uint32_t generation, WorkerRank last) {
  const Round former_first = byteps::first_round(std::exchange(number_, generation));
  if (announced_by_ && heard_in_[announced_by_->value] <= generation) announced_by_.reset();
  begun_by_.reset();
  last_ = last;
  longest_.reset();
  no_more_count_ = 0;
  std::fill(no_more_.begin(), no_more_.end(), 0);
  return former_first;
}

Round Generations::begin_by_word_of(std::uint32_t generation, WorkerRank by) {
  const Round former_first = begin(generation, by);
  begun_by_ = by;
  return former_first;
}

bool Generations::begins(WorkerRank from, Round round) const {
  if (!announced_by_) return false;
  const std::uint32_t generation = heard_in_[from.value];
  return later_by(Round(generation), Round(number_)) > 0 &&
         later_by(round, byteps::first_round(generation)) >= 0;
}

// It has not said that it has no more. So the other's word was not true.
std::optional<Generations::Untrue> Generations::contradict(WorkerRank from) {
  if (!announced_by_ || heard_in_[from.value] > number_) return std::nullopt;
  std::ostringstream text;
  text << "it said that nobody had more inputs in generation " << number_ << ", but " << from
       << " has";
  const WorkerRank by = *std::exchange(announced_by_, std::nullopt);
  heard_in_[by.value] = number_;
  return Untrue{by, text.str()};
}

std::optional<Generations::Untrue> Generations::contradict_late(WorkerRank from,
                                                                Round round) const {
  if (!begun_by_ || later_by(round, first_round()) >= 0) return std::nullopt;
  if (heard_in_[from.value] >= number_) return std::nullopt;
  std::ostringstream text;
  text << *begun_by_ << " said that nobody had more inputs before generation " << number_
       << ", but " << from << " has";
  return Untrue{*begun_by_, text.str()};
}

}  // namespace byteps
