#include "worker/timeline.h"

#include <algorithm>

namespace byteps {

void WorkerTimeline::on_started(TensorIndex index, const Tensor& tensor, TimeNs submitted_ns) {
  Timeline& timeline = lane_.timeline();
  if (!timeline.traces(tensor.round)) return;
  if (tensor.round == timeline.first()) timeline.set_name(tensor.key, tensor.name);
  if (rounds_.size() <= index) rounds_.resize(index + 1);
  rounds_[index].started_ns = std::max(submitted_ns, looked_ns_);
  rounds_[index].parts.assign(tensor.parts.size(), Times{});
  rounds_[index].codings.assign(tensor.codes == nullptr ? 0 : tensor.parts.size(), Coding{});
}

void WorkerTimeline::on_queued(TensorIndex index, const Tensor& tensor, std::uint32_t part) {
  const bool is_at_once = lane_.recorder() != Recorder::kRelay && tensor.cargo == nullptr;
  if (is_at_once || !traces(index, tensor)) return;
  Times& times = rounds_[index].parts[part];
  if (times.queued_ns == 0) times.queued_ns = look();
}

void WorkerTimeline::on_sent(TensorIndex index, const Tensor& tensor, std::uint32_t part) {
  if (!traces(index, tensor)) return;
  const bool all_sent = tensor.parts[part].next_frame == tensor.parts[part].frame_count;
  Times& times = rounds_[index].parts[part];
  if (times.first_sent_ns != 0 && !all_sent) return;
  const TimeNs now = look();
  if (times.first_sent_ns == 0) times.first_sent_ns = now;
  if (all_sent) times.last_sent_ns = now;
}

void WorkerTimeline::on_answered(TensorIndex index, const Tensor& tensor, std::uint32_t part) {
  if (!traces(index, tensor)) return;
  const bool all_answered = tensor.parts[part].answered_frames == tensor.parts[part].frame_count;
  Times& times = rounds_[index].parts[part];
  if (times.first_answer_ns != 0 && !all_answered) return;
  const TimeNs now = look();
  if (times.first_answer_ns == 0) times.first_answer_ns = now;
  if (all_answered) times.last_answer_ns = now;
}

void WorkerTimeline::on_encoded(TensorIndex index, const Tensor& tensor, std::uint32_t part,
                                TimeNs took_ns) {
  if (Coding* const coding = coding_of(index, tensor, part)) extend(coding->encode, took_ns);
}

void WorkerTimeline::on_decoded(TensorIndex index, const Tensor& tensor, std::uint32_t part,
                                TimeNs took_ns) {
  if (Coding* const coding = coding_of(index, tensor, part)) extend(coding->decode, took_ns);
}

WorkerTimeline::Coding* WorkerTimeline::coding_of(TensorIndex index, const Tensor& tensor,
                                                  std::uint32_t part) {
  if (!traces(index, tensor) || rounds_[index].codings.empty()) return nullptr;
  return &rounds_[index].codings[part];
}

// What took no time was coded before, and is sent again.
void WorkerTimeline::extend(Stretch& stretch, TimeNs took_ns) {
  if (took_ns == 0) return;
  stretch.last_ns = look();
  if (stretch.first_ns == 0) stretch.first_ns = stretch.last_ns - took_ns;
  stretch.busy_ns += took_ns;
}

TimelineRecord WorkerTimeline::record_of(const Tensor& tensor, std::uint32_t part) const {
  TimelineRecord record{};
  record.key = tensor.key.value;
  record.part = part;
  record.round = tensor.round.value;
  record.shard = tensor.parts[part].shard.value;
  return record;
}

void WorkerTimeline::on_part_done(TensorIndex index, const Tensor& tensor, std::uint32_t part) {
  if (!traces(index, tensor)) return;
  const Times& times = rounds_[index].parts[part];
  TimelineRecord record = record_of(tensor, part);
  record.kind = TimelineRecord::Kind::kPart;
  record.at_ns[TimelineRecord::kQueued] =
      times.queued_ns == 0 ? rounds_[index].started_ns : times.queued_ns;
  record.at_ns[TimelineRecord::kFirstSent] = times.first_sent_ns;
  // Answered before it was sent for the last time: on an earlier connection.
  record.at_ns[TimelineRecord::kLastSent] =
      times.last_sent_ns == 0 ? times.first_sent_ns : times.last_sent_ns;
  record.at_ns[TimelineRecord::kFirstAnswer] = times.first_answer_ns;
  record.at_ns[TimelineRecord::kLastAnswer] = times.last_answer_ns;
  lane_.add(record);

  const Coding* const coding = coding_of(index, tensor, part);
  if (coding == nullptr || coding->encode.busy_ns + coding->decode.busy_ns == 0) return;
  TimelineRecord coded = record_of(tensor, part);
  coded.kind = TimelineRecord::Kind::kCoding;
  coded.at_ns[TimelineRecord::kFirstEncoded] = coding->encode.first_ns;
  coded.at_ns[TimelineRecord::kLastEncoded] = coding->encode.last_ns;
  coded.busy_ns = coding->encode.busy_ns;
  coded.at_ns[TimelineRecord::kFirstDecoded] = coding->decode.first_ns;
  coded.at_ns[TimelineRecord::kLastDecoded] = coding->decode.last_ns;
  coded.at_ns[TimelineRecord::kDecodeBusy] = coding->decode.busy_ns;
  lane_.add(coded);
}

void WorkerTimeline::on_done(TensorIndex index, const Tensor& tensor, TimeNs submitted_ns) {
  if (!traces(index, tensor)) return;
  if (tensor.cargo != nullptr) look();  // its last part may have been copied since it was answered
  TimelineRecord record{};
  record.kind = TimelineRecord::Kind::kOperation;
  record.key = tensor.key.value;
  record.round = tensor.round.value;
  record.bytes = tensor.spec.total_bytes;
  record.at_ns[TimelineRecord::kSubmitted] = submitted_ns;
  record.at_ns[TimelineRecord::kStarted] = rounds_[index].started_ns;
  record.at_ns[TimelineRecord::kDone] = looked_ns_;
  lane_.add(record);
}

}  // namespace byteps
