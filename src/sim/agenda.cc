#include "sim/agenda.h"

#include <algorithm>

#include "base/check.h"

namespace byteps::sim {

void Agenda::schedule(TimeNs at, Happening what, ConnectionId id, int side,
                      std::uint64_t argument) {
  queue_.push({at, ++last_number_, what, static_cast<std::uint8_t>(side), id, argument});
}

std::optional<Scheduled> Agenda::next(TimeNs to) {
  CHECK_GE(to, now_) << "time goes forward";
  if (queue_.empty() || queue_.top().at > to) {
    now_ = to;
    return std::nullopt;
  }
  const Scheduled event = queue_.top();
  queue_.pop();
  now_ = std::max(now_, event.at);
  return event;
}

}  // namespace byteps::sim
