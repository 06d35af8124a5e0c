// FlightRecorder: the last events of a process, in memory of fixed size, for the day it ends badly.
//
// Built in app/, which also gives it a clock and a writer; Log carries it to every Actor, and records each
// line from kDebug on, printed or not. What happens often (an operation begins or ends, a barrier) is
// recorded as numbers, without forming text: log.record({.kind = "submit", ...}). Never per frame.
//
//   F1 The memory is taken once: event_count events, and kTextBytesPerEvent of text for each. An event
//      outlives its texts when later ones were long.
//   F2 Any thread may record; an event costs a lock and a copy, no allocation, no system call.
//      Only one that stays, however many come after it, is allocated. Of those there are few.
//   F3 leave_behind() hands everything to the writer. Its first reason stays the recorder's outcome: what
//      follows is a consequence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/time.h"

namespace byteps {

// What is left at its default is not written. `kind`, `name`, `role` and `cause` are literals: the pointer is kept.
struct FlightEvent {
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
  static constexpr std::uint64_t kNoNumber = std::numeric_limits<std::uint64_t>::max();

  const char* kind = "";        // docs/flight.md lists them
  const char* name = nullptr;   // of a log level, a message, a signal
  const char* role = nullptr;   // of the process it is about
  std::uint32_t rank = kNone;   // likewise
  const char* cause = nullptr;  // where something ends: the name of its kind
  std::uint32_t epoch = kNone;  // 0: before the first
  std::uint64_t key = 0;
  std::uint32_t part = kNone;
  std::uint32_t round = kNone;
  std::uint64_t number = kNoNumber;  // of a handle, a barrier, a code
  std::uint64_t bytes = kNoNumber;
  // Copied, at most kHostBytesMax, kDetailBytesMax and kTextBytesMax of them.
  std::string_view host = {};    // "host:pid" of the process it is about
  std::string_view detail = {};  // of the cause
  std::string_view text = {};
  TimeNs at_ns = kNever;  // kNever: the clock is asked
  bool stays = false;     // the first kStayingMax do not make room for later ones

  // The cause of the end of a connection, where it is known.
  static const char* cause_of_down(const Status& why) {
    return why.is_because_of(CauseKind::kOther) ? nullptr : byteps::name(why.cause().kind);
  }
  // Something ended with `why`, which must live until the event is recorded: its cause, and its message as the text.
  static FlightEvent of_end(const char* kind, const Status& why);
};

// Another process of the job, as this one knows it.
struct FlightPeer {
  const char* role = "";
  std::uint32_t rank = FlightEvent::kNone;
  std::string host = {};     // "host:pid"
  TimeNs heard_ns = kNever;  // last sign of life; kNever: not watched from here
  const char* state = "";    // "here", "lost" or "left", where it is known
};

class FlightRecorder {
 public:
  static constexpr std::size_t kTextBytesPerEvent = 128;
  static constexpr std::size_t kTextBytesMax = 2048;
  static constexpr std::size_t kHostBytesMax = 128;
  static constexpr std::size_t kDetailBytesMax = 256;
  static constexpr std::size_t kStayingMax = 256;

  using Clock = std::function<TimeNs()>;
  // Writes all there is and returns the file's path; "" when it could not.
  using Writer = std::function<std::string(const FlightRecorder&)>;

  // event_count 0: records nothing and leaves nothing behind.
  FlightRecorder(std::size_t event_count, Clock clock, Writer writer);
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  void record(const FlightEvent& event);

  // What the file begins with; the last word counts.
  void set_rank(std::uint32_t rank);
  void set_epoch(std::uint32_t epoch);
  void set_peers(std::vector<FlightPeer> peers);
  void heard(const char* role, std::uint32_t rank, TimeNs now);  // a sign of life of this peer

  // For an Actor with a deadline that is never far: "late" is recorded when it is turned kLateNs after it wanted to be,
  // because the process was stopped or got no CPU.
  static constexpr TimeNs kLateNs = 500 * kMillisecond;
  void note_late(TimeNs due_ns, TimeNs now);

  // Something ended badly: `how` is "settings", "port", "network", "operation", "raised" or "job". Or nothing did, and
  // the file was asked for: "well", and Ok. Writes
  // the file, or writes it anew, and returns its path; "" when it could not. One caller at a time.
  std::string leave_behind(const char* how, const Status& why);
  // The same for a person: `why` with the path of the file in its message. Does not write again for another failure
  // of the same sort: thousands of operations may fail at once.
  Status with_path(const char* how, Status why);

  // For the writer.
  struct Entry {
    FlightEvent event;  // its texts are empty
    std::string host{};
    std::string detail{};
    std::string text{};
    bool text_lost = false;  // all three
  };
  struct Facts {
    std::uint32_t rank = FlightEvent::kNone;
    std::uint32_t epoch = 0;
    std::vector<FlightPeer> peers;
    const char* how = "";
    Status outcome;
    std::uint64_t recorded_count = 0;  // since the beginning; the last ones are kept
    TimeNs started_ns = 0;
    TimeNs now_ns = 0;
  };
  Facts facts() const;
  std::vector<Entry> entries() const;  // oldest first

 private:
  struct Slot {
    FlightEvent event;
    std::uint64_t texts_begin =
        0;  // host, detail and text; counts all bytes of texts since the beginning
    std::uint32_t text_bytes = 0;
    std::uint16_t host_bytes = 0;
    std::uint16_t detail_bytes = 0;
    std::size_t texts_bytes() const { return std::size_t{host_bytes} + detail_bytes + text_bytes; }
  };
  static constexpr std::size_t kTextsBytesMax = kHostBytesMax + kDetailBytesMax + kTextBytesMax;
  Entry entry(const Slot& slot) const;
  std::size_t text_ring_bytes() const { return event_count_ * kTextBytesPerEvent; }

  // constant
  const std::size_t event_count_;
  const Clock clock_;
  const Writer writer_;
  const TimeNs started_ns_;

  // shared
  std::mutex writing_mutex_;  // guards the next two, and the writer
  std::string path_;
  const char* written_for_ = "";
  mutable std::mutex mutex_;   // guards what follows
  std::vector<Slot> slots_;    // a ring once it is full
  std::size_t next_slot_ = 0;  // then the oldest
  std::vector<Entry> staying_;
  std::uint64_t recorded_count_ = 0;
  std::unique_ptr<char[]>
      text_;  // a ring with kTextsBytesMax to spare: an event's texts are in one piece
  std::uint64_t text_end_ = 0;
  std::uint32_t rank_ = FlightEvent::kNone;
  std::uint32_t epoch_ = 0;
  std::vector<FlightPeer> peers_;
  std::vector<FlightPeer> heard_;
  const char* how_ = "";
  Status outcome_;
};

}  // namespace byteps
