#include "worker/pull.h"

#include <cstring>
#include <string>
#include <utility>

#include "base/planted.h"

namespace byteps {
namespace {

// All of it, into the caches.
template <typename Record>
void fetch(const Record& record) {
  const auto* const first = reinterpret_cast<const std::byte*>(&record);
  for (std::size_t at = 0; at < sizeof record; at += 64) __builtin_prefetch(first + at);
}

}  // namespace

// ---- answers

// By the tag, if an operation of that tensor is under way there.
TensorIndex Pull::tensor_of(const wire::Header& answer) const {
  const OpIndex place = work_.operations.place_of(answer.tag);
  const TensorIndex index = place == kNoOp ? kNoTensor : work_.operations[place].tensor;
  if (index != kNoTensor && work_.tensors[index].key == answer.key) return index;
  return work_.tensors.find(answer.key);
}

void Pull::expect(const wire::Glimpse& answer, int distance) const {
  const OpIndex place = work_.operations.place_of(answer.tag);
  if (place == kNoOp) return;
  const Op& op = work_.operations[place];
  if (distance == kFarthest) return fetch(op);
  if (op.tensor == kNoTensor) return;
  const Tensor& tensor = work_.tensors[op.tensor];
  if (distance == kFarthest - 1) return fetch(tensor);
  __builtin_prefetch(tensor.parts.data());
  __builtin_prefetch(tensor.answered.data());
}

Pull::Named Pull::look_at(const Tensor& tensor, ShardIndex shard, const wire::Header& header,
                          std::span<const std::byte> payload) const {
  if (header.part.value >= tensor.parts.size()) return {"names a part that it has not"};
  const PartState& part = tensor.parts[header.part.value];
  if (part.shard != shard) return {"comes from a shard that does not own the part"};
  const std::uint64_t frame = header.offset_bytes / part.frame_bytes;
  if (header.offset_bytes % part.frame_bytes != 0 || frame >= part.sent_frames) {
    return {"names a frame that was not pushed"};
  }
  Named named;
  named.frame = static_cast<std::uint32_t>(frame);
  named.bytes = tensor.payload_bytes(part, named.frame);
  const std::uint64_t expected = work_.is_sent_to(tensor.spec) ? named.bytes : 0;
  // What the crew of a lost root has pushed of a broadcast may be lost with it; and what a root alone got.
  const std::uint64_t without_root = tensor.spec.root_only ? 0 : named.bytes;
  const bool is_root_lost = work_.config.duties.waits_for_crew && payload.size() == without_root;
  // A sum of coded elements that only workers had who got elements from their relay.
  const std::uint64_t frame_bytes = TensorTable::frame_bytes(part, named.frame);
  const bool is_plain = expected > 0 && payload.size() == frame_bytes;
  if (payload.size() != expected && !is_root_lost && !is_plain) return {"has a wrong size"};
  if (tensor.codes != nullptr && !payload.empty() && !is_plain) {
    const char* const flaw = tensor.codes->kernels.flaw(payload, frame_bytes);
    if (flaw != nullptr) return {"has codes that there are not"};
  }
  if (expected > 0 && tensor.cargo == nullptr) {
    named.place = work_.operations[tensor.active].output.data() + part.offset + header.offset_bytes;
  }
  return named;
}

Pull::Taken Pull::take(ShardIndex shard, const wire::Header& header,
                       std::span<const std::byte> payload) {
  Taken taken;
  if (header.epoch != work_.config.epoch) return taken;
  const TensorIndex index = tensor_of(header);
  if (index == kNoTensor) return taken;
  Tensor& tensor = work_.tensors[index];
  if (!work_.is_active(tensor)) return taken;
  const std::int32_t ahead = later_by(header.round, tensor.round);
  if (ahead < 0 && !PLANTED(round_unchecked)) return taken;

  const Named named = ahead > 0 ? Named{"is of a round that was not pushed"}
                                : look_at(tensor, shard, header, payload);
  if (named.what != nullptr) {
    taken.broken = {Code::kDisconnected,
                    "an answer for tensor '" + tensor.name + "' " + named.what};
    return taken;
  }
  const PartRef part{index, header.part.value};
  if (tensor.is_answered(part.part, named.frame) && !PLANTED(answer_counted_twice)) return taken;

  kept_.keep(index, part.part, named.frame, payload);
  work_.counters.pulled_bytes += put(tensor, header, named, payload);
  count(part, named, taken);
  return taken;
}

// What the answer brings goes where it belongs. Returns the bytes of its elements.
std::uint64_t Pull::put(Tensor& tensor, const wire::Header& header, const Named& named,
                        std::span<const std::byte> payload) {
  const std::uint64_t frame_bytes =
      TensorTable::frame_bytes(tensor.parts[header.part.value], named.frame);
  const bool is_coded = tensor.codes != nullptr && !payload.empty() &&
                        payload.size() != frame_bytes && !PLANTED(codes_taken_for_elements);
  const std::uint64_t bytes = is_coded ? frame_bytes : payload.size();
  work_.counters.pulled_wire_bytes += payload.size();
  if (tensor.cargo != nullptr) {
    tensor.cargo->answered(
        header,
        is_coded ? work_.coder.decoded(tensor, header.part.value, payload, bytes) : payload);
  } else if (is_coded) {
    work_.coder.decode(tensor, header.part.value, payload, {named.place, bytes});
  } else if (!payload.empty()) {
    std::memcpy(named.place, payload.data(), payload.size());
  }
  if (is_coded) work_.counters.decode_ns = work_.coder.decode_ns();
  return bytes;
}

Pull::Taken Pull::take_had(PartRef ref, std::uint32_t frame) {
  const Tensor& tensor = work_.tensors[ref.tensor];
  PartState& part = work_.tensors[ref.tensor].parts[ref.part];
  Named named;
  named.frame = frame;
  named.bytes = tensor.payload_bytes(part, frame);
  const std::uint64_t forgets =
      std::exchange(part.forgets_before, 0);  // the shard has said nothing
  Taken taken;
  count(ref, named, taken);
  part.forgets_before = forgets;
  return taken;
}

void Pull::count(PartRef ref, const Named& named, Taken& taken) {
  Tensor& tensor = work_.tensors[ref.tensor];
  PartState& part = tensor.parts[ref.part];
  ShardWay& shard = work_.shard_of(part);
  tensor.set_answered(ref.part, named.frame);
  Coder::note_answered(tensor, tensor.place_of(ref.part, named.frame));
  ++part.answered_frames;
  shard.forgets_are_heard(part.forgets_before);
  if (work_.timeline) work_.timeline->on_answered(ref.tensor, tensor, ref.part);
  if (named.frame < part.next_frame) {
    flow_.free(shard, credit_cost(named.bytes), work_.operations[tensor.active].priority);
  } else {
    taken.was_unsent = push_.advance(tensor, ref.part);  // sent on an earlier connection only
  }
  push_.place(tensor, part);
  taken.part = ref;
  taken.is_complete = part.answered_frames == part.frame_count;
}

}  // namespace byteps
