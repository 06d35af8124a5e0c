// Timeline: when each part of each tensor passed which stage, for a few rounds (BYTEPS_TRACE_ON, docs/timeline.md).
//
// Built in app/, which also gives it a clock and writes the file; Log carries it to the Actors. Each Actor opens a lane
// and adds records to it. Who has no timeline has a null pointer, and asks nothing more of it.
//
//   L1 A lane is added to by one thread. Its memory is taken once and untouched until used; when it is full, further
//      records are counted and dropped.
//   L2 Any thread may read what a lane has, at any time: records are published one by one and never change.
//   L3 Times are those of the process's monotonic clock. offset() says what to add to get the scheduler's.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock_offset.h"
#include "base/ids.h"
#include "base/time.h"

namespace byteps {

// One record; which of its times mean what depends on the kind. A time that was not seen is 0.
struct TimelineRecord {
  enum class Kind : std::uint8_t {
    kOperation,  // worker: one round of a tensor, from its submission to its end
    kPart,       // worker: one part of it
    kSum,        // shard: one part of it
    kBacklog,    // shard: answers to `worker` waited, because its connection took no more
    kSpread,     // relay before servers: one part of their answer, on its way to the workers here
    kCopyOut,    // worker: one part of a tensor on a device, until it is in host memory
    kCopyIn,     // ... and its answer, on its way to the device
    kCoding,     // worker, relay: one part of a coded tensor, its frames and their answers
  };
  enum At : std::uint8_t {
    // kOperation
    kSubmitted = 0,
    kStarted,  // the round before it has ended
    kDone,
    // kPart
    kQueued = 0,   // at the gate of its shard, with a frame to send
    kFirstSent,    // the transport took its first frame
    kLastSent,     // ... and its last
    kFirstAnswer,  // of a frame
    kLastAnswer,
    // kSum
    kFirstCame = 0,     // the first frame, of the first worker
    kLastButOneCame,    // ... of the last worker but one
    kLastCame,          // ... of the last worker
    kFirstFrameSummed,  // and answered, or handed on, as is each that all have contributed to
    kLastFrameSummed,
    // kBacklog
    kBegan = 0,
    kEnded,
    // kSpread
    kFirstReturned = 0,  // the answer to a frame came from its server
    kLastSpread,         // the answers to all frames are given to the workers' connections
    // kCopyOut
    kEntered = 0,  // its round begins
    kReady,        // the call's stream has come so far
    kLent,         // it has a slab of the pinned pool
    kFirstOut,     // its first chunk is in host memory; 0: it gives nothing, as the next
    kLastOut,      // ... and its last
    // kCopyIn
    kFirstIn = 0,  // the copy of its first chunk is ordered
    kLastIn,       // the last chunk is on the device
    // kCoding
    kFirstEncoded = 0,  // its first frame begins to be coded
    kLastEncoded,       // the last is
    kFirstDecoded,      // the first answer's codes begin to be elements; 0: none had codes
    kLastDecoded,
    kDecodeBusy,  // no time but for how long
  };
  TimeNs at_ns[5];
  std::uint64_t key;
  std::uint64_t bytes;
  TimeNs busy_ns;  // kSum: was spent summing, estimated from some of the frames; kCoding: coding
  std::uint32_t part;
  std::uint32_t round;
  std::uint32_t shard;         // kPart: of all shards, or ways; kSum, kBacklog: of this server's
  std::uint32_t worker;        // kSum: who came last; kBacklog
  std::uint32_t first_worker;  // kSum
  Kind kind;
};

class Timeline;

// Whose the records of a lane are.
enum class Recorder : std::uint8_t {
  kProcess,  // the worker's or the server's that the process is
  kRelay,    // the relay's in a worker's process
};

// Something that happened to the job, not to a part: a loss that it has survived. Equal ones but for their time, as
// several Actors of a process may hear of it, are one.
struct TimelineMark {
  std::string name;  // short: "server 1 replaced"
  std::string text;
  std::uint64_t number = 0;  // of what is named so, which one
  TimeNs at_ns = 0;
};

// The records of one Actor.
class TimelineLane {
 public:
  TimelineLane(Timeline& timeline, Recorder recorder, std::size_t capacity);
  TimelineLane(const TimelineLane&) = delete;
  TimelineLane& operator=(const TimelineLane&) = delete;

  Timeline& timeline() const { return timeline_; }
  Recorder recorder() const { return recorder_; }

  // The thread that owns the lane.
  void add(const TimelineRecord& record) {
    const std::size_t count = count_.load(std::memory_order_relaxed);
    if (count == capacity_) {
      dropped_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    records_[count] = record;
    count_.store(count + 1, std::memory_order_release);
  }

  // Any thread.
  std::span<const TimelineRecord> records() const {
    return {records_.get(), count_.load(std::memory_order_acquire)};
  }
  std::uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

 private:
  Timeline& timeline_;
  const Recorder recorder_;
  const std::size_t capacity_;
  std::unique_ptr<TimelineRecord[]> records_;  // not set to anything before it is used
  std::atomic<std::size_t> count_{0};
  std::atomic<std::uint64_t> dropped_{0};
};

class Timeline {
 public:
  using Clock = std::function<TimeNs()>;
  static constexpr std::size_t kRecordsMax = std::size_t{1} << 19;  // of a lane: 46 MB
  static constexpr std::size_t kNamesMax = std::size_t{1} << 17;
  static constexpr std::size_t kMarksMax = 1024;  // further ones are dropped

  // Rounds `first` to `last` of each tensor, both included, are recorded.
  Timeline(Round first, Round last, Clock clock, std::size_t records_max = kRecordsMax);
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  bool traces(Round round) const { return first_ <= round && round <= last_; }
  Round first() const { return first_; }
  Round last() const { return last_; }
  TimeNs now() const { return clock_(); }

  // Any thread. The lane lives as long as the timeline.
  TimelineLane& open_lane(Recorder recorder = Recorder::kProcess);
  void set_name(Key key, std::string_view name);
  void mark(TimelineMark mark);  // in whatever round
  // From the roster; the last word counts. The others only at workers, to name to whom they send: to servers or, where
  // machines sum first, to the relays of these ranks, and the relay in the process to the servers.
  void set_rank(std::uint32_t rank);
  void set_servers(std::vector<std::uint32_t> server_of_shard);
  void set_relays(std::vector<std::uint32_t> relay_of_way);
  void clock_sample(TimeNs asked_ns, TimeNs theirs_ns, TimeNs answered_ns);

  // For the writer.
  std::size_t record_count() const;  // marks as well
  struct Facts {
    std::optional<std::uint32_t> rank;
    std::vector<std::uint32_t> server_of_shard;
    std::vector<std::uint32_t> relay_of_way;  // empty: workers send to servers
    std::map<Key, std::string> names;
    std::optional<ClockOffset::Estimate> offset;  // to the scheduler's clock
    std::vector<const TimelineLane*> lanes;
    std::vector<TimelineMark> marks;
  };
  Facts facts() const;

 private:
  // constant
  const Round first_;
  const Round last_;
  const Clock clock_;
  const std::size_t records_max_;

  // shared
  mutable std::mutex mutex_;  // guards what follows
  std::vector<std::unique_ptr<TimelineLane>> lanes_;
  std::map<Key, std::string> names_;
  std::vector<TimelineMark> marks_;
  std::optional<std::uint32_t> rank_;
  std::vector<std::uint32_t> server_of_shard_;
  std::vector<std::uint32_t> relay_of_way_;
  ClockOffset offset_;
};

}  // namespace byteps
