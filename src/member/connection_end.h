// What the end of a connection comes from, for whoever gives up because there is none.
#pragma once

#include "base/cause.h"
#include "base/status.h"

namespace byteps {

// `why`: how it ended, or the last attempt at it. It is what this process has run out of, or what the peer has; damage
// on the way from the peer; or `otherwise`, which is the peer's. `for_ns`: since there is none.
Cause cause_of_end(const Status& why, CauseKind otherwise, const Participant& peer, TimeNs for_ns);

}  // namespace byteps
