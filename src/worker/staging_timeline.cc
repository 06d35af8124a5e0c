#include "worker/staging_timeline.h"

namespace byteps {
namespace {

TimelineRecord record_of(TimelineRecord::Kind kind, const StagingTimeline::Whose& whose) {
  TimelineRecord record{};
  record.kind = kind;
  record.key = whose.key.value;
  record.round = whose.round.value;
  record.part = whose.part;
  record.bytes = whose.bytes;
  return record;
}

}  // namespace

void StagingTimeline::on_out(const Whose& whose, const Times& times) const {
  if (!traces(whose.round)) return;
  TimelineRecord record = record_of(TimelineRecord::Kind::kCopyOut, whose);
  record.at_ns[TimelineRecord::kEntered] = times.entered_ns;
  record.at_ns[TimelineRecord::kReady] = times.ready_ns;
  record.at_ns[TimelineRecord::kLent] = times.lent_ns;
  record.at_ns[TimelineRecord::kFirstOut] = times.first_out_ns;
  if (times.first_out_ns != 0) record.at_ns[TimelineRecord::kLastOut] = lane_->timeline().now();
  lane_->add(record);
}

void StagingTimeline::on_in(const Whose& whose, const Times& times) const {
  if (!traces(whose.round)) return;
  TimelineRecord record = record_of(TimelineRecord::Kind::kCopyIn, whose);
  record.at_ns[TimelineRecord::kFirstIn] = times.first_in_ns;
  record.at_ns[TimelineRecord::kLastIn] = lane_->timeline().now();
  lane_->add(record);
}

}  // namespace byteps
