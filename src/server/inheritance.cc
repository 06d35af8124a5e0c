#include "server/inheritance.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "server/answering.h"
#include "server/declaration.h"
#include "server/shelf.h"
#include "server/summing.h"
#include "server/worker_bits.h"

namespace byteps {
namespace {

// Of a frame in the payload of a Have.
bool is_named(std::span<const std::byte> bitmap, std::uint32_t frame) {
  if (frame / 8 >= bitmap.size()) return false;
  return (bitmap[frame / 8] >> (frame % 8) & std::byte{1}) != std::byte{0};
}

}  // namespace

void Inheritance::begin_epoch(std::uint32_t worker_count) {
  for (auto* const bits : {&connected_, &told_, &ending_, &left_}) {
    bits->assign(bit_words_of(worker_count), 0);
  }
  gone_.clear();
}

void Inheritance::begin_generation() {
  std::fill(ending_.begin(), ending_.end(), 0);
}

// ---- connections

void Inheritance::connect(WorkerRank worker, ShelfOutputs& out) {
  disconnect(worker, out);
  set_bit(connected_, worker);
}

void Inheritance::disconnect(WorkerRank worker, ShelfOutputs& out) {
  if (!has_bit(connected_, worker)) return;
  clear_bit(connected_, worker);
  for_all(&Takeover::on_down, worker, out);
}

void Inheritance::lose(WorkerRank worker, ShelfOutputs& out) {
  clear_bit(connected_, worker);
  for_all(&Takeover::on_lost, worker, out);
}

void Inheritance::leave(WorkerRank worker, ShelfOutputs& out) {
  set_bit(left_, worker);
  look_whether_any_is_gone(out);
}

void Inheritance::look_whether_any_is_gone(ShelfOutputs& out) {
  if (!has_any_bit(left_)) return;
  for (const auto& [key, tensor] : inventory_.tensors()) {
    for (const auto& [index, part] : tensor->parts) {
      for (std::uint32_t frame = 0; frame < part->frames.size(); ++frame) {
        look_whether_gone(*part, frame, out);
        look_whether_all_have(*part, frame, out);
      }
    }
  }
}

// Of each frame whose takeover is not over.
void Inheritance::for_all(Change change, WorkerRank worker, ShelfOutputs& out) {
  for (const auto& [key, tensor] : inventory_.tensors()) {
    for (const auto& [index, part] : tensor->parts) {
      for (std::uint32_t frame = 0; frame < part->frames.size(); ++frame) {
        Takeover* const takeover = part->frames[frame].takeover.get();
        if (takeover == nullptr) continue;
        carry_out((takeover->*change)(worker, scene_of(*part, frame)), *part, frame, worker, out);
      }
    }
  }
}

// ---- what workers say

bool Inheritance::admits(PartSum& part, std::uint32_t frame_index, WorkerRank from,
                         const wire::Header& header, ShelfOutputs& out) {
  part.tags[from.value] = header.tag;
  const Takeover::Doing doing =
      part.frames[frame_index].takeover->on_push(from, header.round, scene_of(part, frame_index));
  return carry_out(doing, part, frame_index, from, out) && doing.adds;
}

const char* Inheritance::have(PartSum& part, WorkerRank from, const wire::Header& header,
                              std::span<const std::byte> payload, ShelfOutputs& out) {
  if (!has_bit(part.tensor->declared_here, from)) return "it was not declared on this connection";
  if (part.tensor->contributors->speaker_of(from, part.tensor->key, part.index) != from) {
    return "another worker of its machine leads this part";
  }
  if (payload.size() > (part.frames.size() + 7) / 8) return "the part has fewer frames";
  const bool has_former =
      (header.flags & wire::kHasFormer) != 0 && round_in_generation(header.round.value) > 0;
  for (std::uint32_t frame = 0; frame < part.frames.size(); ++frame) {
    Takeover* const takeover = part.frames[frame].takeover.get();
    const bool has_it = is_named(payload, frame);
    if (!has_it && !has_former) continue;
    const Round round(header.round.value - (has_it ? 0 : 1));
    if (takeover != nullptr) {  // null: its round is known
      const Takeover::Doing doing = takeover->on_have(from, round, scene_of(part, frame));
      if (!carry_out(doing, part, frame, from, out)) return nullptr;  // it was said
    }
    if (later_by(part.frames[frame].round, round) != 1) {
      if (later_by(part.frames[frame].round, round) > 1)
        tell_settled(part, frame, round, from, out);
      continue;
    }
    const bool is_for_some = (header.flags & wire::kSome) != 0;
    if (takeover != nullptr) takeover->note_some(from, is_for_some);
    if (settling_.is_settled(part.frames[frame]) || (takeover && takeover->is_settled())) {
      tell_settled(part, frame, round, from, out);
    } else if (!is_for_some) {
      settling_.note_told(part.frames[frame], from);
      look_whether_all_have(part, frame, out);
    }
  }
  return nullptr;
}

void Inheritance::tell_settled(const PartSum& part, std::uint32_t frame_index, Round round,
                               WorkerRank whom, ShelfOutputs& out) const {
  out.emplace_back(ShelfOutput::Ask{.kind = wire::Kind::kSettled,
                                    .worker = whom,
                                    .key = part.tensor->key,
                                    .part = part.index,
                                    .round = round,
                                    .offset_bytes = frame_index * part.frame_bytes});
}

// A frame of which nobody lacks the sum of the round before, for all have said that they have it. (At a relay before
// servers others may.)
void Inheritance::look_whether_all_have(PartSum& part, std::uint32_t frame_index,
                                        ShelfOutputs& out) {
  Takeover* const takeover = part.frames[frame_index].takeover.get();
  if (takeover == nullptr || facts_.relay || takeover->has_sum() || !takeover->round()) return;
  const Contributors& contributors = *part.tensor->contributors;
  std::vector<WorkerRank> told;
  for (std::uint32_t place = 0; place < contributors.count(); ++place) {
    if (contributors.are_all_at(place, left_) || generations_.is_done(contributors, place))
      continue;
    const WorkerRank each = contributors.at(place, part.tensor->key, part.index);
    if (!takeover->has_sum(each) || takeover->is_for_some(each)) return;
    told.push_back(each);
  }
  if (told.empty()) return;
  const Round round(takeover->round()->value - 1);
  takeover->on_settled(told.front(), round);
  for (const WorkerRank each : told) tell_settled(part, frame_index, round, each, out);
}

void Inheritance::take_sum(PartSum& part, std::uint32_t frame_index, const wire::Header& header,
                           std::span<const std::byte> payload, ShelfOutputs& out) {
  FrameSum& frame = part.frames[frame_index];
  if (!frame.takeover) return;  // all have it
  if ((header.flags & wire::kNoPayload) != 0) {
    frame.takeover->on_settled(header.worker, header.round);
    for (WorkerRank each(0); each.value < facts_.worker_count; ++each.value) {
      if (frame.takeover->has_sum(each)) tell_settled(part, frame_index, header.round, each, out);
    }
    return tell_if_had(part, frame_index, out);
  }
  const Takeover::Doing doing = frame.takeover->on_sum(header.worker, header.round);
  BufferRef given;
  if (doing.keeps && !payload.empty()) {
    given = inventory_.take(payload.size());
    std::memcpy(given.span().data(), payload.data(), payload.size());
    // Or all here have contributed to the next round already, and that is what goes to the servers.
    if (!frame.is_forwarded) {
      frame.finished = given;
      // Where workers sum first, who has lost its relay has elements of what the others were answered with codes.
      frame.is_plain = part.tensor->coding && payload.size() == part.frame_length(frame_index);
    }
  }
  if (doing.keeps) {
    if (facts_.relay) {
      out.emplace_back(ShelfOutput::Had{.key = part.tensor->key,
                                        .part = part.index,
                                        .round = header.round,
                                        .offset_bytes = header.offset_bytes,
                                        .is_given = true,
                                        .buffer = given,
                                        .payload_bytes = payload.size()});
    }
    settling_.begin(part, frame_index, generations_);
    for (WorkerRank each(0); each.value < facts_.worker_count; ++each.value) {
      const bool has_it = frame.takeover->has_sum(each) && !frame.takeover->is_for_some(each);
      if (has_it) settling_.note_told(frame, each);
    }
  }
  carry_out(doing, part, frame_index, header.worker, out);
}

// ---- at a relay

bool Inheritance::is_over(const PartSum& part, std::uint32_t frame_index) const {
  const Takeover* const takeover = part.frames[frame_index].takeover.get();
  if (takeover == nullptr || takeover->has_sum()) return true;
  const Contributors& contributors = *part.tensor->contributors;
  for (std::uint32_t place = 0; place < contributors.count(); ++place) {
    if (generations_.is_done(contributors, place)) continue;
    if (!takeover->has_sum(contributors.at(place, part.tensor->key, part.index))) return false;
  }
  return true;
}

void Inheritance::tell_if_had(const PartSum& part, std::uint32_t frame_index,
                              ShelfOutputs& out) const {
  const FrameSum& frame = part.frames[frame_index];
  if (!frame.takeover || !frame.takeover->round() || !is_over(part, frame_index)) return;
  out.emplace_back(ShelfOutput::Had{.key = part.tensor->key,
                                    .part = part.index,
                                    .round = Round(frame.round.value - 1),
                                    .offset_bytes = frame_index * part.frame_bytes});
}

void Inheritance::tell_of_had(const TensorSum& tensor, ShelfOutputs& out) const {
  for (const auto& [index, part] : tensor.parts) {
    for (std::uint32_t frame = 0; frame < part->frames.size(); ++frame) {
      tell_if_had(*part, frame, out);
    }
  }
}

bool Inheritance::is_fetching(const TensorSum& tensor) {
  return std::any_of(tensor.parts.begin(), tensor.parts.end(), [](const auto& each) {
    const std::vector<FrameSum>& frames = each.second->frames;
    return std::any_of(frames.begin(), frames.end(), [](const FrameSum& frame) {
      return frame.takeover && frame.takeover->is_fetching();
    });
  });
}

bool Inheritance::has_told(WorkerRank worker) const {
  return has_bit(told_, worker);
}

bool Inheritance::is_connected(WorkerRank worker) const {
  return has_bit(connected_, worker);
}

void Inheritance::note_all_is_told(WorkerRank from, ShelfOutputs& out) {
  set_bit(told_, from);
  look_whether_any_is_gone(out);
}

bool Inheritance::knows_forgotten(const TensorSum& tensor, WorkerRank worker) const {
  return has_bit(told_, worker) && !has_bit(tensor.declared_ever, worker);
}

void Inheritance::note_ending(WorkerRank from) {
  set_bit(ending_, from);
}

// ---- what is done

Takeover::Scene Inheritance::scene_of(const PartSum& part, std::uint32_t frame_index) const {
  Takeover::Scene scene{.contributed = part.bits_of(frame_index), .connected = connected_};
  if (has_any_bit(ending_)) scene.done = ending_;
  return scene;
}

// False: it breaks the protocol.
bool Inheritance::carry_out(const Takeover::Doing& doing, PartSum& part, std::uint32_t frame_index,
                            WorkerRank from, ShelfOutputs& out) {
  FrameSum& frame = part.frames[frame_index];
  if (doing.is_wrong) {
    out.emplace_back(ShelfOutput::Violation{from, "tensor " +
                                                      quoted_name(part.tensor->declared.name) +
                                                      ": it is rounds further than the others"});
    return false;
  }
  if (doing.drops) drop_contributions(part, frame_index);
  frame.round = frame.takeover->round().value_or(frame.round);
  for (const WorkerRank to : doing.answered) {
    append_answer(facts_.epoch, part, frame_index, to, part.tags[to.value], settling_, out);
  }
  const auto ask = [&](wire::Kind kind, WorkerRank whom, Round round) {
    out.emplace_back(ShelfOutput::Ask{.kind = kind,
                                      .worker = whom,
                                      .key = part.tensor->key,
                                      .part = part.index,
                                      .round = round,
                                      .offset_bytes = frame_index * part.frame_bytes});
  };
  if (doing.giver) ask(wire::Kind::kGive, *doing.giver, Round(frame.round.value - 1));
  for (const WorkerRank whom : doing.again) ask(wire::Kind::kAgain, whom, frame.round);
  if (facts_.relay) tell_if_had(part, frame_index, out);
  look_whether_gone(part, frame_index, out);
  return true;
}

// Whether somebody needs a sum that only workers had which have left: nobody can give it, and without what they have
// contributed it would be another one.
void Inheritance::look_whether_gone(PartSum& part, std::uint32_t frame_index, ShelfOutputs& out) {
  const Takeover* const takeover = part.frames[frame_index].takeover.get();
  if (takeover == nullptr || !has_any_bit(left_)) return;
  if (!takeover->waits_only_for(left_) || may_another_tell(part)) return;
  WorkerRank with(0);
  while (!takeover->has_sum(with)) ++with.value;
  const wire::Declare& declared = part.tensor->declared;
  if (!declared.root_only || !has_bit(left_, declared.root)) {
    gone_.try_emplace(part.tensor->key, with);
    return;
  }
  wire::Header
      given;  // for the root alone, which has left with it: the others only wait for word of that
  given.worker = with;
  given.round = Round(takeover->round()->value - 1);
  given.offset_bytes = frame_index * part.frame_bytes;
  take_sum(part, frame_index, given, {}, out);
}

// Somebody who contributes to this part may have the sum, and has not said yet what it has; or has left, and is asked
// as long as its connection is there.
bool Inheritance::may_another_tell(const PartSum& part) const {
  const Contributors& contributors = *part.tensor->contributors;
  for (std::uint32_t place = 0; place < contributors.count(); ++place) {
    const WorkerRank each = contributors.at(place, part.tensor->key, part.index);
    const bool has_left = has_bit(left_, each);
    if (has_left && has_bit(connected_, each)) return true;
    if (has_left || contributors.are_all_at(place, generations_.lost())) continue;
    if (!has_bit(told_, each)) return true;
  }
  return false;
}

void Inheritance::drop_contributions(PartSum& part, std::uint32_t frame_index) {
  FrameSum& frame = part.frames[frame_index];
  settling_.end(frame);
  frame.finished = {};
  if (frame.contributed == 0) return;
  Summing::drop(part, frame_index);
  const std::span bits = part.bits_of(frame_index);
  std::fill(bits.begin(), bits.end(), 0);
  part.clear_lacking(frame_index);
  frame.contributed = 0;
  inventory_.end_frame(part);
}

}  // namespace byteps
