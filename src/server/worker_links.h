// WorkerLinks: the connections of workers to where they sum: to a shard, or to a relay of their machine. It decides who
// is served, hands what they say to the shelf's owner, brings them what the shelf says, and keeps what has to wait.
//
//   S1 At most one connection per worker rank is served: the newest. An older one is closed.
//   S2 A connection belongs to the incarnation and the epoch of its Hello; when an epoch begins, all
//      connections of the former one are closed.
//   S3 Messages to a worker leave in the order the shelf gave them: at once, or behind those that
//      wait for the window.
//   S4 Every lent buffer is held in lent_ from send() until its kSent.
//
// How its owner, the Actor, uses it: begin_turn() first. Each event of a poll() goes to handle(), what that returns to
// the shelf, and what the shelf then says to deliver(). After the events close_ended().
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/buffer.h"
#include "base/config.h"
#include "base/groups.h"
#include "base/ids.h"
#include "base/log.h"
#include "base/outputs.h"
#include "base/quiet_lines.h"
#include "base/status.h"
#include "base/time.h"
#include "base/timeline.h"
#include "net/transport.h"
#include "net/wire.h"
#include "server/lent_buffers.h"
#include "server/peers.h"
#include "server/shelf.h"

namespace byteps {

class WorkerLinks {
 public:
  // "shard" or "relay", as those who are refused are told and recordings have it, and its number there.
  struct Place {
    const char* noun = "shard";
    ShardIndex index;
  };
  // Whom it serves, and as whom.
  struct Service {
    Hello self;  // who connects is told this; it must be of that incarnation and epoch
    std::uint32_t worker_count = 0;  // of the job
    Crew crew;                       // who of them: those of a relay's machine; empty: all
    bool is_guest = false;           // the transport is another one's, and says who that is
  };
  // What an event brings to the shelf.
  struct News {
    enum class Kind : std::uint8_t {
      kNothing,
      kUp,       // `worker` has a new connection
      kMessage,  // of `worker`, with this header and the event's payload
      kDown,     // the connection of `worker` has ended
    };
    Kind kind = Kind::kNothing;
    WorkerRank worker;
    wire::Header header;
  };

  // Transport, pool, log and timeline (null: none is recorded) must outlive it. The transport checks version and job
  // of each Hello, and must not touch lent payloads any more once this is destroyed. Memory for messages with a
  // payload comes from `pool`.
  WorkerLinks(const Config& config, const Place& place, Transport& transport, BufferPool& pool,
              const Log& log, TimelineLane* timeline);

  void begin_turn(TimeNs now) { now_ = now; }

  // ---- whom it serves
  // Serves these from now on. Nobody may be served any more: end_all() comes before.
  void begin(Service service);
  // Ends all connections, and serves nobody until begin(). Nothing is due to anybody then.
  void end_all(const Status& why);
  // The same for good. Who comes later is refused with these words.
  void stop(const Status& why);
  // This worker is lost for good: its connection ends, and no other one of it is served in this epoch, but of relays
  // that stand in for those of lost workers, since these revisions (Hello::stands_since); those of former ones end.
  // Returns for whom others stand in now.
  std::vector<WorkerRank> lose(WorkerRank worker,
                               const std::map<WorkerRank, std::uint32_t>& stand_ins = {});
  // Whether a connection with this Hello is of the epoch that is served, or was last. If not, the owner may hear of its
  // epoch first: a worker may be faster.
  bool is_of_epoch(const Hello& hello) const;

  // ---- events
  News handle(const Event& event);
  // Closes what was to end. close() ends the views of all events of a poll(), so it waits until they are handled.
  void close_ended();

  // ---- what the shelf says
  // Does what the list says about workers, in its order, and gives the rest to `own`: what a relay's shelf says to its
  // relay, or a Failure, which it may take. `own` must leave the list and these links alone. Then clears the list;
  // returns how much that was.
  template <typename Own>
  std::size_t deliver(ShelfOutputs& outputs, const Own& own);

  // ---- what is there
  bool any_up() const;
  // Since when none of those it serves is connected; kNever while one is, and until the first has come.
  TimeNs deserted_since_ns() const { return deserted_since_ns_; }
  // All that was to be sent has left this process.
  bool is_flushed() const { return queued_message_count() == 0 && sending_count_ == 0; }
  // No connection is left, and all that was lent is back.
  bool empty() const { return peers_.empty() && lent_.all_are_back(); }
  std::size_t queued_message_count() const;

 private:
  struct Message {
    wire::Header header;
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
    bool lost = false;  // for good ...
    std::uint32_t stands_since =
        0;  // ... but a relay stands in for its own since this revision; 0: none does
    Queue queue;
    TimeNs backlog_since_ns = 0;  // for the timeline: the queue is not empty since; 0: not recorded
  };
  // A sum that goes to several workers, and its checksum, which is computed at most once.
  struct Sum {
    const std::byte* data = nullptr;
    std::optional<std::uint32_t> crc;
  };

  // ---- events
  News up(const Event& event);
  News received(const Event& event);
  void sent(const Event& event);
  News down(const Event& event);
  Status refusal(const Event& up) const;
  void end(WorkerRank worker, const Status& why);

  // ---- to workers
  void tell(ShelfOutput::Answer& answer, Sum& last);
  void tell(const ShelfOutput::Wanted& wanted);
  void tell(const ShelfOutput::Missing& missing);
  void tell(const ShelfOutput::Spoiled& spoiled);
  void tell(const ShelfOutput::InputsDone& done);
  void tell(const ShelfOutput::Renew& renew);
  void tell(const ShelfOutput::Ask& asked);
  void tell(const ShelfOutput::ForgottenByAll& forgotten);
  void tell(const ShelfOutput::Settled& settled);
  void tell(const ShelfOutput::Violation& violation);
  Message message_of(wire::Kind kind, Key key, std::span<const std::byte> payload);
  void post_to(std::optional<WorkerRank> one, const Message& message);
  void post(WorkerRank worker, Message& message);  // takes it, but for its checksum
  bool send(Link& link, Message& message);         // false: no room, the message is as it was

  // ---- what is recorded
  void record_link(const char* kind, WorkerRank worker, std::string_view why) const;
  void record_declare(const wire::Header& header, std::span<const std::byte> payload) const;
  void begin_backlog(Link& link, const Message& message) const;
  void record_backlog(Link& link, WorkerRank worker) const;
  void warn(Misdeed misdeed, const std::string& text);

  // Constant after construction.
  const Place place_;
  const std::size_t queued_bytes_max_;  // of one worker
  Transport& transport_;
  BufferPool& pool_;
  const Log& log_;
  TimelineLane* const timeline_;  // null: none is recorded

  Service service_;          // worker_count 0: nobody
  Status stopped_;           // not ok: nobody is served any more, for this
  std::vector<Link> links_;  // by rank
  Peers peers_;
  LentBuffers lent_;
  std::size_t sending_count_ =
      0;  // messages that the transport has accepted, and not said to be sent
  std::vector<std::pair<PeerId, Status>> ended_;  // to be closed when the views are handled
  TimeNs deserted_since_ns_ = kNever;
  QuietLines<3> quiet_;  // by Misdeed
  TimeNs now_ = 0;
};

template <typename Own>
std::size_t WorkerLinks::deliver(ShelfOutputs& outputs, const Own& own) {
  const std::size_t count = outputs.size();
  Sum last;
  const Overloads does{[&](ShelfOutput::Answer& answer) { tell(answer, last); },
                       [&own](ShelfOutput::Forward& forward) { own(forward); },
                       [&own](ShelfOutput::InputsEnd& end) { own(end); },
                       [&own](ShelfOutput::Forgotten& forgotten) { own(forgotten); },
                       [&own](ShelfOutput::Had& had) { own(had); },
                       [&own](ShelfOutput::CrewHas& has) { own(has); },
                       [&own](ShelfOutput::CrewGone& gone) { own(gone); },
                       [&own](ShelfOutput::Failure& failure) { own(failure); },
                       [&own](ShelfOutput::Absence& absence) { own(absence); },
                       [this](const auto& told) { this->tell(told); }};
  for (auto& output : outputs) std::visit(does, output);
  outputs.clear();
  return count;
}

}  // namespace byteps
