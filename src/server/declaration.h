// What a worker declares of a tensor: whether a shard can serve it, whether two workers mean the
// same, and the words for people when they do not.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/ids.h"
#include "base/placement.h"
#include "net/wire.h"

namespace byteps {

// Empty when a shard can serve this declaration of `key` by worker `from`; otherwise what is wrong with it. A worker
// checks all of it before it declares, so a wrong one breaks the protocol.
std::string flaw_of(const wire::Declare& declared, Key key, WorkerRank from,
                    std::uint32_t worker_count, const Placement& placement);

// "(float32, shape 2x512, 4096 bytes, sum times 0.5, of workers 0-3)"
std::string described(const Spec& spec);

// The name in quotes, fit for a terminal: without control characters, cut when it is very long.
std::string quoted_name(std::string_view name);

// What to tell everyone when `first` and `second` are not the same tensor.
std::string difference_text(WorkerRank first_worker, const wire::Declare& first,
                            WorkerRank second_worker, const wire::Declare& second);

}  // namespace byteps
