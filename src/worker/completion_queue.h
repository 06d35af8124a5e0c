// CompletionQueue: where the ends of operations are reported in batches, instead of each to a caller that waits for its
// handle. For layers that complete somebody else's promises (futures, async kernels): one thread takes the ends and
// completes them, far from the worker's own thread.
//
//   submission names the queue --> Handles::complete --> push() --> take() by the queue's owner
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>

#include "base/ids.h"
#include "base/status.h"
#include "base/time.h"

namespace byteps {

struct HandleTag {
  static constexpr const char* kName = "handle";
};
using HandleId = Id<HandleTag, std::int64_t>;  // 1, 2, 3, ...; 0 is never a handle

// Thread-safe; every function from any thread.
class CompletionQueue {
 public:
  struct Ended {
    HandleId handle;
    std::uint64_t tag = 0;  // what the submission said
    Status result;
  };

  // One operation that will be reported here has begun. Otherwise it must not begin: kAgain: `most`
  // are pending or not taken yet; kCancelled: closed.
  Status begin(std::size_t most);
  // It was never given away, and will not be reported.
  void forget();
  // It has ended.
  void push(Ended ended);
  // Nothing will be pushed any more: take() gives what is there, and then kCancelled.
  void close();

  // Waits for at most timeout_ns (negative or kNever: without limit) until something has ended, and moves it to the
  // front of `ended`; `count` says how many, at least one when ok. A failed operation comes alone, so that its
  // text can be told. kAgain: nothing in that time. kCancelled: closed, and all taken.
  Status take(std::span<Ended> ended, std::size_t& count, TimeNs timeout_ns);

  // Threads that wait in take() with a limit; 0 while something has ended and is not taken, and when closed. (Those
  // without limit are a bridge's, whose framework knows nothing of them.)
  std::size_t idle_takers() const;

  // Begun and not taken yet.
  std::size_t outstanding() const;

 private:
  mutable std::mutex mutex_;  // guards all that follows
  std::condition_variable changed_;
  std::deque<Ended> ended_;
  std::size_t outstanding_ = 0;
  std::size_t takers_ = 0;  // inside take(), with a limit
  bool closed_ = false;
};

}  // namespace byteps
