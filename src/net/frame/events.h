// EventSpan: the events of one poll(), as they are made.
#pragma once

#include <cstddef>
#include <span>

#include "net/transport.h"

namespace byteps::frame {

// The span that poll() fills. Events that were in it before are used again: only what they had is cleared.
class EventSpan {
 public:
  explicit EventSpan(std::span<Event> events) : events_(events) {}
  bool full() const { return count_ == events_.size(); }
  std::size_t count() const { return count_; }
  // As many as there were before: the others are not given out.
  void cut(std::size_t count) { count_ = count; }
  Event& add(Event::Kind kind, PeerId peer) {
    Event& event = events_[count_++];
    if (event.kind == Event::Kind::kUp) event.hello = {};
    if (event.kind == Event::Kind::kDown) event.why = {};
    event.kind = kind;
    event.peer = peer;
    event.header = {};
    event.payload = {};
    event.is_shared = false;
    event.token = 0;
    return event;
  }

 private:
  std::span<Event> events_;
  std::size_t count_ = 0;
};

}  // namespace byteps::frame
