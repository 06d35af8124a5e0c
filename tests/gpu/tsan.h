// What ThreadSanitizer is told about the fake GPU.
//
// The engine has one lock. If the thread sanitizer saw it, it would take every two calls for ordered, and would miss
// data races of the engine's users. So within the engine nothing is looked at, and edges are told where CUDA promises
// them: from a submission to the operation, from an operation to the query or wait that finds it done. The copies
// themselves are looked at: reading pinned memory before the copy's event is a race that is then found. Without the
// thread sanitizer all of this is nothing.
#pragma once

extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line) __attribute__((weak));
void AnnotateIgnoreReadsEnd(const char* file, int line) __attribute__((weak));
void AnnotateIgnoreWritesBegin(const char* file, int line) __attribute__((weak));
void AnnotateIgnoreWritesEnd(const char* file, int line) __attribute__((weak));
void AnnotateIgnoreSyncBegin(const char* file, int line) __attribute__((weak));
void AnnotateIgnoreSyncEnd(const char* file, int line) __attribute__((weak));
void __tsan_acquire(void* tag) __attribute__((weak));
void __tsan_release(void* tag) __attribute__((weak));
}

namespace fake_gpu {

// While it lives, what this thread does is not looked at.
class Unseen {
 public:
  Unseen() { begin(); }
  ~Unseen() { end(); }
  Unseen(const Unseen&) = delete;
  Unseen& operator=(const Unseen&) = delete;

  static void begin() {
    if (AnnotateIgnoreSyncBegin == nullptr) return;
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
    AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
  }
  static void end() {
    if (AnnotateIgnoreSyncEnd == nullptr) return;
    AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
};

// Within an Unseen: what this thread does is looked at again.
class Seen {
 public:
  Seen() { Unseen::end(); }
  ~Seen() { Unseen::begin(); }
  Seen(const Seen&) = delete;
  Seen& operator=(const Seen&) = delete;
};

// Within an Unseen: everything before tsan_release(tag) is ordered before what follows tsan_acquire(tag).
inline void tsan_release(void* tag) {
  if (__tsan_release == nullptr) return;
  const Seen seen;
  __tsan_release(tag);
}
inline void tsan_acquire(void* tag) {
  if (__tsan_acquire == nullptr) return;
  const Seen seen;
  __tsan_acquire(tag);
}

}  // namespace fake_gpu
