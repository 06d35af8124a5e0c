// Losses: workers that are lost while a job runs that goes on without them (BYTEPS_ON_WORKER_LOSS=continue), and whether
// it can (docs/recovery.md, "A worker is lost").
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/time.h"
#include "scheduler/seats.h"

namespace byteps {

class Losses {
 public:
  // Both outlive it.
  Losses(bool continues, const TimeoutConfig& timeout, const Seats& seats)
      : continues_(continues), timeout_(timeout), seats_(seats) {}

  // The job goes on without a worker that is lost.
  bool are_borne() const { return continues_; }

  // Whoever has started the process of this rank has seen its end, and how that was. Nobody waits for it.
  void note_ended(WorkerRank rank, const std::string& how, TimeNs now) {
    ended_.try_emplace(rank.value, Ended{how, now});
  }
  // Another process has come under this rank.
  void note_new(std::uint32_t rank) { ended_.erase(rank); }
  struct Ended {
    std::string how;
    TimeNs at_ns = 0;
  };
  const std::map<std::uint32_t, Ended>& ended() const { return ended_; }
  // Of the running epoch, those whose processes have ended.
  std::vector<Arrival> ended_seats() const;

  // Without this one there is nobody left whose job it could be: all others are lost, and none has left it well.
  bool is_last(const Seat& lost) const;
  // When it is looked at: whether more than half of those that should be here are away, or silent. Then rather this
  // scheduler is cut off than that all of them are lost.
  void look(TimeNs now);
  bool is_cut_off() const { return is_cut_off_; }
  // So long a worker that has lost its connection may be away.
  TimeNs patience_ns() const;

 private:
  const bool continues_;
  const TimeoutConfig& timeout_;
  const Seats& seats_;
  std::map<std::uint32_t, Ended> ended_;  // by rank
  bool is_cut_off_ = false;
};

}  // namespace byteps
