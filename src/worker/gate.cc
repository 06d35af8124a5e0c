#include "worker/gate.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace byteps {
Gate::Ticket Gate::add(const Order& order, bool wanted, std::uint64_t item) {
  Ticket ticket = 0;
  if (free_.empty()) {
    ticket = static_cast<Ticket>(slots_.size());
    CHECK_NE(ticket, kNoTicket);
    slots_.emplace_back();
  } else {
    ticket = free_.back();
    free_.pop_back();
  }
  slots_[ticket].item = item;
  heap_.push_back(place_of(order, wanted, ticket));
  rise(heap_.size() - 1);
  return ticket;
}

void Gate::set_wanted(Ticket ticket, bool wanted) {
  set(ticket, Place::kNotWanted, !wanted);
}

void Gate::set_alone(Ticket ticket, bool is_alone) {
  set(ticket, Place::kAlone, is_alone);
}

void Gate::set(Ticket ticket, std::uint64_t bit, bool is_set) {
  Place& place = heap_[slots_[ticket].position];
  if (((place.urgency & bit) != 0) == is_set) return;
  place.urgency ^= bit;
  rise(slots_[ticket].position);
  sink(slots_[ticket].position);
}

void Gate::remove(Ticket ticket) {
  const std::size_t position = slots_[ticket].position;
  CHECK_EQ(heap_[position].ticket, ticket) << "not at this gate";
  const Place last = heap_.back();
  heap_.pop_back();
  free_.push_back(ticket);
  if (last.ticket == ticket) return;
  put(position, last);
  rise(position);
  sink(slots_[last.ticket].position);
}

void Gate::on_sent(std::uint64_t cost_bytes, std::int32_t priority) {
  unanswered_bytes_ += cost_bytes;
  auto level = level_of(priority);
  if (level == levels_.end()) level = levels_.insert(level, {.begins_at = urgency_of(priority)});
  level->unanswered_bytes += cost_bytes;
}

void Gate::on_answered(std::uint64_t cost_bytes, std::int32_t priority) {
  const auto level = level_of(priority);
  CHECK(level != levels_.end() && cost_bytes <= level->unanswered_bytes)
      << "answered more than was sent";
  unanswered_bytes_ -= cost_bytes;
  level->unanswered_bytes -= cost_bytes;
  if (level->unanswered_bytes == 0) levels_.erase(level);
}

std::deque<Gate::Level>::iterator Gate::level_of(std::int32_t priority) {
  const std::uint64_t urgency = urgency_of(priority);
  return std::partition_point(levels_.begin(), levels_.end(),
                              [&](const Level& level) { return level.begins_at > urgency; });
}

bool Gate::may_overtake(std::uint64_t cost_bytes) const {
  if (unanswered_bytes_ + cost_bytes > most_bytes_) return false;
  const std::uint64_t urgency = heap_.front().urgency & (Place::kAlone - 1);
  std::uint64_t counted_bytes = unanswered_bytes_;
  for (const Level& level : levels_) {
    if (level.begins_at <= urgency) break;
    counted_bytes -= level.unanswered_bytes;
  }
  return counted_bytes == 0 || counted_bytes + cost_bytes <= credit_bytes_;
}

// Without priority scheduling nothing overtakes. Two's complement, the sign turned round and then all bits: the largest
// priority is 0.
std::uint64_t Gate::urgency_of(std::int32_t priority) const {
  return priority_scheduling_ ? ~static_cast<std::uint32_t>(priority) ^ 0x80000000U : 0;
}

Gate::Place Gate::place_of(const Order& order, bool wanted, Ticket ticket) const {
  Place place{.urgency = urgency_of(order.priority), .part = order.part.value, .ticket = ticket};
  if (priority_scheduling_) {
    place.round = order.round.value;
    place.key = order.key.value;
  } else {
    place.key = order.submission;
  }
  if (!wanted) place.urgency |= Place::kNotWanted;
  return place;
}

void Gate::put(std::size_t position, const Place& place) {
  heap_[position] = place;
  slots_[place.ticket].position = static_cast<std::uint32_t>(position);
}

void Gate::rise(std::size_t position) {
  const Place place = heap_[position];
  while (position > 0) {
    const std::size_t parent = (position - 1) / 2;
    if (!place.before(heap_[parent])) break;
    put(position, heap_[parent]);
    position = parent;
  }
  put(position, place);
}

void Gate::sink(std::size_t position) {
  const Place place = heap_[position];
  for (;;) {
    std::size_t child = 2 * position + 1;
    if (child >= heap_.size()) break;
    if (child + 1 < heap_.size() && heap_[child + 1].before(heap_[child])) ++child;
    if (!heap_[child].before(place)) break;
    put(position, heap_[child]);
    position = child;
  }
  put(position, place);
}

}  // namespace byteps
