// DelayStage: a stage that keeps each part for a while, so that parts leave in another order than they came. It stands
// for all that stages do which takes time, and cannot be called back: it lends the operation's memory meanwhile.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/prng.h"
#include "base/time.h"
#include "worker/road.h"

namespace byteps {

class DelayStage final : public Stage {
 public:
  // Parts stay for up to so long.
  DelayStage(std::uint64_t seed, TimeNs longest_ns) : chance_(seed), longest_ns_(longest_ns) {}

  void enter(PartRef part, Tensor& tensor, TimeNs now) override {
    const auto delay_ns = chance_.below(static_cast<std::uint64_t>(longest_ns_) + 1);
    held_.push_back({now + static_cast<TimeNs>(delay_ns), part});
    ++tensor.lent_count;
  }
  // Whatever works on it goes on to its end; then its memory is given back, and that is all.
  void abandon(PartRef part, Tensor& /*tensor*/) override {
    for (Held& held : held_) {
      if (held.part.tensor == part.tensor && held.part.part == part.part) held.is_abandoned = true;
    }
  }
  void tick(TimeNs now, StageOutput& out) override {
    std::size_t kept = 0;
    for (const Held& held : held_) {
      if (held.until_ns > now) {
        held_[kept++] = held;
        continue;
      }
      if (!held.is_abandoned) out.leaving.push_back(held.part);
      out.given_back.push_back(held.part.tensor);
      ++passed_;
    }
    held_.resize(kept);
  }
  TimeNs next_deadline() const override {
    TimeNs next = kNever;
    for (const Held& held : held_) next = std::min(next, held.until_ns);
    return next;
  }
  std::size_t passed() const { return passed_; }

 private:
  struct Held {
    TimeNs until_ns = 0;
    PartRef part;
    bool is_abandoned = false;
  };
  Prng chance_;
  const TimeNs longest_ns_;
  std::vector<Held> held_;
  std::size_t passed_ = 0;
};

}  // namespace byteps
