// ShardTraffic: all that goes to and fro between a pipeline and the shards (or relays) at the ends of its ways:
// connections, messages, and frames in turn. Of a worker, or of a relay.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "base/config.h"
#include "base/ids.h"
#include "base/log.h"
#include "base/quiet_lines.h"
#include "base/status.h"
#include "base/time.h"
#include "member/shares.h"
#include "net/transport.h"
#include "net/wire.h"
#include "worker/connections.h"
#include "worker/pipeline.h"
#include "worker/traffic_counters.h"

namespace byteps {

class ShardTraffic {
 public:
  // Who has the pipeline.
  class Owner {
   public:
    virtual ~Owner() = default;
    // Not ok: it breaks the protocol, and its connection ends.
    virtual Status on_message(ShardIndex shard, const wire::Header& header, const Event& event) = 0;
    virtual void on_sent(SendToken token) = 0;
  };

  // All outlive it.
  ShardTraffic(const Config& config, Transport& transport, const Log& log, Owner& owner)
      : transport_(transport), log_(log), owner_(owner), connections_(config, transport, log) {}

  // From here on; before, there is nothing to do.
  void begin(Pipeline& pipeline, const ShardConnections::Job& job, std::vector<ShardPlace> places,
             TimeNs now);
  ShardConnections& connections() { return connections_; }
  const ShardConnections& connections() const { return connections_; }

  // `is_ending`: connections end by our own doing. False: it is of none of these connections.
  bool handle(const Event& event, TimeNs now, bool is_ending);
  // Sends what may go, and returns how much that was.
  std::size_t send_frames();
  // What was exchanged so far, here and `beside`.
  void publish(TrafficCounters& counters, const PipelineCounters& beside = {}) const;
  // What kMismatch says; `tensor`: its name, where it is known.
  Status error_of_mismatch(ShardIndex shard, const wire::Text& text,
                           const std::string& tensor) const;

 private:
  void receive(ShardIndex shard, const Event& event, TimeNs now);
  bool send_next(ShardIndex shard);

  Transport& transport_;
  const Log& log_;
  Owner& owner_;
  ShardConnections connections_;
  Pipeline* pipeline_ = nullptr;  // from begin() on
  ShardIndex next_shard_;         // whose turn it is to send
  QuietLines<1> quiet_;           // shards that break the protocol
};

}  // namespace byteps
