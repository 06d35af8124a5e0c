#include "worker/operations.h"

namespace byteps {

OpIndex Operations::add(TensorIndex tensor, TimeNs now) {
  OpIndex index = 0;
  if (free_.empty()) {
    index = static_cast<OpIndex>(places_.size());
    places_.emplace_back();
  } else {
    index = free_.back();
    free_.pop_back();
  }
  Op& op = places_[index];
  op.state = OpState::kWaiting;
  op.tensor = tensor;
  op.submission = ++submission_count_;
  op.submitted_ns = now;
  op.older = newest_;
  (newest_ == kNoOp ? oldest_ : places_[newest_].newer) = index;
  newest_ = index;
  ++count_;
  return index;
}

void Operations::remove(OpIndex index) {
  Op& op = places_[index];
  (op.older == kNoOp ? oldest_ : places_[op.older].newer) = op.newer;
  (op.newer == kNoOp ? newest_ : places_[op.newer].older) = op.older;
  op = Op{};
  free_.push_back(index);
  --count_;
}

std::vector<HandleId> Operations::handles() const {
  std::vector<HandleId> handles;
  for (OpIndex index = oldest_; index != kNoOp; index = places_[index].newer) {
    handles.push_back(places_[index].handle);
  }
  return handles;
}

}  // namespace byteps
