// Uplink: what a relay (relay/relay.h) asks of its pipeline beside what a worker does; the first of it also whoever
// makes frames ready (staging.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "net/wire.h"
#include "worker/inputs.h"
#include "worker/kept_sums.h"
#include "worker/push.h"
#include "worker/road.h"
#include "worker/work.h"

namespace byteps {

class Uplink {
 public:
  // All outlive it.
  Uplink(Work& work, Push& push, KeptSums& kept, const Inputs& inputs, const Road& road)
      : work_(work), push_(push), kept_(kept), inputs_(inputs), road_(road) {}

  // Otherwise it is a worker's.
  bool is_relay() const { return work_.config.is_relay; }

  // Something to say to this shard, before anything else.
  void say(ShardIndex shard, Word&& word) { work_.shards[shard.value].say(std::move(word)); }
  // What is said of this kind about this key need not be said any more.
  void take_back(ShardIndex shard, wire::Kind kind, Key key) {
    work_.shards[shard.value].take_back(kind, key);
  }
  // More frames of this part are ready (Cargo).
  void on_ready(PartRef part);
  // Its name is not used again; what is under way of it ends as it does. Where it is not known here, but `stands_in`,
  // the shards may know it of the relay that was there before.
  void forget(Key key, const wire::Declare& declared);
  // The same of a name that is not known here, at all shards.
  void forget_everywhere(Key key);
  // The servers have not said yet that all have forgotten it.
  bool is_forgetting(Key key) const { return kept_.is_retired(key); }

  // See KeptSums.
  bool keeps_sums() const { return work_.config.keeps_sums; }
  bool keeps_any() const { return kept_.keeps_any(); }
  void note_begun(const wire::Declare& declared);
  void note_crew_has(Key key, PartIndex part, std::uint64_t offset_bytes, Round round) {
    kept_.note_crew_has(key, part, offset_bytes, round);
  }
  void inherit(const wire::Declare& declared, PartIndex part, std::uint64_t offset_bytes,
               Round round, const std::optional<std::span<const std::byte>>& sum);
  std::vector<KeptSums::Settled> take_settled() { return kept_.take_settled(); }
  void say_all() { kept_.say_all(); }

  // The servers have heard that the worker beside this relay has no more inputs, and it may be skipped.
  bool inputs_are_heard() const { return inputs_.are_heard(); }
  std::uint32_t inputs_generation() const { return inputs_.generation(); }

 private:
  Work& work_;
  Push& push_;
  KeptSums& kept_;
  const Inputs& inputs_;
  const Road& road_;
};

}  // namespace byteps
