#include "base/placement.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/limits.h"

namespace byteps {
namespace {

constexpr std::uint64_t kAlignment = 64;  // a multiple of every element's size

__extension__ typedef unsigned __int128 Wide;  // bytes times weights

std::uint64_t divide_up(std::uint64_t bytes, std::uint64_t by) {
  return bytes / by + (bytes % by != 0 ? 1 : 0);
}

std::uint64_t lightest_count_of(const std::vector<std::uint32_t>& weights) {
  const std::uint64_t sum = std::accumulate(weights.begin(), weights.end(), std::uint64_t{0});
  return divide_up(sum, *std::min_element(weights.begin(), weights.end()));
}

}  // namespace

std::uint64_t Placement::usual_frame_bytes(const std::vector<std::uint32_t>& weights,
                                           std::uint32_t line_mbps) {
  constexpr std::uint64_t kMost = 60 << 10;
  constexpr std::uint64_t kMostUs = 1250;
  const std::uint64_t count = lightest_count_of(weights);
  std::uint64_t bytes = count <= 12 ? kMost : count <= 24 ? kMost / 2 : kMost / 4;
  const std::uint64_t line_bytes = kMostUs * line_mbps / 8;  // Mbit/s are bits per us
  while (line_mbps > 0 && bytes > kMost / 4 && bytes > line_bytes) bytes /= 2;
  return bytes;
}

std::uint64_t Placement::lightest_count() const {
  return lightest_count_of(weights_);
}

Placement::Placement(std::uint64_t partition_bytes, std::uint64_t frame_bytes,
                     std::vector<std::uint32_t> weights)
    : partition_bytes_(partition_bytes),
      frame_bytes_(std::min(frame_bytes, partition_bytes)),
      weights_(std::move(weights)) {
  CHECK(partition_bytes_ > 0 && frame_bytes_ > 0 && !weights_.empty());
  CHECK(partition_bytes_ % kAlignment == 0 && frame_bytes_ % kAlignment == 0);
  std::uint32_t common = 0;
  for (const std::uint32_t weight : weights_) {
    CHECK(weight > 0 && weight <= kWeightMax);
    common = std::gcd(common, weight);
  }
  before_.push_back(0);
  for (std::uint32_t& weight : weights_) {
    weight /= common;
    before_.push_back(before_.back() + weight);
    weight_max_ = std::max(weight_max_, weight);
  }
  for (const Format format : {Format::kPlain, Format::kOnebit}) {
    const Wide bytes = Wide{part_bytes_of(format)} * before_.back() / weight_max_;
    stripe_bytes_[is_of_parts(format) ? 1 : 0] =
        static_cast<std::uint64_t>(std::min<Wide>(bytes, UINT64_MAX)) / kAlignment * kAlignment;
  }
}

std::uint64_t Placement::part_bytes_of(Format format) const {
  constexpr std::uint64_t kMost = kPartElementsMax * sizeof(float);
  return is_of_parts(format) ? std::min(partition_bytes_, kMost) : partition_bytes_;
}

std::uint64_t Placement::part_count(const Extent& tensor) const {
  const std::uint64_t stripe_bytes = stripe_bytes_of(tensor.format);
  const std::uint64_t rest_bytes = tensor.bytes % stripe_bytes;
  const std::uint64_t frame_bytes = frame_bytes_of(tensor);
  const std::uint64_t of_rest = is_single_frames(rest_bytes, frame_bytes)
                                    ? divide_up(rest_bytes, frame_bytes)
                                    : weights_.size();
  return std::max<std::uint64_t>(1, tensor.bytes / stripe_bytes * weights_.size() + of_rest);
}

// Where part `index` begins; for the index after the last, the end of the tensor.
std::uint64_t Placement::start(const Extent& tensor, std::uint64_t first,
                               std::uint64_t index) const {
  const std::uint64_t stripe = index / weights_.size();
  const std::uint64_t stripe_bytes = stripe_bytes_of(tensor.format);
  const std::uint64_t offset = stripe * stripe_bytes;
  if (offset >= tensor.bytes) return tensor.bytes;
  const std::uint64_t place = index % weights_.size();
  const std::uint64_t bytes = std::min(stripe_bytes, tensor.bytes - offset);
  const std::uint64_t frame_bytes = frame_bytes_of(tensor);
  if (bytes < stripe_bytes && is_single_frames(bytes, frame_bytes)) {
    return offset + std::min(place * frame_bytes, bytes);
  }
  const std::uint64_t shard = first + place;
  const std::uint64_t all = before_.back();
  const std::uint64_t weight = shard < weights_.size()
                                   ? before_[shard] - before_[first]
                                   : all - before_[first] + before_[shard - weights_.size()];
  const Wide exact = Wide{bytes} * weight / all;
  const Wide aligned = (exact + kAlignment - 1) / kAlignment * kAlignment;
  return offset + static_cast<std::uint64_t>(std::min<Wide>(aligned, bytes));
}

Placement::Part Placement::part(Key key, const Extent& tensor, std::uint64_t index) const {
  const std::uint64_t first = first_shard(key).value;
  Part part;
  part.offset = start(tensor, first, index);
  part.bytes = start(tensor, first, index + 1) - part.offset;
  part.shard = ShardIndex(static_cast<std::uint32_t>((first + index) % weights_.size()));
  part.frame_bytes = frame_bytes_of(tensor);
  return part;
}

ShardIndex Placement::first_shard(Key key) const {
  const std::uint64_t point = stable_mix(key.value) % before_.back();
  const auto after = std::upper_bound(before_.begin(), before_.end(), point);
  return ShardIndex(static_cast<std::uint32_t>(after - before_.begin() - 1));
}

std::uint64_t Placement::frame_bytes_of(const Extent& tensor) const {
  if (is_of_parts(tensor.format)) return part_bytes_of(tensor.format);
  constexpr std::uint64_t kFramesPerShard = 6;  // where more would be shorter than the longest
  constexpr std::uint64_t kShort = 15 << 10;
  constexpr std::uint64_t kCodedMost = 4;  // times as many bytes of elements
  // In these steps, whole blocks and whole lines of a cache.
  const std::uint64_t step =
      std::max<std::uint64_t>(kAlignment, block_elements(tensor.format) * sizeof(float));
  const auto of_payload = [&](std::uint64_t payload_bytes) {
    if (tensor.format == Format::kPlain) return payload_bytes;
    // Between the workers of a machine and its relays they travel as they are.
    const std::uint64_t most =
        std::min<std::uint64_t>(kCodedMost * payload_bytes, kPayloadBytesMax);
    const std::uint64_t bytes = std::min(bytes_in_payload(tensor.format, payload_bytes), most);
    return std::max(step, bytes / step * step);
  };
  const std::uint64_t frames = kFramesPerShard * weights_.size();
  const std::uint64_t wanted = divide_up(divide_up(tensor.bytes, frames), step) * step;
  return std::clamp(wanted, of_payload(std::min(kShort, frame_bytes_)), of_payload(frame_bytes_));
}

std::uint32_t Placement::frame_count(const Part& part) {
  return static_cast<std::uint32_t>(
      std::max<std::uint64_t>(1, divide_up(part.bytes, part.frame_bytes)));
}

}  // namespace byteps
