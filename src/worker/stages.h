// The road of a part, as data: which stages it passes, in which order, and who works there. Pipeline moves parts
// along it.
//
// Today a part has two stages. Others will stand where the comments in kRoad say: reduce (sum over the GPUs or
// processes of one machine), copy_out (device to host), compress; and on the way back decompress, copy_in, spread
// (to the machine's other GPUs). A stage is added here, gets a value in Stage, and its state in PartState.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "worker/tensor_table.h"

namespace byteps {

enum class Stage : std::uint8_t {
  kPush,  // some of its frames have not been handed to the transport
  kPull,  // all are sent, some are not answered
  kDone,
};

struct StageInfo {
  Stage stage;
  std::string_view name;
  std::string_view waits_for;  // what keeps a part here, for messages to people
};

inline constexpr std::array<StageInfo, 2> kRoad = {{
    // reduce, copy_out, compress: not yet
    {Stage::kPush, "push", "credit and the connection"},
    {Stage::kPull, "pull", "the other workers' contributions"},
    // decompress, copy_in, spread: not yet
}};

// Where a part of a tensor that is under way stands.
inline Stage stage_of(const PartState& part) {
  if (part.answered_frames == part.frame_count) return Stage::kDone;
  return part.next_frame < part.frame_count ? Stage::kPush : Stage::kPull;
}

}  // namespace byteps
