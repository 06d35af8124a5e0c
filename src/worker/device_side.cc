#include "worker/device_side.h"

#include <deque>
#include <utility>

#include "base/planted.h"

namespace byteps {

RoadEnds DeviceSide::with_rows(RoadEnds ends) {
  if (port_.orders == nullptr) return ends;
  const RoadEnds rows = staging_.road_ends();
  ends.before_push.insert(ends.before_push.end(), rows.before_push.begin(), rows.before_push.end());
  ends.after_pull.insert(ends.after_pull.begin(), rows.after_pull.begin(), rows.after_pull.end());
  return ends;
}

DeviceSide::Taken DeviceSide::take_reports() {
  Taken taken;
  if (port_.reports == nullptr) return taken;
  port_.reports->drain(reports_);
  for (const device::Report& report : reports_) {
    staging_.on_report(report);
    // Cancelled: the process ends, and its driver with it.
    const bool has_failed = !report.result.is_ok() && !report.result.is(Code::kCancelled);
    if (has_failed && taken.failure.is_ok() && !PLANTED(device_failure_kept)) {
      taken.failure = report.result;
    }
  }
  taken.count = reports_.size();
  return taken;
}

void DeviceSide::post_orders(TimeNs now) {
  post_again_ns_ = kNever;
  std::deque<device::Order>& orders = staging_.orders();
  while (!orders.empty()) {
    if (port_.orders->post(std::move(orders.front())).is(Code::kAgain)) {
      post_again_ns_ = now + kMillisecond;
      return;
    }
    orders.pop_front();
  }
}

void DeviceSide::look(TimeNs now, const Log& log) {
  if (!staging_.is_copying() || now < give_up_ns_) return;
  LOG(log, kError) << "a GPU of this process has not ended its copies since the job has: it is "
                      "left to itself. Does a "
                      "kernel run for ever, or has the device failed (dmesg, nvidia-smi)?";
  staging_.give_up();
}

}  // namespace byteps
