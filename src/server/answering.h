// Answering: what a worker is sent of a finished sum.
#pragma once

#include <cstdint>

#include "base/ids.h"
#include "server/generations.h"
#include "server/inventory.h"
#include "server/settling.h"
#include "server/shelf_output.h"
#include "server/sums.h"

namespace byteps {

// The sum that a frame has finished last, to one worker. `tag`: of its push.
void append_answer(Epoch epoch, const PartSum& part, std::uint32_t frame_index, WorkerRank to,
                   std::uint32_t tag, Settling& settling, ShelfOutputs& out);

// Of frames whose root has by now what it alone gets, all others: they need not keep their contributions any more.
void append_answers_of_others(Epoch epoch, const Inventory& inventory,
                              const Generations& generations, Settling& settling,
                              ShelfOutputs& out);

}  // namespace byteps
