// Actor: the unit of threads. Someone (a Runner with a thread of its own, or the simulator) calls
// turn() again and again; the Actor does bounded work and never blocks.
#pragma once

#include <cstddef>

#include "base/check.h"
#include "base/status.h"
#include "base/time.h"

namespace byteps {

class Actor {
 public:
  virtual ~Actor() = default;

  // Does bounded work at time `now` (which never goes back) and returns how much it did; 0 means
  // there was nothing to do, and the caller may sleep until next_deadline() or until input comes.
  virtual std::size_t turn(TimeNs now) = 0;

  // When turn() wants to be called even though no input came; kNever if only input matters.
  virtual TimeNs next_deadline() const = 0;

  // So long large input may be left lying before turn() is called for it: there is enough under way already, and each
  // call costs what it costs however much has come. 0: turn() is called at once.
  virtual TimeNs patience() const { return 0; }

  // True once the Actor has nothing left to do for ever; its Runner ends.
  virtual bool finished() const = 0;

  // turn() threw: there is no memory, or there is a bug. The Actor may be in the middle of something; it should end
  // what waits for it with `why`, tell those it serves, and be finished() soon. It is turned, and may be told, again.
  virtual void failed(const Status& why) {
    CHECK(false) << "an Actor that cannot fail has failed: " << why.text();
  }
};

// What a Runner sleeps on: wait() returns when input may be there, at the timeout, or after wake().
class Waiter {
 public:
  virtual ~Waiter() = default;
  // Sleeps at most timeout_ns (kNever: without limit). Only the owning thread.
  virtual void wait(TimeNs timeout_ns) = 0;
  // The same, but large input may be left lying for so long (Actor::patience()); it may return at the end of that.
  virtual void doze(TimeNs timeout_ns, TimeNs /*patience_ns*/) { wait(timeout_ns); }
  // Makes the current or the next wait() return at once. Any thread.
  virtual void wake() = 0;
};

}  // namespace byteps
