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
// Handles also know when nobody in this process can submit anything before an operation ends (is_blocked): that is half
// of the proof that a job stalls (docs/protocol.md, Stalls).
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include <sys/types.h>

#include "base/flat_map.h"
#include "base/ids.h"
#include "base/limits.h"
#include "base/status.h"
#include "base/time.h"
#include "worker/completion_queue.h"

namespace byteps {

// Thread-safe; every function from any thread.
class Handles {
 public:
  // Where an end is reported; the queue must live until then. Null: to who waits.
  struct Report {
    CompletionQueue* queue = nullptr;
    std::uint64_t tag = 0;
  };

  // spin_ns: wait() looks for so long before it sleeps, and gives its core to others in between.
  explicit Handles(TimeNs spin_ns = 0) : spin_ns_(spin_ns) {}

  // kAgain: kOperationsMax are in use, or not yet taken from the queue; wait for some of them first.
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

  // Grows with each handle that is created, and with each that ends.
  std::uint64_t progress() const;
  // The caller has looked at all threads of this process that might submit something: each of them is in a wait that
  // nothing ends but the end of an operation, `inside` of them in wait() for a pending handle (nullopt: nobody has
  // counted them). So it is until progress() changes, or this is called again. False, and nothing is noted: it has
  // changed since it was `seen`, or others than so many are inside.
  bool all_wait(std::uint64_t seen, std::optional<std::uint64_t> inside);
  // Whether nobody in this process can submit anything before an operation ends: all_wait() has said so, or each thread
  // of this process is a Runner's or in a wait() without limit, the calling one aside.
  bool is_blocked();
  // Drops from `pending`, handles that have not ended, those whose end nobody would hear of: no thread has waited for
  // them, and they are reported to no queue.
  void keep_awaited(std::vector<HandleId>& pending) const;

  // Created and not yet finished.
  std::size_t pending_count() const;

 private:
  struct Slot {
    bool finished = false;
    bool was_waited_for = false;  // with a timeout above 0
    std::uint32_t waiters = 0;
    Report report;
    std::unique_ptr<Status> failure;  // null: it went well, or is not finished
  };
  using Slots = FlatMap<std::uint64_t, Slot, CountedHome>;
  static Status unknown(HandleId handle);
  void note_progress();
  static constexpr std::size_t kAhead = 8;  // so many slots are on their way from memory
  static std::uint64_t number_of(HandleId handle) {
    return static_cast<std::uint64_t>(handle.value);
  }
  Slot* find(HandleId handle) { return slots_.find(number_of(handle)); }
  const Slot* find(HandleId handle) const { return slots_.find(number_of(handle)); }
  bool finish(HandleId handle, Status&& result);
  template <typename Ready>
  TimeNs spin(std::unique_lock<std::mutex>& lock, TimeNs limit_ns, const Ready& ready);
  Slot* block(std::unique_lock<std::mutex>& lock, HandleId handle, TimeNs timeout_ns);

  const TimeNs spin_ns_;
  mutable std::mutex mutex_;  // guards all that follows
  std::condition_variable finished_;
  Slots slots_;  // by the handle's number
  std::int64_t last_handle_ = 0;
  std::size_t pending_count_ = 0;
  std::uint64_t progress_ = 0;
  std::uint64_t waiters_ = 0;          // of those that are pending
  std::map<pid_t, HandleId> patient_;  // threads in a wait() without limit
  bool all_wait_ = false;              // somebody has said so, and there was no progress since
};

}  // namespace byteps
