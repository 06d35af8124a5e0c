// Strand: a stream's operations as the thread sanitizer sees them: a thread of their own.
//
// One thread does the work of all streams; what it does for one of them must not seem ordered after what it did for
// another. ThreadSanitizer calls such a thing a fiber. Without it, all of this is nothing.
#pragma once

#include <memory>

#include "tests/gpu/tsan.h"

extern "C" {
void* __tsan_get_current_fiber() __attribute__((weak));
void* __tsan_create_fiber(unsigned flags) __attribute__((weak));
void __tsan_destroy_fiber(void* fiber) __attribute__((weak));
void __tsan_switch_to_fiber(void* fiber, unsigned flags) __attribute__((weak));
}

namespace fake_gpu {

class Strand {
 public:
  Strand() : tag_(std::make_shared<char>()) {}
  ~Strand() {
    if (fiber_ != nullptr) __tsan_destroy_fiber(fiber_);
  }
  Strand(const Strand&) = delete;
  Strand& operator=(const Strand&) = delete;

  // Everything that the strand has done is ordered before what follows tsan_acquire() of it.
  const std::shared_ptr<void>& tag() const { return tag_; }
  // While it lives, the runner's thread is the strand, unseen.
  class Turn {
   public:
    explicit Turn(Strand& strand) : strand_(strand) {
      if (__tsan_create_fiber == nullptr) return;
      back_ = __tsan_get_current_fiber();
      if (strand.fiber_ == nullptr) strand.fiber_ = __tsan_create_fiber(0);
      __tsan_switch_to_fiber(strand.fiber_, kNoSync);
      Unseen::begin();
    }
    ~Turn() {
      if (back_ == nullptr) return;
      tsan_release(strand_.tag_.get());
      Unseen::end();
      __tsan_switch_to_fiber(back_, kNoSync);
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    static constexpr unsigned kNoSync = 1;
    Strand& strand_;
    void* back_ = nullptr;
  };

 private:
  std::shared_ptr<void> tag_;
  void* fiber_ = nullptr;
};

}  // namespace fake_gpu
