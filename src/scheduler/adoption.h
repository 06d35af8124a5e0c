// Adoption: survivors that are asked to serve a lost server's slots as well, where there is no spare one.
//
// Who is asked opens one more unit in its process: a server with a connection and shards of its own, which joins as any
// other and wishes for the rank. What then becomes of it is Succession's. If none has come in a third of the failure
// timeout another survivor is asked; should both come, one of them is a spare server.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "base/config.h"
#include "base/time.h"
#include "net/wire.h"
#include "scheduler/outputs.h"
#include "scheduler/seats.h"

namespace byteps {

class Adoption {
 public:
  // All outlive it.
  Adoption(const TimeoutConfig& timeout, Seats& seats, const Speaker& speaker)
      : timeout_(timeout), seats_(seats), speaker_(speaker) {}

  void begin_epoch() { calls_.clear(); }
  // This rank needs nobody any more.
  void settle(std::uint32_t rank) { calls_.erase(rank); }

  // The server of this rank needs a successor with so many shards, and none is there. Asks somebody, unless one that
  // lives was asked a while ago.
  void call(const Seat& lost, std::uint32_t shards, const wire::Roster& roster, TimeNs now,
            KeeperOutputs& out);
  // Who was asked for this rank last and is here; null.
  const Seat* asked(std::uint32_t rank) const;
  // When call() would ask somebody else; 0: nobody was to be asked for this rank yet.
  TimeNs due_ns(std::uint32_t rank) const;

  // Whether this server can be relied on: it is connected, and has said something lately.
  static bool is_well(const Seat& seat, const TimeoutConfig& timeout, TimeNs now) {
    return seat.peer && now <= seat.heard_ns + 2 * timeout.heartbeat_ns();
  }

 private:
  // What was done for a rank.
  struct Call {
    std::optional<Arrival> asked;
    std::set<Arrival> tried;
    TimeNs due_ns = 0;
  };
  bool is_answerable(const Call& call) const;
  std::optional<Arrival> best(const Seat& lost, const std::set<Arrival>& tried,
                              const wire::Roster& roster, TimeNs now) const;
  std::size_t slots_of(const Seat& seat, const wire::Roster& roster) const;

  const TimeoutConfig& timeout_;
  Seats& seats_;
  const Speaker& speaker_;
  std::map<std::uint32_t, Call> calls_;  // by rank
};

}  // namespace byteps
