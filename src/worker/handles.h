// Handles: what a caller holds while its operation is under way. Created by any thread, completed
// by the worker's loop, waited for by any thread; waiting blocks and never polls.
//
//   created --complete()--> finished --wait()--> used up (unknown from then on)
//
// A handle is completed exactly once (a second time is a bug of ours, and checked).
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "base/ids.h"
#include "base/status.h"
#include "base/time.h"

namespace byteps {

struct HandleTag {
  static constexpr const char* kName = "handle";
};
using HandleId = Id<HandleTag, std::int64_t>;  // 1, 2, 3, ...; 0 is never a handle

// Thread-safe; every function from any thread.
class Handles {
 public:
  // At most so many may be created and not yet used up.
  static constexpr std::size_t kHandlesMax = std::size_t{1} << 20;

  // kAgain: kHandlesMax are in use; wait for some of them first.
  Result<HandleId> create();

  // The operation has ended; whoever waits for it is woken.
  void complete(HandleId handle, Status result);

  // Takes back a handle that was created but never given away.
  void discard(HandleId handle);

  // True: wait() would not block. kInvalidArgument: no such handle, or used up.
  Result<bool> poll(HandleId handle) const;

  // Blocks for at most timeout_ns (negative or kNever: without limit). kAgain: not finished, the
  // handle stays valid. kInvalidArgument: no such handle, or used up (also by another thread
  // meanwhile). Anything else is the operation's result, and the handle is used up.
  Status wait(HandleId handle, TimeNs timeout_ns);

  // Created and not yet finished.
  std::size_t pending_count() const;

 private:
  struct Slot {
    bool finished = false;
    std::uint32_t waiters = 0;
    Status result;
  };
  static Status unknown(HandleId handle);

  mutable std::mutex mutex_;  // guards all that follows
  std::condition_variable finished_;
  std::unordered_map<std::int64_t, Slot> slots_;  // never iterated
  std::int64_t last_handle_ = 0;
  std::size_t pending_count_ = 0;
};

}  // namespace byteps
