// Handles: what a caller holds while its operation is under way. Created by any thread, completed
// by the worker's loop, waited for by any thread; waiting blocks and never polls.
//
//   created --complete()--> finished --wait()--> used up (unknown from then on)
//
// One that was created for a CompletionQueue is used up when it is completed: the queue has its result then, and it
// cannot be waited for.
//
// A handle is completed exactly once (a second time is a bug of ours, and checked). Those that end at the same time are
// completed together: who waits wakes up once and finds them all.
//
// Handles also know when all callers are blocked (blocked_on): that nobody is left who could submit
// something is half of the proof that a job stalls (docs/protocol.md, Stalls).
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/flat_map.h"
#include "base/ids.h"
#include "base/status.h"
#include "base/time.h"
#include "loop/thread_id.h"
#include "worker/completion_queue.h"

namespace byteps {

// Thread-safe; every function from any thread.
class Handles {
 public:
  // At most so many may be created and not yet used up.
  static constexpr std::size_t kHandlesMax = std::size_t{1} << 20;

  // Where an end is reported; the queue must live until then. Null: to who waits.
  struct Report {
    CompletionQueue* queue = nullptr;
    std::uint64_t tag = 0;
  };

  // spin_ns: wait() looks for so long before it sleeps, and gives its core to others in between.
  explicit Handles(TimeNs spin_ns = 0) : spin_ns_(spin_ns) {}

  // kAgain: kHandlesMax are in use, or not yet taken from the queue; wait for some of them first.
  // kCancelled: the queue is closed.
  Result<HandleId> create() { return create(Report()); }
  Result<HandleId> create(const Report& report);

  // The operation has ended; whoever waits for it is woken.
  void complete(HandleId handle, Status result);
  struct Completion {
    HandleId handle;
    Status result;
  };
  // The same for many. Their results are taken.
  void complete(std::span<Completion> completions);

  // Takes back a handle that was created but never given away.
  void discard(HandleId handle);

  // True: wait() would not block. kInvalidArgument: no such handle, or used up.
  Result<bool> poll(HandleId handle) const;

  // Blocks for at most timeout_ns (negative or kNever: without limit). kAgain: not finished, the
  // handle stays valid. kInvalidArgument: no such handle, used up (also by another thread
  // meanwhile), or reported to a queue. Anything else is the operation's result, and the handle is used up.
  Status wait(HandleId handle, TimeNs timeout_ns);

  // What the callers wait for, if each thread that has created handles waits: is in wait() for a
  // pending one, or has been since the last call of this function (some wait in slices). A thread
  // whose handles are waited for by another one counts as waiting when that one does. Otherwise
  // nothing. In ascending order. Looking with poll() or a timeout of 0 is no waiting.
  std::vector<HandleId> blocked_on();

  // Created and not yet finished.
  std::size_t pending_count() const;

 private:
  struct Slot {
    ThreadId creator;
    bool finished = false;
    std::uint32_t waiters = 0;
    Report report;
    std::unique_ptr<Status> failure;  // null: it went well, or is not finished
  };
  using Slots = FlatMap<std::uint64_t, Slot, CountedHome>;
  // A thread that creates handles or waits for them.
  struct Caller {
    bool creates = false;
    ThreadId heir;             // waits for this one's handles; its own id: nobody else does
    HandleId waits_for;        // 0: nothing
    std::uint32_t inside = 0;  // calls of wait() that have not returned (1, or 0)
    bool waited = false;       // since the last blocked_on()
  };
  static constexpr std::size_t kCallersMax = 4096;  // more are not followed, and nothing is proven
  static Status unknown(HandleId handle);
  void note_creator(ThreadId self);
  static constexpr std::size_t kAhead = 8;  // so many slots are on their way from memory
  static std::uint64_t number_of(HandleId handle) {
    return static_cast<std::uint64_t>(handle.value);
  }
  Slot* find(HandleId handle) { return slots_.find(number_of(handle)); }
  const Slot* find(HandleId handle) const { return slots_.find(number_of(handle)); }
  bool finish(HandleId handle, Status&& result);
  template <typename Ready>
  TimeNs spin(std::unique_lock<std::mutex>& lock, TimeNs limit_ns, const Ready& ready);
  void begin_wait(const Slot& slot, HandleId handle);
  void end_wait(bool finished);

  const TimeNs spin_ns_;
  mutable std::mutex mutex_;  // guards all that follows
  std::condition_variable finished_;
  Slots slots_;  // by the handle's number
  std::int64_t last_handle_ = 0;
  std::size_t pending_count_ = 0;
  std::map<ThreadId, Caller> callers_;
  bool too_many_callers_ = false;
};

}  // namespace byteps
