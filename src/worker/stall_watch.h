// StallWatch: notices that nothing moves at this worker any more (docs/protocol.md, Stalls). It looks every sixth of
// the failure timeout; what has not moved from one look to the next stands.
#pragma once

#include <cstdint>

#include "base/time.h"

namespace byteps {

class StallWatch {
 public:
  // `patience_ns`: a worker at which nothing moves for so long gives up without proof; 0: it never does.
  explicit StallWatch(TimeNs patience_ns) : patience_ns_(patience_ns) {}

  enum class Finding : std::uint8_t {
    kNotYet,     // it is not time to look
    kMoves,      // something has moved since the last look
    kStands,     // nothing has: a stall if it is proven that nobody can submit anything
    kImpatient,  // and for so long that it counts as one without proof
    kOver,       // and for so long that nobody else has ended the job meanwhile
  };
  // `moved`: how much has moved so far. `failure_ns`: the job's failure timeout.
  Finding look(TimeNs now, std::uint64_t moved, TimeNs failure_ns);
  TimeNs next_look_ns() const { return next_look_ns_; }
  TimeNs stands_since_ns() const { return stands_since_ns_; }

 private:
  const TimeNs patience_ns_;
  TimeNs next_look_ns_ = 0;
  TimeNs stands_since_ns_ = 0;  // as of the last look
  std::uint64_t moved_ = 0;     // likewise
};

}  // namespace byteps
