// The hub of a communicator of the fake's NCCL: a thread in the process of rank 0, to which all ranks have a line.
//
// It sees that all ranks issue the same collectives in the same order, computes them in the order of ranks, and tells
// the others when one is gone. It ends when all lines have ended.
#pragma once

#include <atomic>
#include <string>

#include "tests/gpu/nccl_wire.h"

namespace fake_nccl {

// How long anything waits for other ranks: FAKE_NCCL_WAIT_S (60). What would be a hang is a violation then.
int wait_s();

// Listens under a name, for ranks to come. False: somebody does already.
bool start_hub(const std::string& name, int ranks);
// A line to the hub of that name; -1: there was none for wait_s(), or `gives_up` became true.
int call_hub(const std::string& name, const std::atomic<bool>& gives_up);

}  // namespace fake_nccl
