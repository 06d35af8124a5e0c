// What is ordered after what on the fake GPU: vector clocks, and who last used which bytes.
//
// There is one actor per stream, and the host, all of whose threads are one actor. A clock says for each actor up to
// which of its operations everything is ordered before. Clocks are joined only where CUDA promises an order: submission
// to a stream, an event that is waited for, a query that succeeded. So what is found does not depend on what happened
// to take how long.
//
// Invariants of History:
// 1. Segments do not overlap; bytes in none of them were never used.
// 2. `reads` are those since the last write, and none of them is ordered before another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace fake_gpu {

using ActorId = std::uint32_t;
using Tick = std::uint32_t;
inline constexpr ActorId kHost = 0;

class Clock {
 public:
  Tick at(ActorId actor) const { return actor < ticks_.size() ? ticks_[actor] : 0; }
  void advance(ActorId actor);
  void join(const Clock& other);
  void raise(ActorId actor, Tick tick);
  ActorId size() const { return static_cast<ActorId>(ticks_.size()); }

 private:
  std::vector<Tick> ticks_;
};

// One use of some bytes.
struct Use {
  ActorId actor = kHost;
  Tick tick = 0;          // 0: none
  const char* what = "";  // of a static string: the call
};

struct Conflict {
  Use earlier;
  bool earlier_wrote = false;
};

// The uses of a block of memory, by byte.
class History {
 public:
  // What `use` is not ordered after, if anything; the use is noted in any case. [begin, end) counts from the block.
  std::optional<Conflict> read(std::size_t begin, std::size_t end, Use use, const Clock& clock);
  std::optional<Conflict> write(std::size_t begin, std::size_t end, Use use, const Clock& clock);

  // Calls function(begin, end, use, is_write) with what is noted.
  template <typename Function>
  void for_each(const Function& function) const {
    for (const auto& [begin, segment] : segments_) {
      if (segment.writer.tick > 0) function(begin, segment.end, segment.writer, true);
      for (const Use& use : segment.reads) function(begin, segment.end, use, false);
    }
  }

 private:
  struct Segment {
    std::size_t end = 0;
    Use writer;
    std::vector<Use> reads;
  };
  using Segments = std::map<std::size_t, Segment>;

  void split(std::size_t at);

  Segments segments_;
};

}  // namespace fake_gpu
