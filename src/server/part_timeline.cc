#include "server/part_timeline.h"

#include <algorithm>
#include <utility>

namespace byteps {

using At = TimelineRecord::At;

void PartTimeline::on_added(WorkerRank from, std::uint32_t frame, TimeNs begun_ns) {
  added_ns_ = 0;
  if (begun_ns == 0) return;
  added_ns_ = lane_.timeline().now();
  record_.busy_ns += added_ns_ - begun_ns;
  if (frame != 0) return;
  if (record_.at_ns[At::kFirstCame] == 0) {
    record_.at_ns[At::kFirstCame] = begun_ns;
    record_.first_worker = from.value;
  } else {
    record_.at_ns[At::kLastButOneCame] = record_.at_ns[At::kLastCame];
  }
  record_.at_ns[At::kLastCame] = begun_ns;
  record_.worker = from.value;
}

void PartTimeline::on_frame_summed(Round round) {
  if (!lane_.timeline().traces(round)) return;
  const bool first = summed_frames_++ == 0;
  const bool last = summed_frames_ == frame_count_;
  if (!first && !last) return;
  const TimeNs now = added_ns_ != 0 ? added_ns_ : lane_.timeline().now();
  if (first) record_.at_ns[At::kFirstFrameSummed] = now;
  if (!last) return;
  summed_frames_ = 0;
  TimelineRecord record = std::exchange(record_, TimelineRecord{});
  if (record.at_ns[At::kFirstCame] == 0) return;
  const std::uint32_t measured_frames = (frame_count_ + kMeasuredEvery - 1) / kMeasuredEvery;
  record.kind = TimelineRecord::Kind::kSum;
  record.key = key_.value;
  record.part = part_.value;
  record.round = round.value;
  record.bytes = bytes_;
  record.at_ns[At::kLastFrameSummed] = now;
  record.busy_ns =
      std::min(record.busy_ns * frame_count_ / measured_frames, now - record.at_ns[At::kFirstCame]);
  lane_.add(record);
}

void PartTimeline::on_frame_returned(Round round) {
  if (spread_frames_ != 0 || !lane_.timeline().traces(round)) return;
  first_returned_ns_ = lane_.timeline().now();
}

void PartTimeline::on_frame_spread(Round round) {
  if (!lane_.timeline().traces(round) || ++spread_frames_ != frame_count_) return;
  spread_frames_ = 0;
  TimelineRecord record{};
  record.kind = TimelineRecord::Kind::kSpread;
  record.key = key_.value;
  record.part = part_.value;
  record.round = round.value;
  record.bytes = bytes_;
  record.at_ns[At::kFirstReturned] = first_returned_ns_;
  record.at_ns[At::kLastSpread] = lane_.timeline().now();
  lane_.add(record);
}

}  // namespace byteps
