#include "scheduler/barriers.h"

#include "base/limits.h"
#include "base/planted.h"

namespace byteps {

void Barriers::begin_epoch(std::uint32_t worker_count, std::uint64_t done) {
  number_ = done;
  arrived_.clear();
  size_ = worker_count;
}

bool Barriers::arrive(const Seat& seat, std::uint64_t number, KeeperOutputs& out) {
  const std::optional<WorkerRank> never = misses_for_ever();
  if (number > number_ && !never) return false;
  if (number < number_) {
    answer(seat, number, std::nullopt, out);
    return true;
  }
  if (never) {
    answer(seat, number, never, out);
    return true;
  }
  if (PLANTED(barrier_counted_twice) && arrived_.contains(seat.rank)) {
    arrived_.insert(kWorkersMax + seat.rank);
  }
  arrived_.insert(seat.rank);
  end_if_all_are_here(out);
  return true;
}

void Barriers::end_if_all_are_here(KeeperOutputs& out) {
  if (arrived_.empty() || arrived_.size() < size_) return;
  arrived_.clear();
  const std::uint64_t number = number_++;
  for (const auto& [arrival, other] : seats_.all()) {
    if (other.plays()) answer(other, number, std::nullopt, out);
  }
}

void Barriers::lose(std::uint32_t rank, KeeperOutputs& out) {
  if (PLANTED(barrier_counts_vacant)) return;
  --size_;
  arrived_.erase(rank);
  end_if_all_are_here(out);
}

void Barriers::on_left(KeeperOutputs& out) const {
  const std::optional<WorkerRank> never = misses_for_ever();
  if (!never) return;
  for (const auto& [arrival, other] : seats_.all()) {
    if (other.plays() && arrived_.contains(other.rank)) answer(other, number_, never, out);
  }
}

// A worker that left without having come to the open barrier: no barrier of this epoch ends any more.
std::optional<WorkerRank> Barriers::misses_for_ever() const {
  for (const auto& [arrival, seat] : seats_.all()) {
    if (seat.in_roster && seat.left && !arrived_.contains(seat.rank)) return WorkerRank(seat.rank);
  }
  return std::nullopt;
}

void Barriers::answer(const Seat& to, std::uint64_t number, std::optional<WorkerRank> never,
                      KeeperOutputs& out) const {
  if (!to.peer || to.left) return;
  speaker_.send(*to.peer, wire::Kind::kBarrierDone, never.value_or(WorkerRank()),
                wire::encode(wire::Barrier{number}), out);
  if (never) std::get<KeeperOutput::Send>(out.back()).header.flags = wire::kNeverDone;
}

}  // namespace byteps
