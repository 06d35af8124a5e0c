#include "worker/road.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace byteps {

Road::Road(std::vector<Row> rows)
    : rows_(std::move(rows)),
      has_time_(
          std::any_of(rows_.begin(), rows_.end(), [](const Row& row) { return row.has_time; })) {}

// The first of these rows, from `first` on, that is for the tensor's operation; one beyond the last: there is none.
std::size_t Road::row_for(const Tensor& tensor, std::size_t first) const {
  while (first < rows_.size() && rows_[first].only_cargo && tensor.cargo == nullptr) ++first;
  return first;
}

void Road::enter(PartRef part, Tensor& tensor, std::size_t row, TimeNs now) {
  tensor.parts[part.part].stage = static_cast<std::uint8_t>(row);
  rows_[row].stage->enter(part, tensor, now);
}

void Road::begin(PartRef part, Tensor& tensor, TimeNs now) {
  CHECK_EQ(tensor.parts[part.part].stage, PartState::kOffRoad);
  enter(part, tensor, row_for(tensor, 0), now);
}

bool Road::leave(PartRef part, Tensor& tensor, TimeNs now) {
  PartState& state = tensor.parts[part.part];
  CHECK_LT(state.stage, rows_.size());
  const std::size_t next = row_for(tensor, std::size_t{state.stage} + 1);
  if (next < rows_.size()) {
    enter(part, tensor, next, now);
    return false;
  }
  state.stage = PartState::kOffRoad;
  return true;
}

void Road::come_back(PartRef part, Tensor& tensor, const Stage& to, TimeNs now) {
  enter(part, tensor, place_of(to), now);
}

void Road::want(PartRef part, Tensor& tensor) {
  const std::uint8_t row = tensor.parts[part.part].stage;
  if (row < rows_.size()) rows_[row].stage->want(part, tensor);
}

void Road::abandon(TensorIndex index, Tensor& tensor) {
  for (std::uint32_t part = 0; part < tensor.parts.size(); ++part) {
    PartState& state = tensor.parts[part];
    if (state.stage == PartState::kOffRoad) continue;
    rows_[state.stage].stage->abandon({index, part}, tensor);
    state.stage = PartState::kOffRoad;
  }
}

std::uint8_t Road::place_of(const Stage& stage) const {
  const auto found =
      std::find_if(rows_.begin(), rows_.end(), [&](const Row& row) { return row.stage == &stage; });
  CHECK(found != rows_.end());
  return static_cast<std::uint8_t>(found - rows_.begin());
}

void Road::tick(TimeNs now, StageOutput& out) {
  for (const Row& row : rows_) {
    if (row.has_time) row.stage->tick(now, out);
  }
}

TimeNs Road::next_deadline() const {
  TimeNs next = kNever;
  for (const Row& row : rows_) {
    if (row.has_time) next = std::min(next, row.stage->next_deadline());
  }
  return next;
}

}  // namespace byteps
