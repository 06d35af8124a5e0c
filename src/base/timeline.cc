#include "base/timeline.h"

#include <algorithm>
#include <type_traits>
#include <utility>

namespace byteps {

// So that a lane's memory stays untouched until it is used.
static_assert(std::is_trivially_default_constructible_v<TimelineRecord>);

TimelineLane::TimelineLane(Timeline& timeline, Recorder recorder, std::size_t capacity)
    : timeline_(timeline),
      recorder_(recorder),
      capacity_(capacity),
      records_(std::make_unique_for_overwrite<TimelineRecord[]>(capacity)) {}

Timeline::Timeline(Round first, Round last, Clock clock, std::size_t records_max)
    : first_(first), last_(last), clock_(std::move(clock)), records_max_(records_max) {}

TimelineLane& Timeline::open_lane(Recorder recorder) {
  const std::lock_guard lock(mutex_);
  return *lanes_.emplace_back(std::make_unique<TimelineLane>(*this, recorder, records_max_));
}

void Timeline::set_name(Key key, std::string_view name) {
  const std::lock_guard lock(mutex_);
  if (names_.size() < kNamesMax) names_.try_emplace(key, name);
}

void Timeline::mark(TimelineMark mark) {
  const std::lock_guard lock(mutex_);
  const bool is_known = std::any_of(marks_.begin(), marks_.end(), [&](const TimelineMark& each) {
    return each.name == mark.name && each.number == mark.number;
  });
  if (!is_known && marks_.size() < kMarksMax) marks_.push_back(std::move(mark));
}

void Timeline::set_rank(std::uint32_t rank) {
  const std::lock_guard lock(mutex_);
  rank_ = rank;
}

void Timeline::set_servers(std::vector<std::uint32_t> server_of_shard) {
  const std::lock_guard lock(mutex_);
  server_of_shard_ = std::move(server_of_shard);
}

void Timeline::set_relays(std::vector<std::uint32_t> relay_of_way) {
  const std::lock_guard lock(mutex_);
  relay_of_way_ = std::move(relay_of_way);
}

void Timeline::clock_sample(TimeNs asked_ns, TimeNs theirs_ns, TimeNs answered_ns) {
  const std::lock_guard lock(mutex_);
  offset_.sample(asked_ns, theirs_ns, answered_ns);
}

std::size_t Timeline::record_count() const {
  const std::lock_guard lock(mutex_);
  std::size_t count = marks_.size();
  for (const auto& lane : lanes_) count += lane->records().size();
  return count;
}

Timeline::Facts Timeline::facts() const {
  const std::lock_guard lock(mutex_);
  Facts facts;
  facts.rank = rank_;
  facts.server_of_shard = server_of_shard_;
  facts.relay_of_way = relay_of_way_;
  facts.names = names_;
  facts.marks = marks_;
  facts.offset = offset_.best();
  for (const auto& lane : lanes_) facts.lanes.push_back(lane.get());
  return facts;
}

}  // namespace byteps
