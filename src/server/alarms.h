// Alarms: when to look at a part whose frames are not finished.
//
// A part gets an alarm when a frame of it that was begun becomes late (lateness.h). As a rule all those wait equally
// long, so they stand in a list in the order they were set (one that would be due before the last of it, because what
// is late has changed, stands with the others below); when all frames of the part are finished, it leaves the list.
// Otherwise, when it rings, the oldest incomplete frame may be younger, and the alarm is set again, or contributions
// are asked for, and it is set for later: these stand in a heap, and stay there when the part needs them no more. So
// a part whose frames are finished in time costs a few pointers, and one with many frames on their way an entry of a
// small heap for each time that it rings.
//
// No part has two (I6 in shelf.h).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "server/lateness.h"
#include "server/sums.h"

namespace byteps {

class Alarms {
 public:
  explicit Alarms(TimeNs wanted_ns) : lateness_(wanted_ns) {}

  Lateness& lateness() { return lateness_; }

  // A frame was begun and is not finished.
  void watch(PartSum& part, const FrameSum& frame);
  // All its frames are finished, or the part is dropped.
  void rest(PartSum& part) {
    if (part.is_young) take_from_young(part);
  }
  void set(PartSum& part, TimeNs due_at_ns);

  // The next one that is due, which is set no more. Of the heap it is only a name: the part may be dropped by then, or
  // have a newer alarm, and then it does not count.
  struct Due {
    PartSum* young = nullptr;
    Key key;
    PartIndex part;
    std::uint64_t number = 0;
  };
  std::optional<Due> take_due(TimeNs now);
  TimeNs next_deadline() const;
  void clear();

 private:
  struct Alarm {
    TimeNs due_at_ns;
    std::uint64_t number;  // counts alarms: equal times ring in the order they were set
    Key key;
    PartIndex part;
    // For the heap, which has the largest first.
    bool operator<(const Alarm& other) const {
      return due_at_ns != other.due_at_ns ? due_at_ns > other.due_at_ns : number > other.number;
    }
  };
  void make_young(PartSum& part, TimeNs due_at_ns);
  void take_from_young(PartSum& part);

  Lateness lateness_;
  PartSum* young_first_ = nullptr;  // earliest first
  PartSum* young_last_ = nullptr;
  std::vector<Alarm> heap_;
  std::uint64_t count_ = 0;
};

}  // namespace byteps
