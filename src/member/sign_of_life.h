// SignOfLife: what a thread owes to another one of its process that watches it. It is asked again and again; one that
// has owed it for the failure timeout stands still.
#pragma once

#include <algorithm>

#include "base/time.h"

namespace byteps {

class SignOfLife {
 public:
  void ask(TimeNs now) { asked_ns_ = std::min(asked_ns_, now); }
  void came() { asked_ns_ = kNever; }
  bool is_owed() const { return asked_ns_ != kNever; }
  // Since when, as far as who watches can tell: while it stood still itself, perhaps with the whole process, it saw no
  // sign either. `late_ns`: so much later than planned it looks.
  TimeNs owed_for_ns(TimeNs late_ns, TimeNs now) {
    if (!is_owed()) return 0;
    asked_ns_ = std::min(now, asked_ns_ + late_ns);
    return now - asked_ns_;
  }

 private:
  TimeNs asked_ns_ = kNever;  // kNever: it owes none
};

}  // namespace byteps
