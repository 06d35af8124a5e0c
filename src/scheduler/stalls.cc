#include "scheduler/stalls.h"

#include <vector>

#include "scheduler/stall.h"

namespace byteps {

void Stalls::on_report(TimeNs now) {
  until_ns_ = text().empty() ? kNever : now + timeout_.failure_ns;
}

// Nothing has changed for the failure timeout. Asked again, because a barrier may have been reached since.
std::string Stalls::due(TimeNs now) {
  if (now < until_ns_) return {};
  until_ns_ = kNever;
  return text();
}

// Why no worker can go on; empty: one may.
std::string Stalls::text() const {
  std::vector<StalledWorker> workers;
  for (const auto& [arrival, seat] : seats_.all()) {
    if (!seat.plays() || seat.left) continue;
    if (seat.stalled.awaited.empty()) return {};
    workers.push_back({seat.rank, &seat.stalled});
  }
  return stall_text(workers, barriers_.arrived(), barriers_.number());
}

}  // namespace byteps
