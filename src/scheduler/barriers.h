// Barriers: those of an epoch, one after the other. The workers of the epoch arrive, and when all have, all are told; a
// worker that leaves without having come makes it one that never ends.
#pragma once

#include <cstdint>
#include <optional>
#include <set>

#include "base/ids.h"
#include "base/status.h"
#include "scheduler/outputs.h"
#include "scheduler/seats.h"

namespace byteps {

class Barriers {
 public:
  // Both outlive it.
  Barriers(Seats& seats, const Speaker& speaker) : seats_(seats), speaker_(speaker) {}

  // So many are done already.
  void begin_epoch(std::uint32_t worker_count, std::uint64_t done = 0);
  // A worker of the epoch has come to the barrier of this number. False: that is not its turn.
  bool arrive(const Seat& seat, std::uint64_t number, KeeperOutputs& out);
  // Nobody waits for this worker any more: it is lost, and its rank vacant.
  void lose(std::uint32_t rank, KeeperOutputs& out);
  // A worker has left: those that wait at the open barrier may wait for ever now.
  void on_left(KeeperOutputs& out) const;

  std::uint64_t number() const { return number_; }                     // of the open one
  const std::set<std::uint32_t>& arrived() const { return arrived_; }  // ranks

 private:
  void end_if_all_are_here(KeeperOutputs& out);
  std::optional<WorkerRank> misses_for_ever() const;
  void answer(const Seat& to, std::uint64_t number, std::optional<WorkerRank> never,
              KeeperOutputs& out) const;

  Seats& seats_;
  const Speaker& speaker_;
  std::uint64_t number_ = 0;
  std::set<std::uint32_t> arrived_;
  std::uint32_t size_ = 0;
};

}  // namespace byteps
