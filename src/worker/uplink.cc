#include "worker/uplink.h"

namespace byteps {

void Uplink::on_ready(PartRef ref) {
  Tensor& tensor = work_.tensors[ref.tensor];
  if (!work_.is_active(tensor) || !road_.is_at(tensor.parts[ref.part], push_)) return;
  push_.enter(ref, tensor, work_.now);
}

void Uplink::forget(Key key, const wire::Declare& declared) {
  TensorIndex index = work_.tensors.find(key);
  if (index == kNoTensor && work_.config.duties.stands_in && !declared.name.empty()) {
    const Result<TensorIndex> made = work_.find_or_add(declared.name, declared);
    if (made.is_ok()) index = made.value();
  }
  if (index == kNoTensor) return;
  Tensor& tensor = work_.tensors[index];
  if (tensor.active != kNoOp) {
    tensor.once = work_.operations[tensor.active].once = true;
  } else if (tensor.lent_count == 0) {
    work_.forget(tensor);
    kept_.retire(tensor);
    work_.tensors.give_up(index);
  }
}

void Uplink::forget_everywhere(Key key) {
  Tensor tensor;
  tensor.key = key;
  for (ShardIndex shard(0); shard.value < work_.shards.size(); ++shard.value) {
    tensor.ways.push_back({shard});
  }
  work_.forget(tensor);
  kept_.retire(tensor);
}

void Uplink::note_begun(const wire::Declare& declared) {
  const Result<TensorIndex> found = work_.find_or_add(declared.name, declared);
  if (found.is_ok()) kept_.note_begun(found.value());
}

void Uplink::inherit(const wire::Declare& declared, PartIndex part, std::uint64_t offset_bytes,
                     Round round, const std::optional<std::span<const std::byte>>& sum) {
  const Result<TensorIndex> found = work_.find_or_add(declared.name, declared);
  if (found.is_ok()) kept_.inherit(found.value(), part, offset_bytes, round, sum);
}

}  // namespace byteps
