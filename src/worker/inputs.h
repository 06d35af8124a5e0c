// Inputs: the end of a worker's inputs (join of Horovod; docs/protocol.md). When this worker has no more, and what is
// pending has ended, all shards are told; when all workers have none, the next generation begins.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "base/ids.h"
#include "base/planted.h"
#include "base/status.h"
#include "worker/work.h"

namespace byteps {

class Inputs {
 public:
  explicit Inputs(Work& work) : work_(work) {}

  // This worker has no more. The handle ends when all have none, or with end(); kInvalidArgument at once: it has said
  // so already; kUnsupported: a tensor has gone too far in this generation. `rounds`: what rounds() is then, where this
  // is not the worker's own pipeline.
  void finish(HandleId handle, std::optional<std::uint64_t> rounds = {});
  // A shard says that nobody has more, or that it has heard that this worker has none. True: the next generation has
  // begun, and the handle has ended.
  bool on_done(ShardIndex shard, const wire::Header& header);
  // At a relay, where operations may be about to end still: the same, when the last of them has.
  bool settle();
  // It cannot end well.
  void end(const Status& status);

  // All have none, but settle() waits for operations that are under way here.
  bool awaits_operations() const { return done_.has_value(); }
  bool is_finishing() const { return handle_.has_value(); }  // and waits for the others
  HandleId handle() const { return *handle_; }
  bool are_heard() const { return first_has_heard_; }
  std::uint32_t generation() const { return generation_; }
  WorkerRank last() const {
    return last_;
  }  // who said so last, of the last generation that has ended

  // What the shard has to know of the inputs; 0: nothing, for they begin so. The one that says who was last
  // (finishing.way) hears first that there are no more: the others then cannot end an operation without this worker
  // whose end makes another one say so there before this one. A relay says so for the worker beside it; its operations
  // are others'.
  std::uint64_t word_for(ShardIndex shard) const {
    const bool is_of_others = work_.config.is_relay && !PLANTED(inputs_end_before_heard);
    const bool has_ended = is_of_others || work_.operations.count() == 0;
    const bool no_more = handle_.has_value() && has_ended &&
                         (shard == work_.config.finishing.way || first_has_heard_);
    return std::uint64_t{generation_} * 2 + (no_more ? 1 : 0);
  }
  // How many rounds of a tensor at most this worker has begun in this generation.
  std::uint64_t rounds() const;
  // The flags of the message that says it.
  static std::uint8_t flags_of(std::uint64_t word) { return word % 2 == 1 ? wire::kNoMore : 0; }

 private:
  Status check_rounds() const;

  Work& work_;
  std::uint32_t generation_ = 0;
  std::optional<HandleId> handle_;            // this worker has no more
  std::optional<std::uint64_t> told_rounds_;  // rounds(), while there is such a handle at a relay
  bool first_has_heard_ = false;      // finishing.way, of that, while there is such a handle
  std::optional<wire::Header> done_;  // settle()
  WorkerRank last_;
};

}  // namespace byteps
