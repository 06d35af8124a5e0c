#include "server/summing.h"

#include <cstring>
#include <utility>

namespace byteps {
namespace {

std::span<BufferRef> held_of(PartSum& part, std::uint32_t frame) {
  const std::size_t count = part.tensor->contributors->count();
  return std::span(part.in_order.held).subspan(frame * count, count);
}

// Where nothing is coded: to what all have together.
void add_momentum(Residuals& residuals, const PartSum& part, std::uint32_t frame,
                  std::span<std::byte> sum) {
  const TensorSum& tensor = *part.tensor;
  residuals.code_with(tensor.key, tensor.declared.total_bytes, [&](const Carry& carry) {
    const PartCoding coding = {Format::kFloat32, {.momentum = tensor.declared.codec->momentum}};
    encode(coding, sum, sum, carry.of(part.carried.offset + frame * part.frame_bytes, sum.size()),
           {});
  });
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
  const bool adds_payload = !tensor.coding || tensor.coding->adds_payloads();
  const std::size_t length =
      adds_payload ? part.payload_length(frame_index) : part.frame_length(frame_index);
  if (tensor.is_broadcast) {
    accumulator = inventory_.take(payload.size());
    std::memcpy(accumulator.span().data(), payload.data(), payload.size());
    return;
  }
  if (is_first) {
    accumulator =
        inventory_.take(tensor.kernels.accumulator_bytes(length / tensor.kernels.element_bytes));
  }
  if (adds_payload) {
    is_first ? tensor.kernels.load(accumulator.span(), payload)
             : tensor.kernels.add(accumulator.span(), payload);
    return;
  }
  const std::span sums = accumulator.span().first(length);
  const PartPlace place = part.place_of(part.frames[frame_index].round);
  is_first ? tensor.coding->load(sums, payload, place) : tensor.coding->add(sums, payload, place);
}

void Summing::add_in_order(PartSum& part, std::uint32_t frame_index, WorkerRank from,
                           std::span<const std::byte> payload) {
  const std::uint32_t place = part.tensor->contributors->place_of(from);
  std::uint32_t& added = part.in_order.added[frame_index];
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
  part.in_order.added[frame] = 0;
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
  if (tensor.in_order) part.in_order.added[frame_index] = 0;
  if (length == 0) return;
  if (tensor.is_broadcast || tensor.kernels.in_place()) {
    const bool is_coded_here = tensor.coding && !tensor.coding->adds_payloads();
    const std::span sum =
        frame.accumulator.span().first(is_coded_here ? length : part.payload_length(frame_index));
    if (residuals_ != nullptr && tensor.declared.codec->momentum) {
      add_momentum(*residuals_, part, frame_index, sum);
    }
    if (!finishing.changes_nothing()) tensor.kernels.finish(sum, sum, finishing);
    if (is_coded_here) {
      code(part, frame_index, sum);
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

// With what the codes of the sum before have left, where ranks want that.
void Summing::code(PartSum& part, std::uint32_t frame_index, std::span<const std::byte> sum) {
  FrameSum& frame = part.frames[frame_index];
  const CodingKernels& coding = *part.tensor->coding;
  Carry carry;
  if (coding.feeds_back_sums()) {
    if (!part.carried.residual) {
      part.carried.residual = inventory_.take(sum.size());
      std::memset(part.carried.residual.span().data(), 0, sum.size());
    }
    carry.residual = part.carried.residual.span().first(sum.size());
  }
  frame.finished = inventory_.take(part.payload_length(frame_index));
  coding.encode(frame.finished.span().first(part.payload_length(frame_index)), sum, carry,
                part.place_of(frame.round));
}

}  // namespace byteps
