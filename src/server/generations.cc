#include "server/generations.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "server/worker_bits.h"

namespace byteps {

void Generations::begin_epoch(std::uint32_t worker_count) {
  no_more_.assign(bit_words_of(worker_count), 0);
  no_more_count_ = 0;
  lost_.assign(bit_words_of(worker_count), 0);
  lost_count_ = 0;
  finished_.clear();
  number_ = 0;
  announced_by_.reset();
  begun_by_.reset();
  longest_.reset();
  heard_in_.assign(worker_count, 0);
  said_in_.assign(worker_count, 0);
}

bool Generations::has_no_more(WorkerRank worker) const {
  return no_more_count_ > 0 && has_bit(no_more_, worker);
}

std::optional<std::int32_t> Generations::hear(WorkerRank from, std::uint32_t generation,
                                              bool has_no_more) {
  const std::int32_t ahead = later_by(Round(generation), Round(number_));
  if (ahead > kAheadMax) return std::nullopt;
  if (ahead >= 0) {
    heard_in_[from.value] = generation + (has_no_more ? 1 : 0);
    said_in_[from.value] = generation;
  }
  if (ahead > 0 && !announced_by_) {
    announced_by_ = from;
    announced_ = generation;
  }
  return ahead;
}

void Generations::note_rounds(WorkerRank from, std::uint64_t rounds) {
  if (longest_ && rounds < longest_rounds_) return;
  longest_ = from;
  longest_rounds_ = rounds;
}

bool Generations::finish(WorkerRank from) {
  finished_.push_back(from);
  set_bit(no_more_, from);
  return ++no_more_count_ == heard_in_.size();
}

bool Generations::lose(WorkerRank worker) {
  if (is_lost(worker)) return false;
  set_bit(lost_, worker);
  ++lost_count_;
  std::erase(finished_, worker);
  if (longest_ == worker) longest_.reset();
  if (announced_by_ == worker) {
    announced_by_.reset();
    for (WorkerRank each(0); each.value < heard_in_.size(); ++each.value) {
      const std::uint32_t in = said_in_[each.value];
      const std::uint32_t than = announced_by_ ? announced_ : number_;
      if (is_lost(each) || later_by(Round(in), Round(than)) <= 0) continue;
      announced_by_ = each;
      announced_ = in;
    }
  }
  if (has_no_more(worker)) return false;
  set_bit(no_more_, worker);
  return ++no_more_count_ == heard_in_.size();
}

WorkerRank Generations::last_of_all() const {
  if (longest_) return *longest_;
  return finished_.empty() ? WorkerRank() : finished_.back();
}

Round Generations::begin(std::uint32_t generation, WorkerRank last) {
  const Round former_first = byteps::first_round(std::exchange(number_, generation));
  if (announced_by_ && later_by(Round(announced_), Round(generation)) <= 0) announced_by_.reset();
  begun_by_.reset();
  last_ = last;
  longest_.reset();
  finished_.clear();
  no_more_count_ = lost_count_;
  no_more_ = lost_;
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
  heard_in_[by.value] = said_in_[by.value] = number_;
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
