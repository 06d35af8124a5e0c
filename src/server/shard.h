// Shard: the shell around a Shelf. One Actor with its own listening transport, keys and memory; it
// shares nothing with the other shards of its server. Transport events go into the shelf, what the
// shelf says goes out.
//
//   S1 At most one connection per worker rank is served: the newest. An older one is closed.
//   S2 A connection belongs to the epoch of its Hello; when an epoch begins, all connections of the
//      former one are closed.
//   S3 Messages to a worker leave in the order the shelf gave them: at once, or behind those that
//      wait for the window.
//   S4 Every lent buffer is held in lent_ from send() until its kSent.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "base/buffer.h"
#include "base/config.h"
#include "base/ids.h"
#include "base/log.h"
#include "base/status.h"
#include "loop/actor.h"
#include "loop/mailbox.h"
#include "net/transport.h"
#include "net/wire.h"
#include "server/shelf.h"

namespace byteps {

// What the ServerMember tells a shard.
struct ShardCommand {
  enum class Kind : std::uint8_t {
    kBeginEpoch,  // serve this roster's job; forget what was before. Answered by kEpochApplied (or
                  // kFailed)
    kStop,        // close all connections and end
  };
  Kind kind = Kind::kStop;
  ShelfEpoch facts;  // kBeginEpoch
};

// What a shard tells the ServerMember.
struct ShardNotice {
  enum class Kind : std::uint8_t {
    kEpochApplied,  // workers of `epoch` may connect now
    kFailed,        // this shard cannot go on: `why`
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
        Mailbox<ShardNotice>& outbox, Log log);

  std::size_t turn(TimeNs now) override;
  TimeNs next_deadline() const override;
  // After kStop, once all connections are down and all lent buffers are back.
  bool finished() const override;

  // For metrics and tests.
  std::size_t lent_bytes() const { return pool_.lent_bytes(); }
  std::size_t queued_message_count() const;
  const Shelf& shelf() const { return shelf_; }

  static constexpr std::size_t kEventBatch = 256;
  static constexpr int kBatchesPerTurn = 8;  // then the mailbox and the timers get their turn
  // A worker that does not read has at most so many messages waiting; then its connection ends. A
  // worker that keeps the protocol has as many answers coming as it has credit for, and those it
  // sent because they were wanted.
  static constexpr std::size_t kQueuedMessagesMax = std::size_t{1} << 18;

 private:
  struct Message {
    wire::Header header;
    std::uint64_t landing_offset = 0;
    BufferRef buffer;  // may be empty
    std::size_t payload_bytes = 0;
  };
  // What is known of one worker rank of this epoch.
  struct Link {
    PeerId peer;
    bool up = false;
    std::deque<Message> queue;  // refused by the transport with kAgain, in order
  };

  void take_commands();
  void begin_epoch(const ShelfEpoch& facts);
  void close_all(const Status& why);
  void handle(const Event& event, TimeNs now);
  void up(const Event& event);
  void down(const Event& event);
  void received(const Event& event, TimeNs now);
  void end_link(WorkerRank worker, const Status& why);

  void deliver(TimeNs now);  // everything in out_
  void tell(const ShelfOutput::Spoiled& spoiled);
  void post(WorkerRank worker, Message message);
  bool send(Link& link, const Message& message);  // false: the window is full
  void flush(WorkerRank worker);
  void give_back(SendToken token);
  void notify(ShardNotice notice);
  void flush_notices();
  Link* link_of(PeerId peer, WorkerRank& worker);

  // Constant after construction.
  const ShardIndex index_;
  Transport& transport_;
  Mailbox<ShardCommand>& inbox_;
  Mailbox<ShardNotice>& outbox_;
  const Log log_;

  // Owned by the loop.
  BufferPool pool_;  // before everything that holds refs
  Shelf shelf_;
  ShelfOutput out_;
  ShelfEpoch facts_;
  std::vector<Link> links_;  // by rank
  std::unordered_map<PeerId, WorkerRank>
      workers_;                       // connections that are served; looked up, never walked
  std::size_t connection_count_ = 0;  // kUp seen, kDown not yet; also those no longer served
  PeerId recent_peer_;                // events come in runs of one peer: spares the look-up
  WorkerRank recent_worker_;
  bool recent_valid_ = false;
  std::vector<BufferRef> lent_;  // by token - 1
  std::vector<std::uint32_t> lent_free_;
  std::vector<ShardCommand> commands_;
  std::vector<ShardNotice> notices_;  // not yet taken by the outbox
  std::array<Event, kEventBatch> events_;
  bool stopping_ = false;
};

}  // namespace byteps
