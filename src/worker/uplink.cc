#include "worker/uplink.h"

namespace byteps {

void Uplink::on_ready(PartRef ref) {
  Tensor& tensor = work_.tensors[ref.tensor];
  if (!work_.is_active(tensor) || !road_.is_at(tensor.parts[ref.part], push_)) return;
  push_.enter(ref, tensor, work_.now);
}

void Uplink::forget(Key key) {
  const TensorIndex index = work_.tensors.find(key);
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

}  // namespace byteps
