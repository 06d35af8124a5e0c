// Trace: what happened in a simulated run. Its hash is always kept, so that two runs of one seed can be compared; the
// last events are kept only when asked for, because a failed seed can simply be run again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

#include "base/ids.h"
#include "base/time.h"

namespace byteps::sim {

class Trace {
 public:
  enum class What : std::uint8_t {
    kConnect,
    kRefused,
    kUp,
    kSend,
    kReceive,
    kRepeat,
    kClose,
    kDown,
    kCut,
    kBlock,
    kWall,
    kCorrupt,
    kPause,
    kStart,
    kEnd,
    kSubmit,
    kFinish,
    kLeave,
  };

  // Keeps the last `events_max` events as text.
  explicit Trace(std::size_t events_max = 0) : events_max_(events_max) {}

  // `a`, `b`, `c` mean what is said where they are noted; all of them enter the hash.
  void note(TimeNs at, What what, std::uint64_t a, std::uint64_t b, std::uint64_t c = 0) {
    hash_ = stable_mix(hash_ ^ static_cast<std::uint64_t>(at));
    hash_ = stable_mix(hash_ + (static_cast<std::uint64_t>(what) << 56) + (a << 32) + b);
    hash_ = stable_mix(hash_ ^ c);
    ++count_;
  }

  // Whether text is wanted; callers form it only then.
  bool keeps_text() const { return events_max_ > 0; }
  void say(TimeNs at, const std::string& text);

  std::uint64_t hash() const { return hash_; }
  std::uint64_t count() const { return count_; }
  const std::deque<std::string>& lines() const { return lines_; }

 private:
  const std::size_t events_max_;
  std::uint64_t hash_ = 0;
  std::uint64_t count_ = 0;
  std::deque<std::string> lines_;
};

}  // namespace byteps::sim
