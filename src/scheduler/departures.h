// Departures: workers that have left the running epoch, and who has been told.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "scheduler/outputs.h"
#include "scheduler/seats.h"

namespace byteps {

class Departures {
 public:
  // Both outlive it.
  Departures(Seats& seats, const Speaker& speaker) : seats_(seats), speaker_(speaker) {}

  void begin_epoch();
  std::uint32_t count() const { return count_; }
  // This one has left. `is_running`: the others are to be told; before, they hear of it with their roster.
  void add(const Seat& seat, bool is_running);
  // Tells the others of all who have left since the last time, in one message: when a thousand leave at once, that is
  // not a million messages. `is_running`: there is somebody to tell.
  void tell(bool is_running, KeeperOutputs& out);
  // Tells one worker of all who have left.
  void tell_all_to(PeerId peer, KeeperOutputs& out) const;

  // ---- where the job recovers: who leaves is answered when all servers know it, or without servers all other workers,
  // for they tell a scheduler that is begun anew. `barriers`: that are done. `gone_ns`: who was lost before may be gone
  // for good.

  // Tells each of them of all who want to leave, and of whom it has not been told: it may have come since, in the place
  // of one that is lost.
  void announce(std::uint64_t barriers, TimeNs gone_ns, KeeperOutputs& out);
  // One of them that has another connection, of all who have left or want to.
  void announce_all_to(Seat& witness, std::uint64_t barriers, KeeperOutputs& out);
  // It knows of these.
  void note_known(Seat& witness, const std::vector<std::uint32_t>& ranks);
  // Those that may be answered.
  std::vector<Arrival> known(TimeNs gone_ns) const;

 private:
  // nullopt: there are servers, but none is here. (When all workers leave, and they are gone for good, nobody needs to
  // know it.)
  std::optional<std::vector<Arrival>> witnesses(TimeNs gone_ns) const;
  // For who has been told of so many of those announced, of the others: who leaves for good, and who for a while.
  // Empty: nobody.
  std::array<SharedBytes, 2> departures_since(std::size_t count, std::uint64_t barriers) const;

  Seats& seats_;
  const Speaker& speaker_;
  std::uint32_t count_ = 0;
  std::vector<std::uint32_t> for_good_;  // ranks that the others are not told of yet
  std::vector<std::uint32_t> for_a_while_;
  std::vector<Arrival> announced_;  // in the order in which they wanted to leave
};

}  // namespace byteps
