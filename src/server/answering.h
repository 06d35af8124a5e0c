// Answering: what a worker is sent of a finished sum.
#pragma once

#include <cstdint>

#include "base/ids.h"
#include "server/settling.h"
#include "server/shelf_output.h"
#include "server/sums.h"

namespace byteps {

// The sum that a frame has finished last, to one worker. `tag`: of its push.
void append_answer(Epoch epoch, const PartSum& part, std::uint32_t frame_index, WorkerRank to,
                   std::uint32_t tag, Settling& settling, ShelfOutputs& out);

}  // namespace byteps
