#include "server/alarms.h"

#include <algorithm>
#include <utility>

namespace byteps {

void Alarms::watch(PartSum& part, const FrameSum& frame) {
  if (part.is_young) return;
  // An alarm that waits longer belongs to an earlier round, or asked for this one already.
  const auto index = static_cast<std::uint32_t>(&frame - part.frames.data());
  const bool asked =
      part.wanted.count > 0 && part.wanted.round == frame.round && index < part.wanted.frames;
  const TimeNs due_at_ns = frame.since_ns + lateness_.age_ns();
  if (part.alarm_due_ns == kNever || (part.alarm_due_ns > due_at_ns && !asked)) {
    make_young(part, due_at_ns);
  }
}

void Alarms::make_young(PartSum& part, TimeNs due_at_ns) {
  if (young_last_ != nullptr && young_last_->alarm_due_ns > due_at_ns) {
    return set(part, due_at_ns);
  }
  part.alarm_due_ns = due_at_ns;
  part.alarm_number = ++count_;
  part.is_young = true;
  part.elder = young_last_;
  part.younger = nullptr;
  (young_last_ == nullptr ? young_first_ : young_last_->younger) = &part;
  young_last_ = &part;
}

void Alarms::take_from_young(PartSum& part) {
  (part.elder == nullptr ? young_first_ : part.elder->younger) = part.younger;
  (part.younger == nullptr ? young_last_ : part.younger->elder) = part.elder;
  part.is_young = false;
  part.alarm_due_ns = kNever;
}

void Alarms::set(PartSum& part, TimeNs due_at_ns) {
  part.alarm_due_ns = due_at_ns;
  part.alarm_number = ++count_;
  heap_.push_back({due_at_ns, part.alarm_number, part.tensor->key, part.index});
  std::push_heap(heap_.begin(), heap_.end());
}

TimeNs Alarms::next_deadline() const {
  const TimeNs young_ns = young_first_ == nullptr ? kNever : young_first_->alarm_due_ns;
  return heap_.empty() ? young_ns : std::min(young_ns, heap_.front().due_at_ns);
}

std::optional<Alarms::Due> Alarms::take_due(TimeNs now) {
  if (next_deadline() > now) return std::nullopt;
  PartSum* const young = young_first_;
  const bool is_young_first =
      young != nullptr &&
      (heap_.empty() || std::pair(young->alarm_due_ns, young->alarm_number) <=
                            std::pair(heap_.front().due_at_ns, heap_.front().number));
  if (is_young_first) {
    take_from_young(*young);
    return Due{.young = young, .key = {}, .part = {}};
  }
  std::pop_heap(heap_.begin(), heap_.end());
  const Alarm alarm = heap_.back();
  heap_.pop_back();
  return Due{.key = alarm.key, .part = alarm.part, .number = alarm.number};
}

void Alarms::clear() {
  heap_.clear();
  young_first_ = young_last_ = nullptr;
}

}  // namespace byteps
