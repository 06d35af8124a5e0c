#include "relay/batch.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/planted.h"

namespace byteps {

Batch::Frame& Batch::frame_at(PartIndex index, std::uint64_t offset) {
  const auto [found, is_new] = parts_.try_emplace(index.value);
  Part& part = found->second;
  if (is_new) {
    const Placement::Part place = placement_.part(tensor_.key, tensor_.extent, index.value);
    part.frame_bytes = place.frame_bytes;
    part.frames.resize(Placement::frame_count(place));
  }
  return part.frames[offset / part.frame_bytes];
}

void Batch::count_ready(Part& part) {
  while (part.ready_count < part.frames.size() && part.frames[part.ready_count].is_there) {
    ++part.ready_count;
  }
}

void Batch::put(PartIndex index, std::uint64_t offset, BufferRef buffer, std::size_t bytes,
                const Note& note) {
  Frame& frame = frame_at(index, offset);
  CHECK(!frame.is_there);
  frame = {std::move(buffer), bytes, true, note};
  count_ready(parts_.at(index.value));
}

bool Batch::put_had(PartIndex index, std::uint64_t offset) {
  Frame& frame = frame_at(index, offset);
  if (std::exchange(frame.is_there, true)) return false;
  count_ready(parts_.at(index.value));
  return true;
}

std::uint32_t Batch::ready_frames(std::uint32_t part) const {
  const auto found = parts_.find(part);
  if (found == parts_.end()) return 0;
  return PLANTED(unready_frame_pushed) ? static_cast<std::uint32_t>(found->second.frames.size())
                                       : found->second.ready_count;
}

bool Batch::has_ready_frames() const {
  return std::any_of(parts_.begin(), parts_.end(),
                     [](const auto& each) { return each.second.ready_count > 0; });
}

std::span<const std::byte> Batch::frame(std::uint32_t part, std::uint32_t frame) const {
  const Frame& found = parts_.at(part).frames[frame];
  if (!found.buffer) return {};
  return std::span<const std::byte>(found.buffer.span()).first(found.bytes);
}

void Batch::on_given_back(std::uint32_t index) {
  Part& part = parts_.at(index);
  CHECK_GT(part.lent_count, 0U);
  if (--part.lent_count > 0) return;
  for (const std::uint32_t frame : part.answered) part.frames[frame].buffer = {};
  part.answered.clear();
  if (PLANTED(unanswered_frame_freed)) part.frames[0].buffer = {};
}

void Batch::answered(const wire::Header& header, std::span<const std::byte> payload) {
  Part& part = parts_.at(header.part.value);
  const auto frame = static_cast<std::uint32_t>(header.offset_bytes / part.frame_bytes);
  if (part.lent_count == 0) {
    part.frames[frame].buffer = {};
  } else {
    part.answered.push_back(frame);
  }
  listener_.answered(header, payload);
}

}  // namespace byteps
