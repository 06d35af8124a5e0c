#include "server/answering.h"

#include <utility>

namespace byteps {
namespace {

// Whether this contributor's answers have a payload: who brings a broadcast has it already, and a root that alone gets
// the result is of one machine.
bool is_sent_to(const TensorSum& tensor, WorkerRank to) {
  if (!tensor.declared.has_root()) return true;
  if (tensor.gone.is_root) return true;  // perhaps what its crew had of it is lost, too
  return tensor.contributors->speaks_for(to, tensor.declared.root) == tensor.declared.root_only;
}

}  // namespace

void append_answer(Epoch epoch, const PartSum& part, std::uint32_t frame_index, WorkerRank to,
                   std::uint32_t tag, Settling& settling, ShelfOutputs& out) {
  const FrameSum& frame = part.frames[frame_index];
  const TensorSum& tensor = *part.tensor;
  auto& answer =
      std::get<ShelfOutput::Answer>(out.emplace_back(std::in_place_type<ShelfOutput::Answer>));
  answer.header.kind = wire::Kind::kAnswer;
  answer.header.epoch = epoch;
  answer.header.key = tensor.key;
  answer.header.part = part.index;
  answer.header.round = Round(frame.round.value - 1);
  answer.header.offset_bytes = frame_index * part.frame_bytes;
  answer.header.worker = to;
  answer.header.tag = tag;
  answer.header.count = settling.answer(frame, to);
  // A root that alone got the result may be lost, and that with it.
  const bool is_lost =
      tensor.declared.root_only && !frame.finished && part.frame_length(frame_index) > 0;
  if (is_lost || !is_sent_to(tensor, to)) {
    answer.header.flags = wire::kNoPayload;
  } else {
    answer.buffer = frame.finished;
    answer.payload_bytes = part.finished_length(frame_index);
  }
}

void append_answers_of_others(Epoch epoch, const Inventory& inventory,
                              const Generations& generations, Settling& settling,
                              ShelfOutputs& out) {
  for (const Settling::Frame& each : settling.take_answerable()) {
    const PartSum* const part = inventory.find(each.key, each.part);
    if (part == nullptr) continue;
    const TensorSum& tensor = *part->tensor;
    for (std::uint32_t place = 0; place < tensor.contributors->count(); ++place) {
      if (generations.is_done(*tensor.contributors, place)) continue;
      const WorkerRank to = tensor.contributors->at(place, tensor.key, part->index);
      if (tensor.contributors->speaks_for(to, tensor.declared.root)) continue;
      if (part->is_unsaid(each.frame, to)) continue;
      append_answer(epoch, *part, each.frame, to, part->tags[to.value], settling, out);
    }
  }
}

}  // namespace byteps
