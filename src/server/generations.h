// Generations: which worker has said that it has no more inputs, and when all have (docs/protocol.md, the end of
// inputs). Then the next generation begins: rounds of the former one are over. A worker that is lost, whose rank is
// vacant from then on, has no more inputs in any generation.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "server/contributors.h"
#include "server/worker_bits.h"

namespace byteps {

class Generations {
 public:
  void begin_epoch(std::uint32_t worker_count);

  std::uint32_t number() const { return number_; }
  Round first_round() const { return byteps::first_round(number_); }
  WorkerRank last() const { return last_; }  // who had inputs longest in the generation before
  // Who has no more, and how many those are; the lost among them.
  bool has_no_more(WorkerRank worker) const;
  bool is_lost(WorkerRank worker) const { return lost_count_ > 0 && has_bit(lost_, worker); }
  std::span<const std::uint64_t> lost() const { return lost_; }  // a bit per worker
  std::uint32_t lost_count() const { return lost_count_; }
  std::span<const std::uint64_t> no_more() const { return no_more_; }
  std::uint32_t no_more_count() const { return no_more_count_; }
  // Whether nobody contributes at this place any more: all for whom that would be have no more.
  bool is_done(const Contributors& contributors, std::uint32_t place) const {
    return no_more_count_ > 0 && contributors.are_all_at(place, no_more_);
  }

  // Whether nobody contributes in any generation: all for whom that would be are lost.
  bool are_all_lost(const Contributors& contributors) const {
    if (lost_count_ == 0) return false;
    for (std::uint32_t place = 0; place < contributors.count(); ++place) {
      if (!contributors.are_all_at(place, lost_)) return false;
    }
    return true;
  }

  // Whether nobody contributes in this generation any more.
  bool are_all_done(const Contributors& contributors) const {
    for (std::uint32_t place = 0; place < contributors.count(); ++place) {
      if (!is_done(contributors, place)) return false;
    }
    return true;
  }

  // A worker says that it is in this generation, and whether it has no more inputs in it. How far that is ahead of
  // ours; nullopt: too far to be true.
  std::optional<std::int32_t> hear(WorkerRank from, std::uint32_t generation, bool has_no_more);
  // It has no more in the generation of now. True: that was the last.
  bool finish(WorkerRank from);
  // It is lost, for good. True: all others have no more, so the generation is over.
  bool lose(WorkerRank worker);
  // Who had inputs longest in the generation that is over, of those that are not lost.
  WorkerRank last_of_all() const;
  // Of a shard that took another one's place, where it is said again in any order: it has begun so many rounds.
  void note_rounds(WorkerRank from, std::uint64_t rounds);
  // The next one begins, of which `last` is the last of the one before. Returns the first round of that.
  Round begin(std::uint32_t generation, WorkerRank last);
  // The same by the word of one worker, before all have said so: there is something of it. See begun_by().
  Round begin_by_word_of(std::uint32_t generation, WorkerRank by);

  // Who is in a later one says that nobody has more in this one. That is one member's word: it costs nobody anything
  // before there is something of the later one to be summed. Whether this push of it is the first.
  bool begins(WorkerRank from, Round round) const;
  // The generation that it is in at least, by its own word.
  std::uint32_t heard_of(WorkerRank from) const { return heard_in_[from.value]; }
  // `from` contributes to the generation of now. When that shows another's word to be untrue, who has said it, and what
  // is to be said of that; the word no longer counts.
  struct Untrue {
    WorkerRank by;
    std::string text;
  };
  std::optional<Untrue> contradict(WorkerRank from);
  // `from` contributes to a round of a generation that is over by somebody's word alone, and has not said itself that
  // it has no more. Sums are lost already.
  std::optional<Untrue> contradict_late(WorkerRank from, Round round) const;

  // Whether a shard that took another one's place begins this generation because a worker says to be in it: any later
  // one while it knows of none, and then what a worker may be ahead.
  bool may_take_up(std::uint32_t generation) const {
    const std::int32_t ahead = later_by(Round(generation), Round(number_));
    return ahead > 0 && (number_ == 0 || ahead <= kAheadMax);
  }

 private:
  // A worker that was cut off from this shard may be so many generations ahead when it is back.
  static constexpr std::int32_t kAheadMax = 8;

  std::uint32_t number_ = 0;
  // Says that this later one has begun; nothing of it has come.
  std::optional<WorkerRank> announced_by_;
  std::uint32_t announced_ = 0;
  std::optional<WorkerRank> begun_by_;   // by whose word alone this one began
  std::vector<std::uint32_t> heard_in_;  // by worker: the one it is in at least, by its own word
  std::vector<std::uint32_t> said_in_;   // by worker: the one that it has named last
  WorkerRank last_;
  std::optional<WorkerRank> longest_;
  std::uint64_t longest_rounds_ = 0;
  std::vector<WorkerRank> finished_;  // in the generation of now, in that order
  std::uint32_t no_more_count_ = 0;
  std::vector<std::uint64_t> no_more_;  // a bit per worker
  std::uint32_t lost_count_ = 0;
  std::vector<std::uint64_t> lost_;  // a bit per worker: those are in no_more_, too
};

}  // namespace byteps
