#include "loop/short_slices.h"

#include <cstdint>

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace byteps {

namespace {

// sched_setattr(2); glibc has had it only since 2.41.
struct Attributes {
  std::uint32_t size;
  std::uint32_t policy;
  std::uint64_t flags;
  std::int32_t nice;
  std::uint32_t priority;
  std::uint64_t runtime_ns;  // of SCHED_OTHER: the slice, since Linux 6.12
  std::uint64_t deadline_ns;
  std::uint64_t period_ns;
};

constexpr std::uint64_t kSliceNs = 100'000;  // the least that Linux takes

}  // namespace

void ask_for_short_slices() {
#ifdef SYS_sched_setattr
  Attributes now = {};
  if (syscall(SYS_sched_getattr, 0, &now, sizeof now, 0) != 0) return;
  if (now.policy != SCHED_OTHER || now.runtime_ns <= kSliceNs)
    return;  // 0: this kernel knows of none
  now.size = sizeof now;
  now.runtime_ns = kSliceNs;
  syscall(SYS_sched_setattr, 0, &now, 0);  // a kernel that refuses it goes on as before
#endif
}

}  // namespace byteps
