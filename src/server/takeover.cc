#include "server/takeover.h"

#include <algorithm>
#include <utility>

#include "base/planted.h"
#include "server/worker_bits.h"

namespace byteps {
namespace {

// In order of rank.
std::vector<WorkerRank> ranks_of(Takeover::Bits bits) {
  std::vector<WorkerRank> ranks;
  for (std::uint32_t rank = 0; rank < 64 * bits.size(); ++rank) {
    if (has_bit(bits, WorkerRank(rank))) ranks.emplace_back(rank);
  }
  return ranks;
}

}  // namespace

Takeover::Takeover(std::uint32_t worker_count, bool fetches)
    : fetches_(fetches),
      some_(bit_words_of(worker_count), 0),
      has_(bit_words_of(worker_count), 0),
      needs_(bit_words_of(worker_count), 0) {}

// Whether all that is known is from members that have no more inputs: others may be any number of rounds further.
bool Takeover::may_skip(const Scene& scene) const {
  if (scene.done.empty() || has_any_bit(scene.contributed) || has_any_bit(needs_)) return false;
  return count_bits_without(has_, scene.done) == 0;
}

// A member is in this round. If that is one further than was known, it has the sum of what was being summed: who has
// contributed to that needs it. False: it cannot be there.
bool Takeover::move_on(WorkerRank from, Round to, const Scene& scene, Doing& doing) {
  if (!round_) round_ = to;
  const std::int32_t ahead = later_by(to, *round_);
  if (ahead > 1 && !may_skip(scene)) {
    doing.is_wrong = true;
    return false;
  }
  if (ahead >= 1) {
    round_ = to;
    needs_.assign(scene.contributed.begin(), scene.contributed.end());
    std::fill(has_.begin(), has_.end(), 0);
    std::fill(some_.begin(), some_.end(), 0);
    has_sum_ = is_settled_ = false;
    asked_.reset();
    doing.drops = true;
  }
  if (ahead >= 0) {
    set_bit(has_, from);
    clear_bit(needs_, from);
  }
  return ahead >= 0;
}

Takeover::Doing Takeover::on_push(WorkerRank from, Round round, const Scene& scene) {
  Doing doing;
  if (round_ && later_by(round, *round_) == -1) {
    if (has_sum_) {
      doing.answered = {from};
    } else {
      set_bit(needs_, from);
      clear_bit(has_, from);  // a relay whose crew has lost who had it
    }
  } else {
    doing.adds = move_on(from, round, scene, doing);
  }
  ask(scene, doing);
  return doing;
}

Takeover::Doing Takeover::on_have(WorkerRank from, Round round, const Scene& scene) {
  Doing doing;
  move_on(from, Round(round.value + 1), scene, doing);
  ask(scene, doing);
  return doing;
}

Takeover::Doing Takeover::on_sum(WorkerRank from, Round round) {
  Doing doing;
  if (!round_ || has_sum_ || later_by(*round_, round) != 1 || !has_bit(has_, from)) return doing;
  has_sum_ = doing.keeps = true;
  doing.answered = ranks_of(needs_);
  std::fill(needs_.begin(), needs_.end(), 0);
  asked_.reset();
  return doing;
}

void Takeover::on_settled(WorkerRank from, Round round) {
  if (!round_ || has_sum_ || later_by(*round_, round) != 1 || !has_bit(has_, from)) return;
  is_settled_ = true;
  asked_.reset();
}

void Takeover::note_some(WorkerRank worker, bool some) {
  some ? set_bit(some_, worker) : clear_bit(some_, worker);
}

bool Takeover::is_for_some(WorkerRank worker) const {
  return has_bit(some_, worker);
}

Takeover::Doing Takeover::on_down(WorkerRank worker, const Scene& scene) {
  Doing doing;
  if (asked_ == worker) asked_.reset();
  ask(scene, doing);
  return doing;
}

Takeover::Doing Takeover::on_lost(WorkerRank worker, const Scene& scene) {
  Doing doing;
  if (asked_ == worker) asked_.reset();
  clear_bit(has_, worker);
  clear_bit(needs_, worker);
  ask(scene, doing);
  return doing;
}

bool Takeover::has_sum(WorkerRank worker) const {
  return has_bit(has_, worker);
}

bool Takeover::waits_only_for(Bits whom) const {
  if (has_sum() || !has_any_bit(needs_) || !has_any_bit(has_)) return false;
  return count_bits_without(has_, whom) == 0;
}

std::string Takeover::text() const {
  std::string text = round_ ? std::to_string(round_->value) : "?";
  text += has_sum_ ? '+' : '-';
  for (const std::uint64_t word : has_) text += ' ' + std::to_string(word);
  for (const std::uint64_t word : needs_) text += ' ' + std::to_string(word);
  return text + (asked_ ? '@' + std::to_string(asked_->value) : "");
}

void Takeover::ask(const Scene& scene, Doing& doing) {
  if (has_sum_ || asked_) return;
  const bool is_needed = has_any_bit(needs_);
  if (!is_needed && (!fetches_ || is_settled_ || !has_any_bit(has_))) return;
  if (!has_any_bit(has_) ||
      PLANTED(sum_made_anew)) {  // who had it is gone with it: nobody alive has used that sum
    --round_->value;
    doing.drops = true;
    doing.again = ranks_of(std::exchange(needs_, std::vector<std::uint64_t>(needs_.size(), 0)));
    return;
  }
  for (const WorkerRank rank : ranks_of(has_)) {
    if (!has_bit(scene.connected, rank)) continue;
    asked_ = doing.giver = rank;
    return;
  }
}

}  // namespace byteps
