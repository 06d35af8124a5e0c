#include "server/declaration.h"

#include <algorithm>
#include <limits>
#include <sstream>

#include "base/limits.h"
#include "base/phrases.h"

namespace byteps {
namespace {

constexpr std::size_t kQuotedBytesMax = 256 + 3;  // "..." when it is cut

}  // namespace

std::string flaw_of(const wire::Declare& declared, Key key, WorkerRank from,
                    std::uint32_t worker_count, const Placement& placement) {
  if (declared.name.empty()) return "the tensor has no name";
  if (declared.name.size() > kTensorNameBytesMax) return "the tensor's name is too long";
  if (key != key_of(declared.name)) return "the key is not that of the tensor's name";
  std::string flaw = declared.flaw(from, worker_count);
  if (!flaw.empty()) return flaw;
  const bool is_too_long =
      placement.part_count(declared.extent()) > std::numeric_limits<std::uint32_t>::max();
  return is_too_long ? "the tensor has too many parts" : "";
}

std::string described(const Spec& spec) {
  return "(" + spec.text() + ")";
}

std::string quoted_name(std::string_view name) {
  return "\"" + printable(name, kQuotedBytesMax) + "\"";
}

namespace {

// Whether a cast to 16 bits, as compression is where nothing is coded, makes the one the other's kind.
bool may_be_cast(DType first, DType second) {
  const auto is_short = [](DType dtype) { return is_float(dtype) && element_bytes(dtype) == 2; };
  return first != second && is_float(first) && is_float(second) &&
         (is_short(first) || is_short(second));
}

const char* remedy_of(const wire::Declare& first, const wire::Declare& second) {
  if (first.members != second.members) {
    return "Give the tensors of different process sets different names, on all ranks";
  }
  if (first.format != second.format || first.codec != second.codec) {
    return "Ask for the same compression on all ranks, and set BYTEPS_COMPRESSION and "
           "BYTEPS_MIN_COMPRESS_BYTES alike";
  }
  if (may_be_cast(first.dtype, second.dtype)) {
    return "Give it the same element type on all ranks; where compression makes it another, ask "
           "for the same on all ranks, and set BYTEPS_COMPRESSION and BYTEPS_MIN_COMPRESS_BYTES "
           "alike";
  }
  return "Give it the same shape, element type and operation on all ranks, or different names";
}

}  // namespace

std::string difference_text(WorkerRank first_worker, const wire::Declare& first,
                            WorkerRank second_worker, const wire::Declare& second) {
  std::ostringstream text;
  if (first.name != second.name) {
    text << "the names of tensor " << quoted_name(first.name) << " (" << first_worker
         << ") and tensor " << quoted_name(second.name) << " (" << second_worker
         << ") have the same key. Rename one of them on all ranks";
  } else if (first_worker == second_worker) {
    text << "tensor " << quoted_name(first.name) << " changed: " << first_worker << " had "
         << described(first) << " and now has " << described(second)
         << ". Use another name for another tensor, on all ranks";
  } else {
    text << "tensor " << quoted_name(first.name) << " differs between ranks: " << first_worker
         << ' ' << described(first) << ", but " << second_worker << ' ' << described(second) << ". "
         << remedy_of(first, second);
  }
  return text.str();
}

}  // namespace byteps
