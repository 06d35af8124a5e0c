#include "worker/standstill.h"

#include <algorithm>

namespace byteps {

std::vector<HandleId> Standstill::pending_handles() const {
  std::vector<HandleId> handles = work_.operations.handles();
  if (inputs_.is_finishing()) handles.push_back(inputs_.handle());
  std::sort(handles.begin(), handles.end());
  return handles;
}

bool Standstill::add_awaited(std::span<const HandleId> handles,
                             std::vector<wire::Awaited>& awaited) {
  const auto has = [handles](HandleId handle) {
    return std::binary_search(handles.begin(), handles.end(), handle);
  };
  const bool all = inputs_.is_finishing() && has(inputs_.handle());
  const Operations& operations = work_.operations;
  if (all && operations.count() == 0) {
    awaited.push_back({.name = {}, .key = wire::kInputsKey, .round = inputs_.generation()});
  }
  for (OpIndex index = operations.oldest(); index != kNoOp; index = operations[index].newer) {
    if (!all && !has(operations[index].handle)) continue;
    const Tensor& tensor = work_.tensors[operations[index].tensor];
    if (!work_.is_active(tensor)) return false;
    push_.want_first_part(operations[index].tensor);
    awaited.push_back({tensor.name, tensor.key, tensor.round.value});
  }
  return true;
}

}  // namespace byteps
