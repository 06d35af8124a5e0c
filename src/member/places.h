// Places: where the workers of a job are in their machines, as its roster says it (base/place.h).
//
// The scheduler gives them out once for each epoch. Each stands in the roster once, and workers say which is theirs:
// machines are mostly alike, so eight GPUs are eight places on one machine, and on a hundred.
#pragma once

#include <vector>

#include "base/ids.h"
#include "base/place.h"
#include "net/wire.h"

namespace byteps {

// Of its workers, by rank, those that have a device. All or nothing: a machine that misses some is planned for wrongly,
// so where they take more than kPlacesBytesMax nobody has one, and nobody plans.
void give_places(const std::vector<topology::Place>& places, wire::Roster& roster);

// Of these workers, in this order; of one without, an empty one.
std::vector<topology::Place> places_of(const wire::Roster& roster,
                                       const std::vector<WorkerRank>& workers);

}  // namespace byteps
