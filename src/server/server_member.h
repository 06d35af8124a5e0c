// ServerMember: the part of a server that speaks with the scheduler. It joins with the endpoints
// of the server's shards, hands each roster to the shards, confirms an epoch only when every shard
// has applied it (so a worker that knows an epoch finds no shard that does not), and stops the
// shards when the job ends.
//
// Its heartbeats speak for the shards as well, which are threads of their own. So as often as it sends one it asks each
// shard for a sign of life; one that has given none for the failure timeout ends the job, by name: whoever waits for a
// sum there would otherwise wait for ever.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/log.h"
#include "base/status.h"
#include "loop/actor.h"
#include "loop/mailbox.h"
#include "member/member_port.h"
#include "member/sign_of_life.h"
#include "net/transport.h"
#include "server/shard.h"

namespace byteps {

class ServerMember final : public Actor {
 public:
  // `transport` connects only, and is used by this actor only. `host` is "host:pid", for messages
  // to people. `shard_endpoints[i]` is where workers reach shard i of this server, `shards[i]` its
  // inbox; `notices` is the box in which all shards answer, and wakes this actor. All references
  // must outlive it.
  ServerMember(const Config& config, Transport& transport, std::string host,
               std::vector<Endpoint> shard_endpoints, std::vector<Mailbox<ShardCommand>*> shards,
               Mailbox<ShardNotice>& notices, Log log);

  std::size_t turn(TimeNs now) override;
  TimeNs next_deadline() const override;
  // The job has ended for this server (see outcome), every shard was told to stop, and the
  // connection with the scheduler is closed.
  bool finished() const override;
  void failed(const Status& why) override { port_.fail(why, now_); }
  // Ok when the job ended well, otherwise why not. Meaningful after finished().
  const Status& outcome() const { return outcome_; }
  std::uint32_t rank() const { return served_.rank; }  // kNoRank: none yet

  // Ends this server, and with it the job (a signal came): the scheduler hears why. Any thread;
  // wake the actor afterwards.
  void request_stop() { stop_requested_.store(true, std::memory_order_release); }

 private:
  void handle(const MemberEvents::value_type& event);
  bool has_descriptors(std::size_t worker_count);
  void begin_epoch(const wire::Roster& roster);
  void handle(const ShardNotice& notice, TimeNs now);
  void end(Status outcome);
  void watch_shards(TimeNs now);
  void ask(std::size_t shard, TimeNs now);
  void post_commands();

  // Constant after construction.
  Transport& transport_;
  const std::vector<Mailbox<ShardCommand>*> shards_;
  Mailbox<ShardNotice>& notices_;
  const Log log_;
  const TimeoutConfig timeout_;
  const std::uint64_t descriptors_;  // that this process may have; 0: not known

  // Owned by the loop.
  MemberPort port_;
  std::vector<Event> events_;
  std::vector<ShardNotice> drained_;
  std::vector<std::vector<ShardCommand>> to_post_;  // by shard: not yet taken by its inbox
  // Handed to the shards.
  struct Served {
    Epoch epoch;
    std::uint32_t rank = kNoRank;  // in it
  };
  Served served_;
  std::vector<bool> applied_;      // by shard, of that
  std::vector<SignOfLife> signs_;  // by shard
  TimeNs next_round_ns_ = kNever;  // when all are asked again; from the first epoch on
  TimeNs planned_ns_ = kNever;     // when turn() wanted to be called next
  bool ended_ = false;
  Status outcome_;
  bool stop_seen_ = false;
  TimeNs now_ = 0;

  // Set by any thread, read by the loop.
  std::atomic<bool> stop_requested_{false};
};

}  // namespace byteps
