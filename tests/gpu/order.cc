#include "tests/gpu/order.h"

#include <algorithm>
#include <utility>

namespace fake_gpu {

namespace {

bool is_before(const Use& use, const Clock& clock) {
  return use.tick <= clock.at(use.actor);
}

}  // namespace

void Clock::advance(ActorId actor) {
  if (actor >= ticks_.size()) ticks_.resize(actor + 1);
  ++ticks_[actor];
}

void Clock::raise(ActorId actor, Tick tick) {
  if (actor >= ticks_.size()) ticks_.resize(actor + 1);
  ticks_[actor] = std::max(ticks_[actor], tick);
}

void Clock::join(const Clock& other) {
  if (other.ticks_.size() > ticks_.size()) ticks_.resize(other.ticks_.size());
  for (std::size_t i = 0; i < other.ticks_.size(); ++i) {
    ticks_[i] = std::max(ticks_[i], other.ticks_[i]);
  }
}

std::optional<Conflict> History::read(std::size_t begin, std::size_t end, Use use,
                                      const Clock& clock) {
  std::optional<Conflict> conflict;
  if (begin >= end) return conflict;
  split(begin);
  split(end);
  auto segment = segments_.lower_bound(begin);
  for (std::size_t at = begin; at < end;) {
    if (segment == segments_.end() || segment->first > at) {  // never used
      const std::size_t gap_end = segment == segments_.end() ? end : std::min(end, segment->first);
      segment = segments_.emplace_hint(segment, at, Segment{gap_end, {}, {}});
    }
    Segment& s = segment->second;
    if (!is_before(s.writer, clock) && !conflict) conflict = Conflict{s.writer, true};
    s.reads.erase(std::remove_if(s.reads.begin(), s.reads.end(),
                                 [&](const Use& earlier) { return is_before(earlier, clock); }),
                  s.reads.end());
    s.reads.push_back(use);
    at = s.end;
    ++segment;
  }
  return conflict;
}

std::optional<Conflict> History::write(std::size_t begin, std::size_t end, Use use,
                                       const Clock& clock) {
  std::optional<Conflict> conflict;
  if (begin >= end) return conflict;
  split(begin);
  split(end);
  auto segment = segments_.lower_bound(begin);
  while (segment != segments_.end() && segment->first < end) {
    const Segment& s = segment->second;
    if (!is_before(s.writer, clock) && !conflict) conflict = Conflict{s.writer, true};
    for (const Use& earlier : s.reads) {
      if (!is_before(earlier, clock) && !conflict) conflict = Conflict{earlier, false};
    }
    segment = segments_.erase(segment);
  }
  segments_.emplace_hint(segment, begin, Segment{end, use, {}});
  return conflict;
}

// Afterwards no segment goes on over `at`.
void History::split(std::size_t at) {
  auto next = segments_.lower_bound(at);
  if (next == segments_.begin()) return;
  const auto holder = std::prev(next);
  if (holder->second.end <= at) return;
  Segment rest = holder->second;
  holder->second.end = at;
  segments_.emplace_hint(next, at, std::move(rest));
}

}  // namespace fake_gpu
