#include "worker/tensor_table.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/limits.h"
#include "base/phrases.h"
#include "net/wire.h"

namespace byteps {

namespace {

std::uint64_t divide_up(std::uint64_t bytes, std::uint64_t unit_bytes) {
  return bytes / unit_bytes + (bytes % unit_bytes != 0 ? 1 : 0);
}

std::string quoted(std::string_view name) {
  return "tensor '" + std::string(name) + "'";
}

}  // namespace

Result<TensorIndex> TensorTable::find_or_add(std::string_view name, const Spec& spec) {
  TensorIndex known = guess(name);
  const Key key = known != kNoTensor ? tensors_[known].key : key_of(name);
  if (known == kNoTensor) known = find(key);
  if (known != kNoTensor) {
    follow(known);
    const Tensor& tensor = tensors_[known];
    if (tensor.name != name) {
      return Status(Code::kInvalidArgument, quoted(name) + " and tensor '" + tensor.name +
                                                "' have the same key: rename one of them");
    }
    if (!tensor.failed.is_ok()) return known;
    if (tensor.spec != spec) {
      return Status(Code::kInvalidArgument, quoted(name) + " was " + tensor.spec.text() +
                                                " before and is " + spec.text() +
                                                " now: give different tensors different names");
    }
    if (tensor.once) {
      return Status(Code::kInvalidArgument,
                    quoted(name) + " was submitted as used once and is still under way");
    }
    return known;
  }
  if (given_up_.contains(key)) {
    return Status(Code::kInvalidArgument, quoted(name) +
                                              " was submitted before as used once: give each use "
                                              "a name of its own, or do not mark it so");
  }
  if (placement().part_count(spec.extent()) > kPartsMax) {
    return Status(Code::kInvalidArgument, quoted(name) + " (" + spec.text() +
                                              ") would have more than " +
                                              std::to_string(kPartsMax) + " parts of " +
                                              std::to_string(placement().partition_bytes()) +
                                              " bytes: raise BYTEPS_PARTITION_BYTES");
  }
  TensorIndex index = 0;
  if (free_.empty()) {
    index = static_cast<TensorIndex>(tensors_.size());
    tensors_.emplace_back();
  } else {
    index = free_.back();
    free_.pop_back();
  }
  Tensor& tensor = tensors_[index];
  tensor.key = key;
  tensor.round = first_round_;
  tensor.name = name;
  tensor.spec = spec;
  cut_up(tensor);
  by_key_.insert(key, index);
  follow(index);
  return index;
}

// Steps are alike: after a tensor mostly comes the one that came the last time. kNoTensor: not now.
TensorIndex TensorTable::guess(std::string_view name) const {
  const TensorIndex next = recent_ == kNoTensor ? kNoTensor : tensors_[recent_].follower;
  return next != kNoTensor && tensors_[next].name == name ? next : kNoTensor;
}

void TensorTable::follow(TensorIndex index) {
  if (recent_ != kNoTensor) tensors_[recent_].follower = index;
  recent_ = index;
  const TensorIndex next = tensors_[index].follower;
  if (next == kNoTensor) return;
  const auto* const first = reinterpret_cast<const std::byte*>(&tensors_[next]);
  for (std::size_t at = 0; at < sizeof(Tensor); at += 64) __builtin_prefetch(first + at);
}

TensorIndex TensorTable::find(Key key) const {
  const TensorIndex* const found = by_key_.find(key);
  return found == nullptr ? kNoTensor : *found;
}

void TensorTable::give_up(TensorIndex index) {
  Tensor& tensor = tensors_[index];
  CHECK(tensor.active == kNoOp && tensor.line.first == kNoOp && tensor.lent_count == 0)
      << "tensor '" << tensor.name << "' is still in use";
  by_key_.erase(tensor.key);
  given_up_.insert(tensor.key);
  if (given_up_ring_.size() < kGivenUpMax) {
    given_up_ring_.push_back(tensor.key);
  } else {
    given_up_.erase(std::exchange(given_up_ring_[given_up_next_], tensor.key));
    given_up_next_ = (given_up_next_ + 1) % kGivenUpMax;
  }
  tensor = Tensor{};
  free_.push_back(index);
}

const Tensor* TensorTable::most_rounds() const {
  const Tensor* most = nullptr;
  for (const Tensor& tensor : tensors_) {
    if (tensor.name.empty()) continue;  // a slot without a tensor
    if (most == nullptr ||
        tensor.round.value - first_round_.value > most->round.value - first_round_.value)
      most = &tensor;
  }
  return most;
}

void TensorTable::begin_generation(Round first) {
  first_round_ = first;
  for (Tensor& tensor : tensors_) {
    tensor.round = first;
    for (PartState& part : tensor.parts) part.wanted_rounds = 0;
  }
}

void TensorTable::cut_up(Tensor& tensor) const {
  const Extent extent = tensor.spec.extent();
  const std::uint64_t part_count = placement().part_count(extent);
  const Route::OfTensor route(route_, tensor.key, tensor.spec.members);
  constexpr std::uint16_t kNone = 0xffff;
  std::vector<std::uint16_t> place_of_way(route_.way_count(), kNone);
  tensor.parts.resize(part_count);
  for (std::uint32_t index = 0; index < part_count; ++index) {
    const Placement::Part place = placement().part(tensor.key, extent, index);
    PartState& part = tensor.parts[index];
    part.offset = place.offset;
    part.bytes = place.bytes;
    part.shard = route.way_of(index, place);
    std::uint16_t& way = place_of_way[part.shard.value];
    if (way == kNone) {
      way = static_cast<std::uint16_t>(tensor.ways.size());
      tensor.ways.push_back({.shard = part.shard});
    }
    part.way = way;
    part.frame_bytes = place.frame_bytes;
    part.frame_count = Placement::frame_count(place);
    tensor.frames_per_part = std::max(tensor.frames_per_part, part.frame_count);
  }
  tensor.answered.resize(divide_up(part_count * tensor.frames_per_part, 64));
  tensor.meeting = route.meeting();
  tensor.declaration = wire::encode(wire::Declare{tensor.spec, tensor.name});
}

}  // namespace byteps
