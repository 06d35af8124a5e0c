// ForkMark: whether this process is the one that made the mark, or a fork of it. Asked at every call of the C
// interface, so it must cost less than getpid(2): it is a page that the kernel gives a forked child as zeros
// (MADV_WIPEONFORK, madvise(2)). Where there is no such page, the process number is asked after all.
#pragma once

#include <sys/types.h>

namespace byteps {

class ForkMark {
 public:
  ForkMark();
  ~ForkMark();
  ForkMark(const ForkMark&) = delete;
  ForkMark& operator=(const ForkMark&) = delete;

  bool is_forked() const { return page_ != nullptr ? *page_ == 0 : is_other_process(); }

 private:
  bool is_other_process() const;

  const pid_t owner_;
  volatile int* page_ = nullptr;
};

}  // namespace byteps
