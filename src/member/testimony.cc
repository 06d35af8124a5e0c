#include "member/testimony.h"

namespace byteps {

void Testimony::take(const wire::Roster& roster, std::uint32_t term,
                     std::span<const std::byte> encoded) {
  if (roster.epoch != heard_.epoch) {
    left_.clear();
    heard_ = {};
  }
  if (!roster.recovers || term == 0) return;
  heard_.term = term;
  heard_.epoch = roster.epoch;
  heard_.revision = roster.revision;
  roster_.assign(encoded.begin(), encoded.end());
}

wire::Join::Heard Testimony::heard() const {
  wire::Join::Heard heard = heard_;
  if (!recovers()) return heard;
  for (const auto& [rank, final] : left_) {
    (final ? heard.left_for_good : heard.left_for_a_while).push_back(rank);
  }
  return heard;
}

}  // namespace byteps
