// What the rest of the program relies on in a roster that somebody else has sent.
#pragma once

#include "base/status.h"
#include "net/wire.h"

namespace byteps {

// Members in order, places to connect to, sizes that can be divided by. kDisconnected with what is wrong.
Status check_roster(const wire::Roster& roster);
// Of workers that were lost.
std::vector<WorkerRank> vacant_ranks(const wire::Roster& roster);

std::uint32_t count_of(const wire::Roster& roster, Role role);

}  // namespace byteps
