#include "base/cause.h"

#include <array>

namespace byteps {
namespace {

constexpr std::array kNames = {
    "other",           "gone",
    "silent",          "unreachable",
    "started_anew",    "left",
    "damaged",         "told_to_stop",
    "stands_still",    "no_descriptors",
    "no_memory",       "tensor_differs",
    "stalled",         "stall_timeout",
    "incomplete",      "sizes_differ",
    "turned_away",     "refused",
    "keys_differ",     "versions_differ",
    "setting_missing", "setting_invalid",
    "job_key",         "cannot_listen",
    "raised",          "interrupted",
    "replaced",
};
static_assert(kNames.size() == static_cast<std::size_t>(kCauseKindLast) + 1);

}  // namespace

const char* name(CauseKind kind) {
  return kNames[static_cast<std::size_t>(kind)];
}

std::optional<CauseKind> cause_kind_of(std::uint64_t number) {
  if (number > static_cast<std::uint64_t>(kCauseKindLast)) return std::nullopt;
  return static_cast<CauseKind>(number);
}

}  // namespace byteps
