// Gate: in front of each shard's connection wait the parts that are ready to be sent. The first in
// order may pass, frame by frame, while credit lasts.
//
// Order: wanted parts first (other workers wait for them); then those that all workers have begun; then the larger
// priority, the earlier round, the smaller key, the smaller part: all workers derive the same order. Without priority
// scheduling: in order of submission. Credit: bytes sent on this connection and not yet answered; its
// limit is the connection's share of the worker's credit (credit.h). A frame passes when it fits under the limit, or
// when nothing is unanswered (so one frame always may), when its part is wanted (docs/protocol.md, "who waits for
// whom"), or when there is room below what allow_up_to() said.
//
// What is more urgent than all that is under way overtakes it: those frames do not count for it, nor for what is sent
// after it, up to a limit for all. A gradient must not wait until workers who are some milliseconds late have sent
// those too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "base/ids.h"

namespace byteps {

class Gate {
 public:
  struct Order {
    std::int32_t priority = 0;
    Round round;
    Key key;
    PartIndex part;
    std::uint64_t submission = 0;  // grows with each submission of this worker
  };
  // A part waiting here. Valid until remove().
  using Ticket = std::uint32_t;
  static constexpr Ticket kNoTicket = 0xffffffff;

  Gate(bool priority_scheduling, std::uint64_t credit_bytes)
      : priority_scheduling_(priority_scheduling), credit_bytes_(credit_bytes) {}

  // `most_bytes`: with what is overtaken. Until it is set nothing overtakes.
  void set_credit(std::uint64_t bytes, std::uint64_t most_bytes) {
    credit_bytes_ = bytes;
    most_bytes_ = most_bytes;
  }

  // `item` is the caller's word, returned by front_item(). O(log n), as set_wanted() and remove().
  Ticket add(const Order& order, bool wanted, std::uint64_t item);
  void want(Ticket ticket) { set_wanted(ticket, true); }
  void set_wanted(Ticket ticket, bool wanted);
  // Some worker may not have begun it: others go first.
  void set_alone(Ticket ticket, bool is_alone);
  void remove(Ticket ticket);

  bool empty() const { return heap_.empty(); }
  std::size_t size() const { return heap_.size(); }
  // The part that is first in order; the gate must not be empty.
  Ticket front() const { return heap_.front().ticket; }
  std::uint64_t front_item() const { return slots_[front()].item; }
  // Whether a frame of the first part that costs so much may pass now.
  bool may_pass(std::uint64_t cost_bytes) const {
    return has_credit(cost_bytes) || unanswered_bytes_ + cost_bytes <= allowed_bytes_ ||
           heap_.front().is_wanted() || may_overtake(cost_bytes);
  }
  // Whether credit would do for a frame.
  bool has_credit(std::uint64_t cost_bytes) const {
    return unanswered_bytes_ == 0 || unanswered_bytes_ + cost_bytes <= credit_bytes_;
  }
  // So much may be unanswered in spite of credit.
  void allow_up_to(std::uint64_t bytes) { allowed_bytes_ = bytes; }

  // A frame of a part of this priority.
  void on_sent(std::uint64_t cost_bytes, std::int32_t priority);
  void on_answered(std::uint64_t cost_bytes, std::int32_t priority);
  // The connection has ended: nothing is on the way any more. What waits here stays.
  void forget_sent() {
    unanswered_bytes_ = allowed_bytes_ = 0;
    levels_.clear();
  }

  std::uint64_t unanswered_bytes() const { return unanswered_bytes_; }
  std::uint64_t credit_bytes() const { return credit_bytes_; }

 private:
  // The order as numbers, smaller ones first, beside the ticket: comparing looks nowhere else.
  struct Place {
    static constexpr std::uint64_t kAlone = std::uint64_t{1} << 32;
    static constexpr std::uint64_t kNotWanted = std::uint64_t{1} << 33;
    std::uint64_t urgency = 0;  // not wanted; then alone; then the priority, backwards
    std::uint64_t key = 0;      // without priority scheduling the submission
    std::uint32_t round = 0;
    std::uint32_t part = 0;
    Ticket ticket = kNoTicket;
    bool is_wanted() const { return urgency < kNotWanted; }
    bool before(const Place& other) const {
      if (urgency != other.urgency) return urgency < other.urgency;
      if (round != other.round) return round < other.round;
      if (key != other.key) return key < other.key;
      return part < other.part;
    }
  };
  struct Slot {
    std::uint64_t item = 0;
    std::uint32_t position = 0;  // in heap_
  };
  // Unanswered frames since one overtook all that were under way; its urgency, as in Place. A frame belongs to the last
  // level that begins before it in order: no level can begin in between while that one has unanswered bytes. So frames
  // that are sent in order are of one level, however many priorities they have.
  struct Level {
    std::uint64_t begins_at = 0;
    std::uint64_t unanswered_bytes = 0;
  };
  void set(Ticket ticket, std::uint64_t bit, bool is_set);
  std::deque<Level>::iterator level_of(std::int32_t priority);
  std::uint64_t urgency_of(std::int32_t priority) const;
  bool may_overtake(std::uint64_t cost_bytes) const;
  Place place_of(const Order& order, bool wanted, Ticket ticket) const;
  void put(std::size_t position, const Place& place);
  void rise(std::size_t position);
  void sink(std::size_t position);

  const bool priority_scheduling_;
  std::uint64_t credit_bytes_;
  std::uint64_t most_bytes_ = 0;
  std::uint64_t unanswered_bytes_ = 0;
  std::uint64_t allowed_bytes_ = 0;
  std::deque<Level> levels_;  // the latest, and most urgent, last
  std::vector<Slot> slots_;   // by ticket
  std::vector<Ticket> free_;  // slots without a part
  std::vector<Place> heap_;   // binary heap, the first in order on top; slots know their position
};

}  // namespace byteps
