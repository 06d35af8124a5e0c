#include "server/declaration.h"

#include <algorithm>
#include <limits>
#include <sstream>

#include "base/phrases.h"

namespace byteps {
namespace {

constexpr std::size_t kQuotedBytesMax = 256 + 3;  // "..." when it is cut

const char* flaw_of_ranks(const wire::Declare& declared, WorkerRank from,
                          std::uint32_t worker_count) {
  const Members& members = declared.members;
  if (!members.is_all()) {
    if (members.some().back() >= worker_count) return "a member of it is no worker of the job";
    if (members.some().size() == worker_count) return "its members are all workers, one by one";
    if (!members.has(from)) return "it comes from a worker that is not among its members";
  }
  if (declared.root_only && declared.operation == Operation::kBroadcast) {
    return "only the root of a broadcast would get it";
  }
  if (declared.has_root() && (declared.root.value >= worker_count || !members.has(declared.root))) {
    return "its root is none of those who take part";
  }
  return nullptr;
}

}  // namespace

const char* flaw_of(const wire::Declare& declared, Key key, WorkerRank from,
                    std::uint32_t worker_count, const Placement& placement) {
  if (declared.name.empty()) return "the tensor has no name";
  if (declared.name.size() > kTensorNameBytesMax) return "the tensor's name is too long";
  if (key != key_of(declared.name)) return "the key is not that of the tensor's name";
  if (declared.total_bytes % element_bytes(declared.dtype) != 0) {
    return "the tensor's bytes are no whole number of elements";
  }
  const std::uint64_t element_count = declared.total_bytes / element_bytes(declared.dtype);
  if (!declared.shape.is_flat() &&
      Shape::element_count(declared.shape.dimensions()) != element_count) {
    return "the tensor's shape has another number of elements than its bytes";
  }
  if (placement.part_count(declared.total_bytes) > std::numeric_limits<std::uint32_t>::max()) {
    return "the tensor has too many parts";
  }
  if (declared.operation == Operation::kAverage && declared.dtype == DType::kBool) {
    return "bool has no average";
  }
  if (const char* flaw = flaw_of_scale(declared.scale, declared.dtype, declared.operation)) {
    return flaw;
  }
  return flaw_of_ranks(declared, from, worker_count);
}

bool same_tensor(const wire::Declare& a, const wire::Declare& b) {
  return a.name == b.name && a.dtype == b.dtype && a.logical == b.logical &&
         a.operation == b.operation && a.total_bytes == b.total_bytes && a.shape == b.shape &&
         a.scale == b.scale && a.root_only == b.root_only && a.members == b.members &&
         (!a.has_root() || a.root == b.root);
}

std::string describe(const wire::Declare& declared) {
  std::ostringstream text;
  text << '(' << name(declared.dtype, declared.logical) << ", shape "
       << declared.shape.text(declared.total_bytes / element_bytes(declared.dtype)) << ", "
       << declared.total_bytes << " bytes, " << name(declared.operation);
  if (declared.operation == Operation::kBroadcast) text << " from " << declared.root;
  if (declared.root_only) text << " for " << declared.root << " alone";
  if (declared.scale != 1) text << " times " << number_text(declared.scale);
  if (!declared.members.is_all()) text << ", of " << workers_text(declared.members.some());
  text << ')';
  return text.str();
}

std::string quoted_name(std::string_view name) {
  return "\"" + printable(name, kQuotedBytesMax) + "\"";
}

std::string difference_text(WorkerRank first_worker, const wire::Declare& first,
                            WorkerRank second_worker, const wire::Declare& second) {
  std::ostringstream text;
  if (first.name != second.name) {
    text << "the names of tensor " << quoted_name(first.name) << " (" << first_worker
         << ") and tensor " << quoted_name(second.name) << " (" << second_worker
         << ") have the same key. Rename one of them on all ranks";
  } else if (first_worker == second_worker) {
    text << "tensor " << quoted_name(first.name) << " changed: " << first_worker << " had "
         << describe(first) << " and now has " << describe(second)
         << ". Use another name for another tensor, on all ranks";
  } else {
    text << "tensor " << quoted_name(first.name) << " differs between ranks: " << first_worker
         << ' ' << describe(first) << ", but " << second_worker << ' ' << describe(second) << ". "
         << (first.members == second.members
                 ? "Give it the same shape, element type and operation on all ranks, or different "
                   "names"
                 : "Give the tensors of different process sets different names, on all ranks");
  }
  return text.str();
}

}  // namespace byteps
