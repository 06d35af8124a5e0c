#include "relay/batch.h"

#include <utility>

#include "base/check.h"

namespace byteps {

bool Batch::put(PartIndex index, std::uint64_t offset, BufferRef buffer, std::size_t bytes) {
  const auto [found, is_new] = parts_.try_emplace(index.value);
  Part& part = found->second;
  if (is_new) {
    const Placement::Part place = placement_.part(tensor_.key, tensor_.total_bytes, index.value);
    part.frame_bytes = place.frame_bytes;
    part.missing_count = Placement::frame_count(place);
    part.frames.resize(part.missing_count);
  }
  CHECK_GT(part.missing_count, 0u);
  part.frames[offset / part.frame_bytes] = {std::move(buffer), bytes};
  return --part.missing_count == 0;
}

bool Batch::is_complete(std::uint32_t part) const {
  const auto found = parts_.find(part);
  return found != parts_.end() && found->second.missing_count == 0;
}

std::span<const std::byte> Batch::frame(std::uint32_t part, std::uint32_t frame) const {
  const Frame& found = parts_.at(part).frames[frame];
  if (!found.buffer) return {};
  return std::span<const std::byte>(found.buffer.span()).first(found.bytes);
}

void Batch::answered(const wire::Header& header, std::span<const std::byte> payload) {
  listener_.answered(header, payload);
}

}  // namespace byteps
