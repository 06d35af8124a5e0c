#include "scheduler/ending.h"

#include <algorithm>
#include <utility>

namespace byteps {

void Ending::begin(Status outcome, TimeNs until_ns, KeeperOutputs& out) {
  outcome_ = std::move(outcome);
  until_ns_ = until_ns;
  for (auto& [arrival, seat] : seats_.all()) tell(seat, out);
}

void Ending::tell(Seat& seat, KeeperOutputs& out) const {
  if (seat.left) seat.heard_end = true;  // it is done with us
  if (!seat.peer || seat.left) return;
  seat.told_end = true;
  if (outcome_.is_ok() && !seat.worker()) {
    return speaker_.send(*seat.peer, wire::Kind::kLeave, WorkerRank(),
                         wire::encode(wire::Leave{true}), out);
  }
  const Status why = outcome_.is_ok()
                         ? Status(Code::kCancelled, "the job has ended: all workers have left")
                         : outcome_;
  speaker_.send(*seat.peer, wire::Kind::kFail, WorkerRank(), encode_status(why), out);
}

// All have acknowledged the last word or, told that the job has failed and disconnected, have not come back for a sixth
// of the failure timeout, which is several of their attempts. After a good end nobody goes without a word, so who is
// not back is cut off, and gets as long as in the middle of the job: it would end with an error otherwise.
TimeNs Ending::end_ns() const {
  TimeNs end = seats_.connections().empty() ? 0 : until_ns_;
  for (const auto& [arrival, seat] : seats_.all()) {
    if (seat.heard_end) continue;
    const bool gone = seat.told_end && !seat.peer && !outcome_.is_ok();
    end = std::max(end, gone ? seat.heard_ns + timeout_.heartbeat_ns() : until_ns_);
  }
  return std::min(end, until_ns_);
}

}  // namespace byteps
