// ServerUnits: the members of a job that one server process is. The first has the process's own place; for each server
// whose slots it was asked to take besides there is another one, with shards and a connection to the scheduler of its
// own (docs/recovery.md). Who makes them is in app and in the simulator; here is what they have to do with each other.
#pragma once

#include <cstddef>
#include <vector>

#include "base/status.h"
#include "loop/actor.h"
#include "server/server_member.h"

namespace byteps {

class ServerUnits {
 public:
  // One more, which this waiter wakes. Both stay until look() was called after the member's end.
  void add(ServerMember& member, Waiter& waiter);
  // Whether what the scheduler asks for is to be opened.
  bool may_open() const { return units_.size() < kUnitsMax && !past_.is_over; }

  // The process is to leave: all that have a place hand it over.
  void request_leave();
  // The job is to end.
  void request_stop();
  // To be called again and again: has those leave for whom it is time.
  void look();

  bool all_ended() const;
  // Once all have, and look() was called since: what went wrong with any. Otherwise Ok, or kReplaced, where all that
  // they were is elsewhere.
  const Status& outcome() const { return past_.failure.is_ok() ? past_.end : past_.failure; }
  // Likewise: each has left because it was told to.
  bool have_left() const { return past_.have_left; }
  bool has_handed_over() const { return past_.has_handed_over; }

 private:
  static constexpr std::size_t kUnitsMax = 16;
  struct Unit {
    ServerMember* member;
    Waiter* waiter;
    bool is_told = false;
  };
  // Of those that have ended.
  struct Past {
    Status failure;
    Status end;  // of the last; Ok if one ended well
    bool is_over =
        false;  // one ended otherwise than by being replaced, or without a place: the job has
    bool has_ended_well = false;
    bool have_left = true;
    bool has_handed_over = false;
  };
  void note_end(const Unit& unit);
  static void tell(Unit& unit);

  std::vector<Unit> units_;  // that have not ended, as far as look() has seen
  bool leaves_ = false;
  Past past_;
};

}  // namespace byteps
