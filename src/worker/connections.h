// ShardConnections: a worker's connections to the shards of the job's servers, or to the relays of its machine. Each is
// made, made again when it is lost, and given up, with the job, when its shard cannot be reached for the failure
// timeout. One with a relay is not made again once it was used: memory between two processes loses nothing, so that its
// end is the end of the other process; that one may have left the job (note_left()).
//
// It knows addresses and times; what goes over the connections is the pipeline's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/cause.h"
#include "base/config.h"
#include "base/ids.h"
#include "base/log.h"
#include "base/prng.h"
#include "base/status.h"
#include "base/time.h"
#include "member/shares.h"
#include "net/transport.h"

namespace byteps {

class ShardConnections {
 public:
  ShardConnections(const Config& config, Transport& transport, const Log& log);

  // Who we say we are, and of which job and epoch the shards must be.
  struct Job {
    Epoch epoch;
    Incarnation incarnation{};
    TimeNs failure_ns = 0;  // the job's failure timeout
    bool recovers =
        false;  // who is lost is waited for longer: the scheduler finds a successor, or ends the job
    WorkerRank self{};               // a relay: the worker for whom it speaks ...
    std::uint32_t stands_since = 0;  // ... and the revision since which it stands in there (Hello)
  };
  void begin(const Job& job, std::vector<ShardPlace> places, TimeNs now);
  std::size_t count() const { return links_.size(); }
  // Who serves the shards has changed: connections to those that are replaced end, and their successors are reached.
  // Returns the workers whose relays would be in the process of one that has left.
  std::vector<WorkerRank> amend(std::vector<ShardPlace> places, TimeNs now);
  // Whether its shard has taken another one's place.
  bool is_successor(ShardIndex shard) const { return links_[shard.value].place.since > 0; }

  // ---- events of the transport
  std::optional<ShardIndex> shard_of(PeerId peer) const;  // nullopt: none of ours
  // Whether it is who should be there; the connection is up then, and otherwise will be closed.
  bool on_up(ShardIndex shard, const Hello& theirs, TimeNs now);
  // Whether it was up.
  bool on_down(ShardIndex shard, const Status& why, TimeNs now, bool is_expected);
  // Something of ours was taken; an answer came.
  void on_room(ShardIndex shard) { links_[shard.value].full = false; }
  void on_answer(ShardIndex shard) { links_[shard.value].lost_since_ns = kNever; }

  // This worker has left the job, and its relay is missed no more. A relay sends what it has for others before it ends,
  // for the failure timeout at most; one whose connection is there after twice that stands still, and is given up.
  // Returns the workers whose relays are gone with it: itself, or lost ones for whom its process had others.
  std::vector<WorkerRank> note_left(WorkerRank worker, TimeNs now);

  // ---- time
  // Makes connections that are missing, and closes those that are to be. Not ok: a shard cannot be reached for too
  // long. `is_ending`: none is made any more.
  Status keep(TimeNs now, bool is_ending);
  // While this process stood still it could reach no shard: that time does not count.
  void excuse(TimeNs pause_ns, TimeNs now);
  TimeNs next_deadline() const { return deadline_ns_; }

  // ---- use
  bool all_were_up() const;
  bool all_are_up() const;  // but relays of workers that have left
  bool none_is_left() const { return shard_of_.empty(); }
  // The connection, where it is up; nullopt otherwise.
  std::optional<PeerId> peer_of(ShardIndex shard) const;
  // Up, and not to be closed: messages of it count.
  bool is_in_use(ShardIndex shard) const {
    return links_[shard.value].up && !links_[shard.value].closing;
  }
  // Hands a message over; false: not now (no connection, or no room until the next on_room()).
  bool may_send(ShardIndex shard) const;
  bool send(ShardIndex shard, const Outgoing& message);
  // Ends it after the events of this turn, whose views close() would end; it is made anew.
  void end(ShardIndex shard, const Status& why);
  // Ends all, and makes none anew.
  void close_all(const Status& why);

  std::string describe(ShardIndex shard) const;  // "server 1 (host:pid) at 10.0.0.2:9001, shard 0"
  Participant owner_of(ShardIndex shard) const { return owner_of(links_[shard.value]); }
  struct Counts {
    std::uint64_t reconnects = 0;
    std::uint64_t lost_servers =
        0;  // whose places others have taken, each once for all of its shards
  };
  const Counts& counts() const { return counts_; }

 private:
  // The connection to one shard.
  struct Link {
    ShardPlace place;
    std::optional<PeerId> peer;  // also while it is being made or is closing
    bool up = false;
    bool closing = false;  // is to be closed, or was; kDown has not come
    bool close_called = false;
    bool full = false;   // the transport said kAgain; until the next kSent
    bool moved = false;  // `place` is a successor's, and there was no connection with that yet
    bool was_up = false;
    bool was_used = false;    // something was sent
    TimeNs left_ns = kNever;  // its relay's worker has left
    TimeNs up_since_ns = 0;
    TimeNs lost_since_ns = kNever;  // unreachable since; kNever after a sign of life
    TimeNs naming_ns = 0;           // last seen waiting for its host's addresses
    TimeNs next_attempt_ns = 0;
    std::uint32_t attempt_count = 0;  // since the last good connection
    Status last_down;
  };
  static bool has_left(const Link& link) { return link.left_ns != kNever; }
  static Participant owner_of(const Link& link);
  Status check(const Link& link, const Hello& theirs) const;
  void connect(ShardIndex shard, TimeNs now);
  void close(Link& link, const Status& why);
  TimeNs pause_after(const Link& link);
  TimeNs give_up_time(const Link& link) const;
  void end_left(Link& link, TimeNs now);
  bool note_departed(Link& link, TimeNs now);
  Status unreachable(ShardIndex shard, TimeNs now) const;
  void tell_missing(TimeNs now);
  void note_replaced(const std::vector<ShardPlace>& places, TimeNs now);
  void record_replaced(const Link& lost, const ShardPlace& heir, TimeNs now) const;
  void record(const char* kind, ShardIndex shard, const Status& why, TimeNs now) const;

  const Config& config_;
  Transport& transport_;
  const Log& log_;
  Job job_;
  std::vector<Link> links_;  // by ShardIndex
  std::unordered_map<PeerId, ShardIndex> shard_of_;
  std::set<WorkerRank> left_;  // workers
  Counts counts_;
  TimeNs excused_until_ns_ = 0;     // no shard is given up before
  TimeNs next_notice_ns_ = kNever;  // when to say which shards have not been reached yet
  TimeNs deadline_ns_ = kNever;
  Prng chance_;  // of the pauses between attempts
};

}  // namespace byteps
