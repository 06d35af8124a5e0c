#include "server/summing.h"

#include <cstring>
#include <utility>

namespace byteps {
namespace {

std::span<BufferRef> held_of(PartSum& part, std::uint32_t frame) {
  const std::size_t count = part.tensor->contributors->count();
  return std::span(part.held).subspan(frame * count, count);
}

}  // namespace

void Summing::add(PartSum& part, std::uint32_t frame, WorkerRank from,
                  std::span<const std::byte> payload) {
  if (part.tensor->in_order) {
    add_in_order(part, frame, from, payload);
  } else {
    add_now(part, frame, payload);
  }
}

void Summing::add_now(PartSum& part, std::uint32_t frame_index,
                      std::span<const std::byte> payload) {
  const TensorSum& tensor = *part.tensor;
  BufferRef& accumulator = part.frames[frame_index].accumulator;
  const bool is_first = !accumulator;
  const std::size_t length = part.frame_length(frame_index);
  if (tensor.is_broadcast) {
    accumulator = inventory_.take(payload.size());
    std::memcpy(accumulator.span().data(), payload.data(), payload.size());
    return;
  }
  if (is_first) {
    accumulator =
        inventory_.take(tensor.kernels.accumulator_bytes(length / tensor.kernels.element_bytes));
  }
  if (!tensor.coding) {
    is_first ? tensor.kernels.load(accumulator.span(), payload)
             : tensor.kernels.add(accumulator.span(), payload);
    return;
  }
  const std::span sums = accumulator.span().first(length);
  is_first ? tensor.coding->load(sums, payload) : tensor.coding->add(sums, payload);
}

void Summing::add_in_order(PartSum& part, std::uint32_t frame_index, WorkerRank from,
                           std::span<const std::byte> payload) {
  const std::uint32_t place = part.tensor->contributors->place_of(from);
  std::uint32_t& added = part.added[frame_index];
  const std::span held = held_of(part, frame_index);
  if (place != added) {
    held[place] = inventory_.take(payload.size());
    std::memcpy(held[place].span().data(), payload.data(), payload.size());
    return;
  }
  add_now(part, frame_index, payload);
  for (++added; added < held.size() && held[added]; ++added) {
    add_now(part, frame_index, held[added].span().first(payload.size()));
    held[added] = {};
  }
}

void Summing::add_held(PartSum& part, std::uint32_t frame) {
  if (!part.tensor->in_order) return;
  const std::size_t length = part.payload_length(frame);
  for (BufferRef& each : held_of(part, frame)) {
    if (!each) continue;
    add_now(part, frame, each.span().first(length));
    each = {};
  }
}

void Summing::drop(PartSum& part, std::uint32_t frame) {
  part.frames[frame].accumulator = {};
  if (!part.tensor->in_order) return;
  part.added[frame] = 0;
  for (BufferRef& each : held_of(part, frame)) each = {};
}

void Summing::finish(PartSum& part, std::uint32_t frame_index, std::uint32_t lost) {
  FrameSum& frame = part.frames[frame_index];
  const TensorSum& tensor = *part.tensor;
  const std::size_t length = part.frame_length(frame_index);
  Finishing finishing = tensor.finishing;
  if (finishing.divisor > 1) finishing.divisor -= lost;
  frame.finished = {};  // I3, I4
  frame.is_plain = false;
  if (tensor.in_order) part.added[frame_index] = 0;
  if (length == 0) return;
  if (tensor.is_broadcast || tensor.kernels.in_place()) {
    const std::span sum = frame.accumulator.span().first(length);
    if (!finishing.changes_nothing()) tensor.kernels.finish(sum, sum, finishing);
    if (tensor.coding) {
      frame.finished = inventory_.take(part.payload_length(frame_index));
      tensor.coding->encode(frame.finished.span().first(part.payload_length(frame_index)), sum, {});
      frame.accumulator = {};
    } else {
      frame.finished = std::move(frame.accumulator);
    }
  } else {
    frame.finished = inventory_.take(length);
    tensor.kernels.finish(frame.finished.span().first(length), frame.accumulator.span(), finishing);
    frame.accumulator = {};
  }
}

}  // namespace byteps
