// Shard: the shell around a Shelf. One Actor with its own listening transport, keys and memory; it
// shares nothing with the other shards of its server. Transport events go into the shelf, what the
// shelf says goes out.
//
//   S1 At most one connection per worker rank is served: the newest. An older one is closed.
//   S2 A connection belongs to the incarnation and the epoch of its Hello; when an epoch begins, all
//      connections of the former one are closed.
//   S3 Messages to a worker leave in the order the shelf gave them: at once, or behind those that
//      wait for the window.
//   S4 Every lent buffer is held in lent_ from send() until its kSent.
//   S5 A shard that none of its epoch's workers has been connected to for twice the failure timeout forgets all: each
//      of them has given it up by then. Between two epochs, and as a spare server of the next, it holds no sums.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/config.h"
#include "base/ids.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/quiet_lines.h"
#include "base/status.h"
#include "loop/actor.h"
#include "loop/mailbox.h"
#include "net/transport.h"
#include "net/wire.h"
#include "server/lent_buffers.h"
#include "server/peers.h"
#include "server/shelf.h"

namespace byteps {

// What the ServerMember tells a shard.
struct ShardCommand {
  enum class Kind : std::uint8_t {
    kBeginEpoch,  // forget what was before and serve `facts`; answered by kEpochApplied or kFailed
    kStop,        // close all connections and end
    kPing,        // answered by kAlive: this shard's thread comes round
  };
  Kind kind = Kind::kStop;
  ShelfEpoch facts;               // kBeginEpoch
  std::uint32_t server_rank = 0;  // kBeginEpoch: who this server is in it
  Incarnation incarnation{};      // kBeginEpoch: of the job
  TimeNs failure_ns = 0;          // kBeginEpoch: its failure timeout; 0: as this process was told
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
        Mailbox<ShardNotice>& outbox, Log log);

  std::size_t turn(TimeNs now) override;
  TimeNs next_deadline() const override;
  // After kStop, once all connections are down and all lent buffers are back.
  bool finished() const override;
  // The job fails: the ServerMember hears why.
  void failed(const Status& why) override;

  // For metrics and tests.
  std::size_t lent_bytes() const { return pool_.lent_bytes(); }
  std::size_t queued_message_count() const;
  const Shelf& shelf() const { return shelf_; }
  Epoch epoch() const { return serving_.facts.epoch; }  // the one it serves

  static constexpr std::size_t kEventBatch = 256;
  static constexpr std::size_t kEventsPerStep = 2;  // of look_ahead()
  static constexpr int kBatchesPerTurn = 8;  // then the mailbox and the timers get their turn

 private:
  struct Message {
    wire::Header header;
    std::uint64_t landing_offset = 0;
    BufferRef buffer;  // empty without payload
    std::size_t payload_bytes = 0;
    std::optional<std::uint32_t> payload_crc = std::nullopt;
  };
  // What the transport had no room for, in order. Its memory is kept.
  class Queue {
   public:
    bool empty() const { return next_ == messages_.size(); }
    std::size_t size() const { return messages_.size() - next_; }
    std::size_t bytes() const { return bytes_; }  // of payloads
    Message& front() { return messages_[next_]; }
    void push(Message&& message);
    void pop();
    void clear();

   private:
    std::vector<Message> messages_;
    std::size_t next_ = 0;  // those before it are gone
    std::size_t bytes_ = 0;
  };
  // What a worker can cause again and again; each kind has its line in the log at most once a minute.
  enum class Misdeed : std::uint8_t { kBrokeProtocol, kDoesNotRead, kSpoiledTensor };
  // A worker rank of this epoch.
  struct Link {
    PeerId peer;
    bool up = false;
    Queue queue;
    TimeNs backlog_since_ns = 0;  // for the timeline: the queue is not empty since; 0: not recorded
  };

  std::size_t take_commands();
  void begin_epoch(const ShardCommand& command);
  void end_epoch(const Status& why);
  void note_absence();
  void end_all(const Status& why);
  void end(WorkerRank worker, const Status& why);
  void close_ended();

  void look_ahead(std::size_t at, std::size_t count) const;
  void handle(const Event& event, TimeNs now);
  void up(const Event& event);
  void received(const Event& event, TimeNs now);
  void sent(const Event& event);
  void down(const Event& event);
  Status refusal(const Hello& hello);

  // A sum that goes to several workers, and its checksum, which is computed at most once.
  struct Sum {
    const std::byte* data = nullptr;
    std::optional<std::uint32_t> crc;
  };
  std::size_t deliver();  // what is in out_; returns how much that was
  void deliver(ShelfOutput::Answer& answer, Sum& last);
  void deliver(const ShelfOutput::Wanted& wanted);
  void deliver(const ShelfOutput::Missing& missing);
  void deliver(const ShelfOutput::Spoiled& spoiled);
  void deliver(const ShelfOutput::InputsDone& done);
  void deliver(const ShelfOutput::Violation& violation);
  Message message_of(wire::Kind kind, Key key, std::span<const std::byte> payload);
  void post(WorkerRank worker, Message& message);  // takes it, but for its checksum
  bool send(Link& link, Message& message);         // false: no room, the message is as it was
  void record_link(const char* kind, WorkerRank worker, std::string_view why) const;
  void record_declare(const wire::Header& header, std::span<const std::byte> payload) const;
  void notify(ShardNotice::Kind kind, Status why);
  void begin_backlog(Link& link, const Message& message) const;
  void record_backlog(Link& link, WorkerRank worker) const;
  void warn(Misdeed misdeed, const std::string& text);
  void post_notices();

  // Constant after construction.
  const ShardIndex index_;
  const std::size_t queued_bytes_max_;  // of one worker
  Transport& transport_;
  Mailbox<ShardCommand>& inbox_;
  // To the ServerMember.
  struct Notices {
    Mailbox<ShardNotice>& box;
    std::vector<ShardNotice> waiting;  // not yet taken by the box
  };
  Notices notices_;
  const Log log_;
  TimelineLane* const timeline_;  // null: none is recorded

  // Owned by the loop.
  BufferPool pool_;  // first: it outlives all refs
  Shelf shelf_;
  ShelfOutputs out_;
  // What it serves.
  struct Serving {
    ShelfEpoch facts;  // worker_count 0: none
    Hello self;        // what workers are told who connect
  };
  Serving serving_;
  std::vector<Link> links_;  // by rank
  Peers peers_;
  LentBuffers lent_;
  std::vector<std::pair<PeerId, Status>> ended_;  // to be closed when the views are handled
  // Of one turn, to reuse the memory.
  struct Scratch {
    std::vector<ShardCommand> commands;
    std::vector<Event> events;
  };
  Scratch scratch_;
  QuietLines<3> quiet_;  // by Misdeed
  TimeNs now_ = 0;
  // S5
  struct Desertion {
    TimeNs patience_ns = 0;      // of the job, once it has begun
    TimeNs forgets_ns = kNever;  // when it forgets, unless a worker comes
  };
  Desertion deserted_;
  bool stopping_ = false;
};

}  // namespace byteps
