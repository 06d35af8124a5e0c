// Shard: the shell around a Shelf. One Actor with its own listening transport, keys and memory; it
// shares nothing with the other shards of its server. Transport events go into the shelf, what the
// shelf says goes out. Whose events count, and how words get to workers, is worker_links.h's, with S1 to S4.
//
//   S5 A shard that none of its epoch's workers has been connected to for twice the failure timeout forgets all: each
//      of them has given it up by then. Between two epochs, and as a spare server of the next, it holds no sums.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/buffer.h"
#include "base/config.h"
#include "base/ids.h"
#include "base/log.h"
#include "base/status.h"
#include "base/time.h"
#include "base/timeline.h"
#include "loop/actor.h"
#include "loop/mailbox.h"
#include "member/summing.h"
#include "net/transport.h"
#include "server/shelf.h"
#include "server/worker_links.h"

namespace byteps {

// What the ServerMember tells a shard.
struct ShardCommand {
  enum class Kind : std::uint8_t {
    kBeginEpoch,  // forget what was before and serve `facts`; answered by kEpochApplied or kFailed
    kStop,        // close all connections and end
    kPing,        // answered by kAlive: this shard's thread comes round
    kWorkerLeft,  // `worker` has left the job
    kWorkerLost,  // `worker` is lost, and its rank vacant: it is served no more, but for the relay that stands in
  };
  Kind kind = Kind::kStop;
  ShelfEpoch facts;               // kBeginEpoch
  std::uint32_t server_rank = 0;  // kBeginEpoch: who this server is in it
  Incarnation incarnation{};      // kBeginEpoch: of the job
  TimeNs failure_ns = 0;          // kBeginEpoch: its failure timeout; 0: as this process was told
  std::uint32_t since = 0;        // kBeginEpoch: wire::Slot
  WorkerRank worker{};            // kWorkerLeft, kWorkerLost
  StandIns stand_ins{};           // kBeginEpoch, kWorkerLost: for whose relays others stand
};

// What a shard tells the ServerMember.
struct ShardNotice {
  enum class Kind : std::uint8_t {
    kEpochApplied,  // workers of `epoch` may connect now
    kFailed,        // this shard cannot go on: `why`
    kAlive,         // the answer to kPing
  };
  Kind kind = Kind::kEpochApplied;
  ShardIndex shard;
  Epoch epoch;
  Status why;
};

class Shard final : public Actor {
 public:
  // The transport listens already, and checks version and job of each Hello. It, the mailboxes and
  // the config must outlive the shard; the transport is used by this shard only, and must not touch
  // lent payloads any more once the shard is destroyed (so close or destroy it first, or wait for
  // finished()).
  Shard(const Config& config, ShardIndex index, Transport& transport, Mailbox<ShardCommand>& inbox,
        Mailbox<ShardNotice>& outbox, Log log, AbsenceSink absences = {});

  std::size_t turn(TimeNs now) override;
  TimeNs next_deadline() const override;
  // After kStop, once all connections are down and all lent buffers are back.
  bool finished() const override;
  // The job fails: the ServerMember hears why.
  void failed(const Status& why) override;

  // For metrics and tests.
  std::size_t lent_bytes() const { return pool_.lent_bytes(); }
  std::size_t queued_message_count() const { return links_.queued_message_count(); }
  const Shelf& shelf() const { return shelf_; }
  Epoch epoch() const { return self_.epoch; }  // the one it serves

  static constexpr std::size_t kEventBatch = 256;
  static constexpr std::size_t kEventsPerStep = 2;  // of look_ahead()
  static constexpr int kBatchesPerTurn = 8;  // then the mailbox and the timers get their turn

 private:
  std::size_t take_commands();
  void begin_epoch(const ShardCommand& command);
  void forget();
  TimeNs forgets_ns() const;

  void look_ahead(std::size_t at, std::size_t count) const;
  void handle(const Event& event, TimeNs now);
  std::size_t deliver();
  void notify(ShardNotice::Kind kind, Status why);
  void post_notices();

  // Constant after construction.
  const ShardIndex index_;
  Transport& transport_;
  Mailbox<ShardCommand>& inbox_;
  // To the ServerMember.
  struct Notices {
    Mailbox<ShardNotice>& box;
    std::vector<ShardNotice> waiting;  // not yet taken by the box
  };
  Notices notices_;
  const Log log_;
  const AbsenceSink absences_;    // empty: they are not recorded
  TimelineLane* const timeline_;  // null: none is recorded

  // Owned by the loop.
  BufferPool pool_;  // first: it outlives all refs
  Shelf shelf_;
  ShelfOutputs out_;
  WorkerLinks links_;
  Hello self_;  // what workers are told who connect; its epoch is 0 while there is none
  // Of one turn, to reuse the memory.
  struct Scratch {
    std::vector<ShardCommand> commands;
    std::vector<Event> events;
  };
  Scratch scratch_;
  TimeNs now_ = 0;
  TimeNs patience_ns_;  // S5
  bool stopping_ = false;
};

}  // namespace byteps
