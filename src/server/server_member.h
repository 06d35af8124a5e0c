// ServerMember: the part of a server that speaks with the scheduler. It joins with the endpoints
// of the server's shards, hands each roster to the shards, confirms an epoch only when every shard
// has applied it (so a worker that knows an epoch finds no shard that does not), and stops the
// shards when the job ends.
//
// Its heartbeats speak for the shards as well, which are threads of their own. So as often as it sends one it asks each
// shard for a sign of life; one that has given none for the failure timeout ends the job, by name: whoever waits for a
// sum there would otherwise wait for ever.
//
// A process has one, and another one with shards of its own for each server whose slots it was asked to take besides
// (docs/recovery.md). Who opens it is told by a box.
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

// The scheduler asks for one more unit.
struct UnitOrder {
  wire::Adopt wanted;
  std::size_t worker_count = 0;  // that would come to it; 0: not known
};

class ServerMember final : public Actor {
 public:
  // `transport` connects only, and is used by this actor only. `host` is "host:pid", for messages
  // to people. `shard_endpoints[i]` is where workers reach shard i of this server, `shards[i]` its
  // inbox; `notices` is the box in which all shards answer, and wakes this actor. All references
  // must outlive it.
  // `orders` gets what the scheduler asks for (what finds no room is asked for again); null: nobody opens anything.
  ServerMember(const Config& config, Transport& transport, std::string host,
               std::vector<Endpoint> shard_endpoints, std::vector<Mailbox<ShardCommand>*> shards,
               Mailbox<ShardNotice>& notices, Log log, Mailbox<UnitOrder>* orders = nullptr);

  std::size_t turn(TimeNs now) override;
  TimeNs next_deadline() const override;
  // The job has ended for this server (see outcome), every shard was told to stop, and the
  // connection with the scheduler is closed.
  bool finished() const override;
  void failed(const Status& why) override { port_.fail(why, now_); }
  // Ok when the job ended well, otherwise why not. Meaningful after finished().
  const Status& outcome() const { return ending_.outcome; }
  std::uint32_t rank() const { return served_.rank; }  // kNoRank: none yet
  // It was told to leave, and did: it had no place or another has it, or the job ended well.
  bool has_left() const { return ending_.is_over && stop_.leaves && ending_.outcome.is_ok(); }
  bool has_handed_over() const { return stop_.is_replaced; }

  // Ends this server, and with it the job (a signal came): the scheduler hears why. Any thread;
  // wake the actor afterwards.
  void request_stop() { shared_.stop_requested.store(kStop, std::memory_order_release); }
  // Likewise, but where a server that is lost gets a successor (Roster::recovers) it goes on until another one has its
  // slots, and the job does not end.
  void request_leave() {
    int none = kNone;
    shared_.stop_requested.compare_exchange_strong(none, kLeave, std::memory_order_acq_rel);
  }

  enum class State : std::uint8_t {
    kWaits,   // it has no place in the job yet
    kServes,  // it has, or had
    kEnded,   // finished(): what is said of its end may be read by whoever has seen this
  };
  // Any thread.
  State state() const { return shared_.state.load(std::memory_order_acquire); }

 private:
  void handle(const MemberEvents::value_type& event);
  bool has_descriptors(std::size_t worker_count);
  void begin_epoch(const wire::Roster& roster);
  void lose_workers(const wire::Roster& roster);
  void handle(const ShardNotice& notice, TimeNs now);
  void heed_stop(TimeNs now);
  void publish();
  void end(Status outcome);
  void watch_shards(TimeNs now);
  void ask(std::size_t shard, TimeNs now);
  void post_commands();

  enum StopRequest : int { kNone, kLeave, kStop };

  // Constant after construction.
  Transport& transport_;
  const std::vector<Mailbox<ShardCommand>*> shards_;
  Mailbox<ShardNotice>& notices_;
  Mailbox<UnitOrder>* const orders_;
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
    std::size_t worker_count = 0;
  };
  Served served_;
  std::vector<bool> applied_;      // by shard, of that
  std::vector<SignOfLife> signs_;  // by shard
  TimeNs next_round_ns_ = kNever;  // when all are asked again; from the first epoch on
  TimeNs planned_ns_ = kNever;     // when turn() wanted to be called next
  struct Ending {
    bool is_over = false;
    Status outcome;
  };
  Ending ending_;
  // What it was told, and what comes of that.
  struct Stop {
    int heeded = kNone;
    bool recovers = false;  // another may take its place
    bool leaves = false;
    bool is_replaced = false;  // because it leaves
  };
  Stop stop_;
  TimeNs now_ = 0;

  struct Shared {
    std::atomic<int> stop_requested{kNone};    // set by any thread, read by the loop
    std::atomic<State> state = State::kWaits;  // the other way
  };
  Shared shared_;
};

}  // namespace byteps
