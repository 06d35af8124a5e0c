#include "app/fork_mark.h"

#include <sys/mman.h>
#include <unistd.h>

namespace byteps {

ForkMark::ForkMark() : owner_(getpid()) {
  constexpr int kProtection = PROT_READ | PROT_WRITE;
  void* const page =
      ::mmap(nullptr, sizeof *page_, kProtection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return;
  if (::madvise(page, sizeof *page_, MADV_WIPEONFORK) != 0) {
    ::munmap(page, sizeof *page_);
    return;
  }
  page_ = static_cast<volatile int*>(page);
  *page_ = 1;
}

ForkMark::~ForkMark() {
  if (page_ != nullptr) ::munmap(const_cast<int*>(page_), sizeof *page_);
}

bool ForkMark::is_other_process() const {
  return owner_ != getpid();
}

}  // namespace byteps
