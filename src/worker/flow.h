// Flow: how much may be on the way to each shard. The worker's credit (credit.h, and credit_tuner.h if it is asked for)
// is shared among the gates.
#pragma once

#include <cstdint>
#include <optional>

#include "base/ids.h"
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
  // A frame that cost so much was answered on this way, or will not be.
  void free(ShardWay& shard, std::uint64_t cost_bytes);
  // A frame had to wait for credit.
  void on_blocked(const ShardWay& shard);
  // Nothing is under way.
  void on_idle();
  void on_shard_down();

 private:
  void share();

  Work& work_;
  Credit credit_;
  std::optional<CreditTuner> tuner_;
};

}  // namespace byteps
