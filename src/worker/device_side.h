// DeviceSide: a Worker's side of the process's devices: the staging of tensors that are on them, and the mailboxes to
// and from the thread that speaks with them (device/devices.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/config.h"
#include "base/log.h"
#include "base/status.h"
#include "base/time.h"
#include "device/devices.h"
#include "worker/road.h"
#include "worker/staging.h"

namespace byteps {

class DeviceSide {
 public:
  // The mailboxes outlive it. `port` may be empty: then it does nothing.
  explicit DeviceSide(device::Port port) : port_(port), staging_(port.pool, port.chunk_bytes) {}

  // `ends`, with the rows of tensors on devices next to the network's.
  RoadEnds with_rows(RoadEnds ends);
  Staging& staging() { return staging_; }
  const Staging& staging() const { return staging_; }

  // Takes what has been reported: how much, and what of it failed first.
  struct Taken {
    std::size_t count = 0;
    Status failure;
  };
  Taken take_reports();
  // Orders that find no room are posted a little later.
  void post_orders(TimeNs now);
  // A copy is under way, or a stream is waited for: this worker may go on without any other.
  bool waits() const {
    return staging_.waits_for_device() || (port_.alone != nullptr && port_.alone->load() > 0);
  }
  // What a GPU does moves, too: grows with each call while waits().
  std::uint64_t count_wait() { return waits() ? ++waits_counted_ : waits_counted_; }

  // The job has ended. Copies that are under way have `bound_ns` to end; then their device stands still, perhaps for
  // ever, and is left to itself.
  void note_end(TimeNs now, TimeNs bound_ns) {
    give_up_ns_ = now + bound_ns;
    staging_.end();
  }
  void look(TimeNs now, const Log& log);
  TimeNs next_deadline() const {
    return std::min(post_again_ns_, staging_.is_copying() ? give_up_ns_ : kNever);
  }

 private:
  const device::Port port_;
  Staging staging_;
  std::uint64_t waits_counted_ = 0;
  TimeNs give_up_ns_ = kNever;
  TimeNs post_again_ns_ = kNever;
  std::vector<device::Report> reports_;  // of one turn, to reuse the memory
};

}  // namespace byteps
