#include "worker/gate.h"

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
  slots_[ticket] = {order, item, 0, wanted};
  heap_.push_back(ticket);
  place(heap_.size() - 1, ticket);
  rise(heap_.size() - 1);
  return ticket;
}

void Gate::set_wanted(Ticket ticket, bool wanted) {
  if (slots_[ticket].wanted == wanted) return;
  slots_[ticket].wanted = wanted;
  rise(slots_[ticket].position);
  sink(slots_[ticket].position);
}

void Gate::remove(Ticket ticket) {
  const std::size_t position = slots_[ticket].position;
  CHECK_EQ(heap_[position], ticket) << "not at this gate";
  const Ticket last = heap_.back();
  heap_.pop_back();
  free_.push_back(ticket);
  if (last == ticket) return;
  place(position, last);
  rise(position);
  sink(slots_[last].position);
}

void Gate::on_answered(std::uint64_t cost_bytes, TimeNs now) {
  CHECK_LE(cost_bytes, unanswered_bytes_) << "answered more than was sent";
  unanswered_bytes_ -= cost_bytes;
  if (unanswered_bytes_ == 0 && heap_.empty()) {
    credit_.on_idle();
  } else {
    credit_.on_answered(cost_bytes, now);
  }
}

bool Gate::before(Ticket ticket_a, Ticket ticket_b) const {
  const Slot& a = slots_[ticket_a];
  const Slot& b = slots_[ticket_b];
  if (a.wanted != b.wanted) return a.wanted;
  if (priority_scheduling_) {
    if (a.order.priority != b.order.priority) return a.order.priority > b.order.priority;
    if (a.order.round != b.order.round) return a.order.round < b.order.round;
    if (a.order.key != b.order.key) return a.order.key < b.order.key;
  } else if (a.order.submission != b.order.submission) {
    return a.order.submission < b.order.submission;
  }
  return a.order.part < b.order.part;
}

void Gate::place(std::size_t position, Ticket ticket) {
  heap_[position] = ticket;
  slots_[ticket].position = static_cast<std::uint32_t>(position);
}

void Gate::rise(std::size_t position) {
  const Ticket ticket = heap_[position];
  while (position > 0) {
    const std::size_t parent = (position - 1) / 2;
    if (!before(ticket, heap_[parent])) break;
    place(position, heap_[parent]);
    position = parent;
  }
  place(position, ticket);
}

void Gate::sink(std::size_t position) {
  const Ticket ticket = heap_[position];
  for (;;) {
    std::size_t child = 2 * position + 1;
    if (child >= heap_.size()) break;
    if (child + 1 < heap_.size() && before(heap_[child + 1], heap_[child])) ++child;
    if (!before(heap_[child], ticket)) break;
    place(position, heap_[child]);
    position = child;
  }
  place(position, ticket);
}

}  // namespace byteps
