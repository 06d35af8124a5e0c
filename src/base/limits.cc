#include "base/limits.h"

namespace byteps {

Status check_descriptors(std::size_t needed, std::uint64_t may_open, const std::string& what) {
  if (may_open == 0 || needed <= may_open) return Status::ok();
  return {Code::kSystem,
          what + " need " + std::to_string(needed) +
              " file descriptors, and this process may have " + std::to_string(may_open) +
              ": raise its limit of open files, ulimit -n",
          {.kind = CauseKind::kNoDescriptors}};
}

}  // namespace byteps
