// Flow: how much may be on the way to each shard. The worker's credit (credit.h, and credit_tuner.h if it is asked for)
// is shared among the gates.
//
// What somebody waits for may stand behind what waits for others: at a relay, which has contributions of several, and
// at a worker, whose credit may be used up by tensors that others submit only when they have a later one. Nobody else
// asks for it: who would has contributed it, or has not begun it either. So where no answer comes on a relay's way, or
// a worker's has no credit for the part that is first there, more and more frames may be under way in spite of credit
// (docs/protocol.md, "who waits for whom"). On a slow network with many relays and shards answers take longer than
// that anywhere: what is under way takes its time at the rate of late. Frames that passed then would fill the queues,
// and be lost.
#pragma once

#include <cstdint>
#include <optional>

#include "base/ids.h"
#include "base/time.h"
#include "worker/coding_watch.h"
#include "worker/credit.h"
#include "worker/credit_tuner.h"
#include "worker/work.h"

namespace byteps {

class Flow {
 public:
  // Gives the gates of `work` their first credit.
  explicit Flow(Work& work);

  // What fits on the way to this shard, Transport::capacity_bytes().
  void set_capacity(ShardIndex shard, std::uint64_t bytes);
  // What Transport::round_trip_ns() says of it.
  void set_round_trip(ShardIndex shard, TimeNs round_trip_ns);
  // A frame that cost so much, of a part of this priority, was answered on this way, or will not be.
  void free(ShardWay& shard, std::uint64_t cost_bytes, std::int32_t priority);
  // A frame goes out; and here is its answer, of such a payload.
  void on_sent() {
    if (watches_coding_) coding_.on_sent(work_.now);
  }
  void on_answer(const Tensor& tensor, std::uint64_t payload_bytes);
  // A frame had to wait for credit, which costs so much.
  void on_blocked(ShardWay& shard, std::uint64_t cost_bytes);
  // Nothing is under way.
  void on_idle();
  void on_shard_down(ShardWay& shard);

  // Actor::patience(), where workers of a machine sum first. A worker that waits for much has no hurry with what comes
  // of it. A relay has none with more to send while each way has something under way, and more waits for credit.
  TimeNs patience() const;

  // As above.
  void tick();
  TimeNs next_deadline() const { return next_stall_ns_; }

 private:
  void share();
  TimeNs patience_with_way() const;
  void end_exchange();
  std::uint64_t frame_cost() const;
  bool has_credit(ShardWay& shard) const;
  void begin_stall(ShardWay& shard);
  void end_stall(ShardWay& shard);

  Work& work_;
  Credit credit_;
  std::optional<CreditTuner> tuner_;
  const bool watches_coding_;  // one for all
  CodingWatch coding_;
  TimeNs next_stall_ns_ = kNever;  // of the ways'
};

}  // namespace byteps
