#include "member/connection_end.h"

namespace byteps {

Cause cause_of_end(const Status& why, CauseKind otherwise, const Participant& peer, TimeNs for_ns) {
  const Cause& known = why.cause();
  const bool ran_out =
      known.kind == CauseKind::kNoDescriptors || known.kind == CauseKind::kNoMemory;
  const bool keeps_kind = ran_out || known.kind == CauseKind::kDamaged;
  Cause cause;
  cause.kind = keeps_kind ? known.kind : otherwise;
  if (!ran_out || known.is_of_peer) cause.who = peer;
  cause.for_ns = for_ns;
  cause.detail = why.message();
  return cause;
}

}  // namespace byteps
