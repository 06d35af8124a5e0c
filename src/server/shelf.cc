#include "server/shelf.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <sstream>
#include <utility>

#include "base/check.h"
#include "base/planted.h"
#include "net/wire_text.h"
#include "server/answering.h"
#include "server/declaration.h"
#include "server/worker_bits.h"

namespace byteps {
namespace {

void violation(WorkerRank from, std::string text, ShelfOutputs& out) {
  out.emplace_back(ShelfOutput::Violation{from, std::move(text)});
}

// By all who have declared it, of each crew one at least; a crew that has no more inputs need not say it. (Of a crew,
// those who lead no part here declare nothing. Nor does, at a shard that took another one's place, who had
// heard there that all have forgotten it: if a whole crew says nothing of it, that was so.) Where a job recovers, what
// could not be summed is not forgotten: who has not used the name yet is to hear why, and members may be what ranks
// disagree about.
bool is_forgotten(const TensorSum& tensor, const Generations& generations,
                  const Inheritance& inheritance, bool recovers) {
  if (!has_any_bit(tensor.forgotten)) return false;
  if (recovers && tensor.spoiled.code != Code::kOk) return false;
  const Contributors& contributors = *tensor.contributors;
  for (std::uint32_t place = 0; place < contributors.count(); ++place) {
    if (generations.is_done(contributors, place)) continue;
    bool any = false;
    bool all_know = true;
    for (const WorkerRank rank : contributors.crew(place)) {
      const bool has_forgotten = has_bit(tensor.forgotten, rank);
      if (has_bit(tensor.declared_ever, rank) && !has_forgotten) return false;
      any = any || has_forgotten;
      const bool knows = inheritance.knows_forgotten(tensor, rank);
      all_know = all_know && knows;
      any = any || (knows && PLANTED(crew_forgets_by_one));
    }
    if (!any && !all_know) return false;
  }
  return true;
}

// Whether all have contributed who may have inputs. Who has no more may have contributed as well, to what has failed.
bool is_complete(const PartSum& part, std::uint32_t frame_index, const Generations& generations) {
  const TensorSum& tensor = *part.tensor;
  const std::uint32_t count = tensor.contributors->count();
  if (generations.no_more_count() == 0) {
    return part.frames[frame_index].contributed == count;
  }
  if (part.frames[frame_index].contributed + generations.no_more_count() < count) return false;
  const std::span bits = part.bits_of(frame_index);
  bool any = false;
  for (std::uint32_t place = 0; place < count; ++place) {
    if (generations.is_done(*tensor.contributors, place)) continue;
    const WorkerRank each = tensor.contributors->at(place, tensor.key, part.index);
    if (PLANTED(leader_done_alone) && generations.has_no_more(each)) continue;
    if (!has_bit(bits, each)) return false;
    any = true;
  }
  return any;
}

// Whose declaration it is: relays say what a neighbour has declared. None: it is of another machine.
std::optional<WorkerRank> declarer(const ShelfEpoch& facts, WorkerRank from, PartIndex said) {
  if (said.value == 0) return from;
  const WorkerRank who(said.value - 1);
  const bool is_neighbour = !facts.relay && who.value < facts.worker_count &&
                            facts.groups->group_of(who) == facts.groups->group_of(from);
  return is_neighbour ? std::optional(who) : std::nullopt;
}

// Its root is lost, and has not contributed to this. (Of a crew its relay says so, perhaps before it is known here.)
bool has_lost_root(const PartSum& part, std::uint32_t frame_index, const Generations& generations) {
  const wire::Declare& declared = part.tensor->declared;
  if (!declared.has_root()) return false;
  if (part.is_said_to_lack(frame_index, declared.root)) return true;
  if (!generations.is_lost(declared.root)) return false;
  const WorkerRank speaker =
      part.tensor->contributors->speaker_of(declared.root, part.tensor->key, part.index);
  return !has_bit(part.bits_of(frame_index), speaker);
}

// Members that are lost and not in this sum: those of which the relays of crews that have contributed say so, and of
// the others all that are lost.
template <typename Do>
void for_each_lost_without(const PartSum& part, std::uint32_t frame_index,
                           const Generations& generations, const Do& does) {
  const Contributors& contributors = *part.tensor->contributors;
  const std::span bits = part.bits_of(frame_index);
  for (WorkerRank each(0); each.value < 64 * bits.size(); ++each.value) {
    const bool is_lost = has_bit(generations.lost(), each) && contributors.has(each);
    if (part.is_said_to_lack(frame_index, each) ||
        (is_lost && !has_bit(bits, contributors.speaker_of(each, part.tensor->key, part.index)))) {
      does(each);
    }
  }
}

std::uint32_t count_lost_without(const PartSum& part, std::uint32_t frame_index,
                                 const Generations& generations) {
  if (generations.lost_count() == 0 && part.lacking.empty()) return 0;
  std::uint32_t count = 0;
  for_each_lost_without(part, frame_index, generations, [&](WorkerRank /*each*/) { ++count; });
  return count;
}

// By how many fewer than its members an average is divided.
std::uint32_t divisor_less_of(const PartSum& part, std::uint32_t frame_index,
                              std::uint32_t absent) {
  if (PLANTED(divisor_of_all)) return 0;
  return PLANTED(group_counted_as_one) ? absent - part.lacking_count(frame_index) : absent;
}

// Who is not in this sum for the first time, for the record. A member that is lost never comes back, so their number
// says whether there are new ones.
void append_absences(PartSum& part, std::uint32_t frame_index, std::uint32_t count,
                     const ShelfEpoch& facts, const Generations& generations, ShelfOutputs& out) {
  FrameSum& frame = part.frames[frame_index];
  if (count == frame.absent) return;
  frame.absent = count;
  const wire::Declare& declared = part.tensor->declared;
  const std::size_t element_bytes = byteps::element_bytes(declared.dtype);
  const std::uint64_t begin_bytes =
      facts.placement->part(part.tensor->key, declared.extent(), part.index.value).offset +
      frame_index * part.frame_bytes;
  for_each_lost_without(part, frame_index, generations, [&](WorkerRank each) {
    out.emplace_back(
        ShelfOutput::Absence{.worker = each,
                             .name = declared.name,
                             .first_element = begin_bytes / element_bytes,
                             .element_count = part.frame_length(frame_index) / element_bytes,
                             .since = frame.round});
  });
}

// Who of this relay's crew is lost, and not in what it has for them: bits of their places in the crew.
std::uint16_t places_lost_without(const PartSum& part, std::uint32_t frame_index,
                                  const Generations& generations) {
  if (generations.lost_count() == 0) return 0;
  std::uint32_t places = 0;
  for_each_lost_without(part, frame_index, generations, [&](WorkerRank each) {
    const std::uint32_t place = part.tensor->contributors->place_of(each);
    CHECK_LT(place, wire::kLostPlacesMax);
    places |= 1U << place;
  });
  return static_cast<std::uint16_t>(places);
}

// What a relay's push says so at a server.
std::vector<WorkerRank> lost_of_crew(const Contributors& contributors, const wire::Header& header) {
  std::vector<WorkerRank> lost;
  if (header.lost == 0) return lost;
  const Crew crew = contributors.crew(contributors.place_of(header.worker));
  for (std::size_t place = 0; place < crew.size(); ++place) {
    if ((header.lost >> place & 1U) != 0) lost.push_back(crew[place]);
  }
  return lost;
}

bool says_root_is_lost(const TensorSum& tensor, const wire::Header& header) {
  const std::vector<WorkerRank> lost = lost_of_crew(*tensor.contributors, header);
  return std::find(lost.begin(), lost.end(), tensor.declared.root) != lost.end();
}

// What the relay that spoke for this lost worker has contributed to sums that are not there yet.
void note_unsaid(TensorSum& tensor, WorkerRank moved) {
  for (const auto& [index, part] : tensor.parts) {
    for (std::uint32_t frame = 0; frame < part->frames.size(); ++frame) {
      if (has_bit(part->bits_of(frame), moved)) part->unsaid.emplace_back(frame, moved);
    }
  }
}

// A push of this frame has come.
void note_said(PartSum& part, std::uint32_t frame, const wire::Header& header) {
  std::erase(part.unsaid, std::pair(frame, header.worker));
  TensorSum& tensor = *part.tensor;
  if (tensor.is_broadcast && says_root_is_lost(tensor, header)) tensor.gone.is_root = true;
}

// More of its crew are lost than there can be.
bool are_too_many_lost(const TensorSum& tensor, const wire::Header& header, bool is_at_relay) {
  if (header.lost == 0) return false;
  const Contributors& contributors = *tensor.contributors;
  const std::size_t count = contributors.crew(contributors.place_of(header.worker)).size();
  const std::uint32_t all = (1U << std::min(count, wire::kLostPlacesMax)) - 1;
  return is_at_relay || (header.lost & ~all) != 0 || header.lost == all;
}

// Those who are left of its crew have no more inputs, and the others are lost: what one of these has pushed last may
// come late.
bool is_of_the_gone(const PartSum& part, WorkerRank from, const Generations& generations) {
  if (generations.lost_count() == 0) return false;
  const Contributors& contributors = *part.tensor->contributors;
  const std::uint32_t place = contributors.place_of(from);
  if (!generations.is_done(contributors, place)) return false;
  const Crew crew = contributors.crew(place);
  return std::any_of(crew.begin(), crew.end(),
                     [&](WorkerRank each) { return generations.is_lost(each); });
}

// nullptr: the push is one that a worker may send, whatever its round.
const char* flaw_of_push(const PartSum& part, WorkerRank from, const wire::Header& header,
                         std::size_t payload_bytes, const ShelfEpoch& facts,
                         const Generations& generations) {
  const TensorSum& tensor = *part.tensor;
  if (!has_bit(tensor.declared_here, from)) return "it was not declared on this connection";
  if (generations.is_done(*tensor.contributors, tensor.contributors->place_of(from)) &&
      later_by(header.round, generations.first_round()) >= 0 &&
      later_by(header.round, part.frames[0].round) >= 0) {
    return "it has said that it has no more inputs";
  }
  if (header.offset_bytes % part.frame_bytes != 0) return "no frame starts there";
  const std::uint64_t frame_index = header.offset_bytes / part.frame_bytes;
  if (frame_index >= part.frames.size()) return "the part ends before";
  if (tensor.contributors->speaker_of(from, tensor.key, part.index) != from) {
    return "another worker of its machine leads this part";
  }
  if (are_too_many_lost(tensor, header, facts.relay.has_value())) {
    return "it says that more of its crew are lost than there can be";
  }
  const bool is_sum = facts.takes_over && (header.flags & wire::kSum) != 0;
  const bool is_for_root =
      tensor.declared.has_root() && tensor.contributors->speaks_for(from, tensor.declared.root);
  const bool is_rootless = is_for_root && !is_sum && says_root_is_lost(tensor, header);
  const bool is_settled = is_sum && facts.relay && (header.flags & wire::kNoPayload) != 0;
  // Who has not got what the root alone gets says by its absence that the root has it.
  const bool without = is_settled || ((is_sum ? tensor.declared.root_only : tensor.is_broadcast) &&
                                      (!is_for_root || is_rootless));
  const int flags = (is_sum    ? wire::kSum
                     : without ? wire::kNoPayload
                               : 0) |
                    (is_settled ? wire::kNoPayload : 0);
  if (header.flags != flags) return "the flags are wrong";
  // Others of its crew may know that the root has it, too.
  const bool may_be_without = is_sum && tensor.declared.root_only && payload_bytes == 0;
  const auto frame = static_cast<std::uint32_t>(frame_index);
  const std::size_t expected_bytes = without || may_be_without ? 0 : part.payload_length(frame);
  const bool is_plain = is_sum && !without && payload_bytes == part.frame_length(frame);
  if (payload_bytes != expected_bytes && !is_plain) {
    return "the payload has another length than the frame";
  }
  return nullptr;
}

// Of a push that has no other flaw.
const char* flaw_of_codes(const PartSum& part, const wire::Header& header,
                          std::span<const std::byte> payload) {
  const std::size_t length =
      part.frame_length(static_cast<std::uint32_t>(header.offset_bytes / part.frame_bytes));
  if (!part.tensor->coding || payload.empty() || payload.size() == length) return nullptr;
  return part.tensor->coding->flaw(payload, length);
}

// Of relays: what their crews have. Of frames that were told by a Have: that all have them.
void say_what_crew_has(Settling& settling, ShelfOutputs& out) {
  for (const Settling::ToldFrame& each : settling.take_told()) {
    out.emplace_back(ShelfOutput::Ask{.kind = wire::Kind::kSettled,
                                      .worker = each.worker,
                                      .key = each.frame.key,
                                      .part = each.frame.part,
                                      .round = each.frame.round,
                                      .offset_bytes = each.frame.offset_bytes});
  }
  for (const Settling::Frame& each : settling.take_crew_has()) {
    out.emplace_back(ShelfOutput::CrewHas{.key = each.key,
                                          .part = each.part,
                                          .round = each.round,
                                          .offset_bytes = each.offset_bytes});
  }
}

// Nobody speaks for its crews any more.
bool is_machine_lost(const Groups& groups, const Generations& generations, WorkerRank worker) {
  const Crew machine = groups.crew_of(groups.group_of(worker), Members());
  return std::all_of(machine.begin(), machine.end(),
                     [&](WorkerRank each) { return generations.is_lost(each); });
}

void spoil(Inventory& inventory, TensorSum& tensor, Code code, std::string text,
           ShelfOutputs& out) {
  inventory.drop_parts(tensor);
  tensor.spoiled.code = code;
  tensor.spoiled.text = std::move(text);
  out.emplace_back(ShelfOutput::Spoiled{std::nullopt, tensor.key, code, tensor.spoiled.text,
                                        tensor.spoiled.cause});
}

// Of these a sum went with who has left.
void give_up_gone(Inheritance& inheritance, Inventory& inventory, ShelfOutputs& out) {
  for (const auto& [key, with] : inheritance.take_gone()) {
    TensorSum* const tensor = inventory.find(key);
    if (tensor == nullptr || tensor->spoiled.code != Code::kOk) continue;
    std::ostringstream text;
    text << "tensor " << quoted_name(tensor->declared.name) << ' ' << described(tensor->declared)
         << ": its server was lost, and its last sum had only " << with
         << ", which has left the job";
    tensor->spoiled.cause = {.kind = CauseKind::kLeft,
                             .who = {.role = Role::kWorker, .rank = with.value},
                             .detail = tensor->declared.name};
    spoil(inventory, *tensor, Code::kDisconnected, text.str(), out);
  }
}

// Sums are lost already, by another's word. Nobody must wait for them.
void look_for_contradiction(const Generations& generations, Inventory& inventory, WorkerRank from,
                            const wire::Header& header, ShelfOutputs& out) {
  const auto untrue = generations.contradict_late(from, header.round);
  TensorSum* const tensor = untrue ? inventory.find(header.key) : nullptr;
  if (tensor == nullptr || tensor->spoiled.code != Code::kOk) return;
  if (later_by(header.round, tensor->next_round) < 0) return;  // a repeat
  violation(untrue->by, untrue->text, out);
  spoil(inventory, *tensor, Code::kMismatch,
        "tensor " + quoted_name(tensor->declared.name) + ": " + untrue->text, out);
}

// At a relay: its crew have come further than this answer.
bool is_past(const PartSum* part, const wire::Header& answer) {
  if (part == nullptr) return false;
  const std::uint64_t frame_index = answer.offset_bytes / part->frame_bytes;
  return frame_index < part->frames.size() &&
         later_by(part->frames[frame_index].round, answer.round) > 0;
}

// The record of a part that has none. nullptr: the push goes no further.
PartSum* open_part(const ShelfEpoch& facts, Inventory& inventory, const Generations& generations,
                   WorkerRank from, const wire::Header& header, ShelfOutputs& out) {
  TensorSum* const found = inventory.find(header.key);
  if (found == nullptr) {
    violation(from, "a push of a tensor that nobody declared", out);
    return nullptr;
  }
  TensorSum& tensor = *found;
  if (!has_bit(tensor.declared_here, from)) {
    violation(from,
              "a push of tensor " + quoted_name(tensor.declared.name) +
                  " without a declaration on this connection",
              out);
    return nullptr;
  }
  if (tensor.spoiled.code != Code::kOk) return nullptr;  // everyone was told
  if (header.part.value >= tensor.part_count) {
    std::ostringstream text;
    text << "a push of tensor " << quoted_name(tensor.declared.name) << ", " << header.part
         << " of " << tensor.part_count;
    violation(from, text.str(), out);
    return nullptr;
  }
  if (facts.relay && tensor.contributors->leader(tensor.key, header.part) != *facts.relay) {
    violation(from,
              "a push of tensor " + quoted_name(tensor.declared.name) +
                  " to a relay that does not lead its part",
              out);
    return nullptr;
  }
  return &inventory.make_part(tensor, header.part, generations.first_round(), facts);
}

// At a relay: what its crew has together.
void forward(Summing& summing, Inventory& inventory, const Generations& generations, Epoch epoch,
             PartSum& part, std::uint32_t frame_index, ShelfOutputs& out) {
  FrameSum& frame = part.frames[frame_index];
  const TensorSum& tensor = *part.tensor;
  const bool is_without =
      tensor.is_broadcast && !has_bit(part.bits_of(frame_index), tensor.declared.root);
  if (!is_without) summing.finish(part, frame_index, 0);
  inventory.end_frame(part);
  frame.is_forwarded = true;
  auto& forward =
      std::get<ShelfOutput::Forward>(out.emplace_back(std::in_place_type<ShelfOutput::Forward>));
  forward.header.kind = wire::Kind::kPush;
  forward.header.flags = is_without ? wire::kNoPayload : 0;
  forward.header.epoch = epoch;
  forward.header.key = tensor.key;
  forward.header.part = part.index;
  forward.header.round = frame.round;
  forward.header.offset_bytes = frame_index * part.frame_bytes;
  forward.header.priority = frame.priority;
  forward.header.lost = places_lost_without(part, frame_index, generations);
  forward.buffer = frame.finished;
  forward.payload_bytes = is_without ? 0 : part.payload_length(frame_index);
  if (part.timeline) part.timeline->on_frame_summed(frame.round);
}

}  // namespace

Shelf::Shelf(const ShelfSettings& settings, BufferPool& pool)
    : settings_(settings),
      alarms_(settings.wanted_ns),
      inventory_(settings_, pool, alarms_, settling_),
      summing_(inventory_, settings_.residuals) {}

void Shelf::end_epoch() {
  inventory_.clear();
  settling_.begin_epoch(0);  // nobody is told anything any more
  facts_ = {};
}

Status Shelf::begin_epoch(const ShelfEpoch& facts) {
  end_epoch();
  std::ostringstream wrong;
  if (facts.worker_count == 0 || facts.worker_count > kWorkersMax) {
    wrong << facts.worker_count << " workers; 1 to " << kWorkersMax << " can be served";
  } else if (facts.placement->frame_bytes() > kPayloadBytesMax) {
    wrong << "frames of " << facts.placement->frame_bytes() << " bytes; they must have at most "
          << kPayloadBytesMax;
  } else if (facts.placement->partition_bytes() / facts.placement->frame_bytes() >=
             kFramesPerPartMax) {
    wrong << "parts of " << facts.placement->partition_bytes() << " bytes; they must be below "
          << kFramesPerPartMax << " frames of " << facts.placement->frame_bytes() << " bytes";
  } else {
    facts_ = facts;
    if (!facts_.groups) {
      facts_.groups = std::make_shared<const Groups>(Groups::apart(facts.worker_count));
    }
    CHECK_EQ(facts_.groups->worker_count(), facts.worker_count);
    asking_.begin_epoch(facts.worker_count);
    strangers_.assign(bit_words_of(facts.worker_count), 0);
    const Groups& groups = *facts_.groups;
    const std::size_t contributors =
        facts_.relay ? groups.crew_of(groups.group_of(*facts_.relay), Members()).size()
                     : groups.count();
    alarms_.lateness().begin_epoch(contributors * facts_.placement->frame_bytes());
    generations_.begin_epoch(facts.worker_count);
    inheritance_.begin_epoch(facts.worker_count);
    settling_.begin_epoch(facts.recovers ? facts.worker_count : 0, facts.relay.has_value());
    for (const WorkerRank worker : facts.lost) {
      generations_.lose(worker);
      settling_.note_left(worker);
    }
    return Status::ok();
  }
  return {Code::kInvalidArgument, "the roster cannot be served: " + wrong.str()};
}

void Shelf::connect(WorkerRank worker, ShelfOutputs& out) {
  CHECK_LT(worker.value, facts_.worker_count);
  if (facts_.takes_over) inheritance_.connect(worker, out);
  settling_.connect(worker);
  clear_bit(strangers_, worker);
  for (const auto& [key, tensor] : inventory_.tensors()) {
    clear_bit(tensor->declared_here, worker);
    if (tensor->spoiled.code != Code::kOk) {
      out.emplace_back(ShelfOutput::Spoiled{worker, key, tensor->spoiled.code, tensor->spoiled.text,
                                            tensor->spoiled.cause});
    }
  }
}

void Shelf::leave(WorkerRank worker, ShelfOutputs& out) {
  if (worker.value >= facts_.worker_count) return;
  if (facts_.takes_over) inheritance_.leave(worker, out);
  give_up_gone(inheritance_, inventory_, out);
  settling_.note_left(worker);
  append_answers_of_others(facts_.epoch, inventory_, generations_, settling_, out);
  say_what_crew_has(settling_, out);
}

void Shelf::lose(WorkerRank worker, ShelfOutputs& out, const std::vector<WorkerRank>& moved) {
  for (const WorkerRank each : moved) {
    for (const auto& [key, tensor] : inventory_.tensors()) {
      clear_bit(tensor->forgotten, each);
      note_unsaid(*tensor, each);
    }
    if (facts_.takes_over) inheritance_.lose(each, out);
  }
  if (worker.value >= facts_.worker_count || generations_.is_lost(worker)) return;
  const bool is_in_crew = !facts_.relay && facts_.groups->most_ranks() > 1;
  if (facts_.takes_over && !is_in_crew) inheritance_.lose(worker, out);
  settling_.note_left(worker);
  const bool is_last = generations_.lose(worker) && !facts_.relay;
  if (is_in_crew && is_machine_lost(*facts_.groups, generations_, worker)) {
    const Groups& groups = *facts_.groups;
    for (const WorkerRank each : groups.crew_of(groups.group_of(worker), Members())) {
      if (facts_.takes_over) inheritance_.lose(each, out);
    }
  }
  inventory_.note_lost(worker);
  if (!PLANTED(vacancy_awaited)) await_no_more(worker, is_last, out);
  give_up_gone(inheritance_, inventory_, out);
  append_answers_of_others(facts_.epoch, inventory_, generations_, settling_, out);
  say_what_crew_has(settling_, out);
}

void Shelf::settled_above(Key key, PartIndex part_index, std::uint64_t offset_bytes, Round round) {
  PartSum* const part = inventory_.find(key, part_index);
  if (part == nullptr) return;
  FrameSum& frame = part->frames[offset_bytes / part->frame_bytes];
  if (later_by(frame.round, round) == 1) settling_.settled_above(frame);
}

void Shelf::step(WorkerRank from, const wire::Header& header, std::span<const std::byte> payload,
                 TimeNs now, ShelfOutputs& out) {
  CHECK_LT(from.value, facts_.worker_count);
  try {
    dispatch(from, header, payload, now, out);
    give_up_gone(inheritance_, inventory_, out);
    append_answers_of_others(facts_.epoch, inventory_, generations_, settling_, out);
    say_what_crew_has(settling_, out);
  } catch (const std::bad_alloc&) {
    out_of_memory(header.key, out);
  }
}

void Shelf::dispatch(WorkerRank from, const wire::Header& header,
                     std::span<const std::byte> payload, TimeNs now, ShelfOutputs& out) {
  if (header.worker != from) return violation(from, "a message in the name of another rank", out);
  if (facts_.relay && facts_.groups->group_of(from) != facts_.groups->group_of(*facts_.relay)) {
    return violation(from, "a message to the relay of another machine", out);
  }
  const std::int32_t ahead = later_by(header.epoch, facts_.epoch);
  if (ahead > 0) return violation(from, "a message of an epoch that has not begun", out);
  if (ahead < 0) return;  // late, of a job that is over
  const bool has_relays = !facts_.relay && facts_.groups->most_ranks() > 1;  // who comes is one
  const auto is_acked = [&] {  // false: that breaks the protocol
    const char* const flaw = settling_.ack(from, header.count);
    if (flaw != nullptr) violation(from, flaw, out);
    return flaw == nullptr;
  };
  switch (header.kind) {
    case wire::Kind::kPush:
      if (!is_acked()) return;
      return push(from, header, payload, now, out);
    case wire::Kind::kDeclare:
      return declare(from, header, payload, out);
    case wire::Kind::kForget:
      return forget(from, header.key, out);
    case wire::Kind::kInputs:
      return inputs(from, header, out);
    case wire::Kind::kHave:
      if (!facts_.recovers) break;
      return have(from, header, payload, out);
    case wire::Kind::kAck:
      if (!facts_.recovers) break;
      is_acked();
      return;
    case wire::Kind::kMismatch:
      if (!has_relays && !facts_.takes_over) break;
      // The workers of a machine do not agree about a tensor. Perhaps none of them leads a part of it that belongs
      // here, or can: then it is known from this on by its key alone.
      if (Result<wire::Text> text = wire::decode_text(payload); text.is_ok()) {
        if (inventory_.find(header.key) == nullptr) make_tensor(from, from, header.key, {}, out);
        give_up(header.key, error_of(text.value(), Code::kMismatch), out);
      } else {
        violation(from, "a mismatch: " + text.status().message(), out);
      }
      return;
    case wire::Kind::kMissing:
      if (!has_relays) break;
      if (Status fine = asking_.heed(from, header, payload, *facts_.groups); !fine.is_ok()) {
        violation(from, "a word on who is missing: " + fine.message(), out);
      }
      return;
    default:
      break;
  }
  violation(from, "a message of a kind that workers do not send here", out);
}

void Shelf::out_of_memory(Key key, ShelfOutputs& out) {
  TensorSum* const tensor = inventory_.find(key);
  const std::size_t used = inventory_.used_bytes();
  if (tensor != nullptr) {  // first, or there may be no memory for words
    inventory_.drop_parts(*tensor);
    inventory_.trim();
  }
  const std::string text = inventory_.out_of_memory_text(used);
  if (tensor == nullptr) {
    out.emplace_back(ShelfOutput::Failure{{Code::kSystem, text, {.kind = CauseKind::kNoMemory}}});
    return;
  }
  tensor->spoiled.cause = {.kind = CauseKind::kNoMemory, .who = settings_.words.who};
  spoil(inventory_, *tensor, Code::kSystem,
        "tensor " + quoted_name(tensor->declared.name) + " " + described(tensor->declared) + ": " +
            text + ". " + settings_.words.remedy,
        out);
}

std::string ShelfOutput::Absence::text() const {
  std::ostringstream out;
  out << "tensor " << quoted_name(name) << ", elements " << first_element << " to "
      << first_element + element_count << ": without " << worker << " since " << since;
  return out.str();
}

// ---- tensors

void Shelf::declare(WorkerRank from, const wire::Header& header, std::span<const std::byte> payload,
                    ShelfOutputs& out) {
  Result<wire::Declare> decoded = wire::decode_declare(payload);
  if (!decoded.is_ok()) return violation(from, "a declaration: " + decoded.status().message(), out);
  wire::Declare& declared = decoded.value();
  const std::string flaw =
      flaw_of(declared, header.key, from, facts_.worker_count, *facts_.placement);
  if (!flaw.empty()) {
    return violation(from, "a declaration of " + quoted_name(declared.name) + ": " + flaw, out);
  }
  const std::optional<WorkerRank> who = declarer(facts_, from, header.part);
  if (!who) return violation(from, "a declaration for a worker of another machine", out);

  TensorSum* const known = inventory_.find(header.key);
  if (known == nullptr) return make_tensor(from, *who, header.key, std::move(declared), out);
  TensorSum& tensor = *known;
  set_bit(tensor.declared_here, from);
  set_bit(tensor.declared.members.has(from) ? tensor.declared_ever : strangers_, from);
  if (tensor.spoiled.code != Code::kOk) {
    if (PLANTED(mismatch_untold)) return;
    out.emplace_back(ShelfOutput::Spoiled{from, tensor.key, tensor.spoiled.code,
                                          tensor.spoiled.text, tensor.spoiled.cause});
  } else if (tensor.declared != declared) {
    spoil(inventory_, tensor, Code::kMismatch,
          difference_text(tensor.declared_by, tensor.declared, *who, declared), out);
  } else if (has_bit(tensor.forgotten, from) && !facts_.takes_over) {
    std::ostringstream text;
    text << "tensor " << quoted_name(declared.name) << ": " << from
         << " uses again a name that it said it would use once, and others still use it";
    spoil(inventory_, tensor, Code::kInvalidArgument, text.str(), out);
  }
}

void Shelf::make_tensor(WorkerRank from, WorkerRank who, Key key, wire::Declare declared,
                        ShelfOutputs& out) {
  if (std::string flaw = inventory_.flaw_of_another(declared, facts_); !flaw.empty()) {
    out.emplace_back(ShelfOutput::Failure{{Code::kSystem, std::move(flaw)}});
    return;
  }
  TensorSum& tensor = inventory_.make(key, who, std::move(declared), facts_);
  tensor.gone.is_root = tensor.is_broadcast && generations_.is_lost(tensor.declared.root);
  set_bit(tensor.declared_here, from);
  set_bit(tensor.declared_ever, from);
}

void Shelf::give_up(Key key, const Status& why, ShelfOutputs& out) {
  TensorSum* const tensor = inventory_.find(key);
  if (tensor != nullptr && tensor->spoiled.code == Code::kOk) {
    tensor->spoiled.cause = why.cause();
    spoil(inventory_, *tensor, why.code(), why.message(), out);
  }
}

void Shelf::forget(WorkerRank from, Key key, ShelfOutputs& out) {
  TensorSum* const tensor = inventory_.find(key);
  if (tensor == nullptr) {  // all have forgotten it: a repeat
    if (facts_.recovers) out.emplace_back(ShelfOutput::ForgottenByAll{from, key});
    return;
  }
  if (!tensor->declared.members.has(from)) return;
  set_bit(tensor->forgotten, from);
  for (const auto& [index, part] : tensor->parts) {  // its operations have ended
    for (FrameSum& frame : part->frames) settling_.note_has(frame, from);
  }
  drop_if_forgotten(*tensor, out);
}

// What this relay asks its crew for on behalf of other machines is waited for.
void Shelf::drop_if_forgotten(TensorSum& tensor, ShelfOutputs& out) {
  if (!is_forgotten(tensor, generations_, inheritance_, facts_.recovers)) return;
  if (!facts_.relay || !Inheritance::is_fetching(tensor)) drop(tensor, out);
}

// At a relay other machines may lack its last sums, where a worker may be lost: then it waits for the servers' word.
void Shelf::drop(TensorSum& tensor, ShelfOutputs& out) {
  if (facts_.relay) {
    if (tensor.gone.is_name) return;
    tensor.gone.is_name = true;
    out.emplace_back(ShelfOutput::Forgotten{tensor.key, tensor.declared});
    if (facts_.recovers) return;
  } else if (facts_.recovers) {
    out.emplace_back(ShelfOutput::ForgottenByAll{std::nullopt, tensor.key});
  }
  inventory_.drop(tensor);
}

void Shelf::forgotten_above(Key key) {
  TensorSum* const tensor = inventory_.find(key);
  if (tensor != nullptr && tensor->gone.is_name) inventory_.drop(*tensor);
}

// ---- the end of inputs

void Shelf::inputs(WorkerRank from, const wire::Header& header, ShelfOutputs& out) {
  const std::uint32_t generation = header.round.value;
  const bool no_more = (header.flags & wire::kNoMore) != 0;
  if (facts_.takes_over && generations_.may_take_up(generation)) {
    // Who is in a later one has heard from the shard that was here before that nobody has more.
    if (header.tag == 0 || header.tag > facts_.worker_count) {
      return violation(from, "inputs whose last worker is none of the job", out);
    }
    const WorkerRank last(PLANTED(last_forgotten) ? from.value
                                                  : static_cast<std::uint32_t>(header.tag) - 1);
    restart_tensors(generations_.begin(generation, last), out);
    out.emplace_back(ShelfOutput::InputsDone{std::nullopt, generation, last});
  }
  const std::optional<std::int32_t> ahead = generations_.hear(from, generation, no_more);
  if (!ahead) {
    std::ostringstream text;
    text << "inputs of generation " << generation << ", while generation " << generations_.number()
         << " is summed";
    return violation(from, text.str(), out);
  }
  if ((header.flags & wire::kEnding) != 0) inheritance_.note_ending(from);
  if (!no_more) return;
  if (facts_.takes_over) inheritance_.note_ending(from);
  const auto say = [&](std::optional<WorkerRank> to, WorkerRank last) {
    out.emplace_back(ShelfOutput::InputsDone{to, generations_.number(), last});
  };
  if (*ahead > 0) begin_by_word_of(generation, from, out);
  if (*ahead < 0) return say(from, generations_.last());  // it has not heard that all are done
  if (generations_.has_no_more(from)) return say(from, from);
  // Nobody here may end an operation without it before the servers can.
  if (facts_.relay == from) out.emplace_back(ShelfOutput::InputsEnd{header.offset_bytes});
  if (facts_.relay == from && !PLANTED(inputs_end_before_heard)) return;
  if (facts_.takes_over) generations_.note_rounds(from, header.offset_bytes);
  end_inputs_of(from, out);
}

void Shelf::end_inputs_of(WorkerRank from, ShelfOutputs& out) {
  const bool is_last = generations_.finish(from) && !facts_.relay;
  if (!is_last) out.emplace_back(ShelfOutput::InputsDone{from, generations_.number(), from});
  await_no_more(from, is_last, out);
}

// Nothing more comes from this worker in the generation of now, which is over then, or what waited for it alone is
// finished.
void Shelf::await_no_more(WorkerRank worker, bool is_last, ShelfOutputs& out) {
  if (is_last) {
    restart_tensors(generations_.begin(generations_.number() + 1, generations_.last_of_all()), out);
    out.emplace_back(
        ShelfOutput::InputsDone{std::nullopt, generations_.number(), generations_.last()});
    return;
  }
  for (auto at = inventory_.tensors().begin(); at != inventory_.tensors().end();) {
    TensorSum& tensor = *(at++)->second;
    if (tensor.declared.members.has(worker) || facts_.groups->most_ranks() > 1) {
      finish_without(tensor, out);
    }
  }
}

void Shelf::inputs_are_heard(std::uint32_t generation, ShelfOutputs& out) {
  if (generation != generations_.number() || generations_.has_no_more(*facts_.relay)) return;
  end_inputs_of(*facts_.relay, out);
}

void Shelf::begin_inputs(std::uint32_t generation, WorkerRank last, ShelfOutputs& out) {
  if (later_by(Round(generation), Round(generations_.number())) > 0) {
    restart_tensors(generations_.begin(generation, last), out);
  }
  out.emplace_back(ShelfOutput::InputsDone{*facts_.relay, generation, last});
  say_what_crew_has(settling_, out);
}

// One contributor less is awaited: what waited for it alone is finished.
void Shelf::finish_without(TensorSum& tensor, ShelfOutputs& out) {
  if (facts_.relay && generations_.lost_count() > 0) {
    if (generations_.are_all_done(*tensor.contributors)) {
      out.emplace_back(ShelfOutput::CrewGone{tensor.key});
    } else if (facts_.takes_over) {
      inheritance_.tell_of_had(tensor, out);
    }
  }
  if (generations_.are_all_lost(*tensor.contributors)) return drop(tensor, out);
  for (const auto& [index, part] : tensor.parts) {
    for (std::uint32_t frame = 0; frame < part->frames.size(); ++frame) {
      if (!part->frames[frame].is_begun() || !is_complete(*part, frame, generations_)) continue;
      try {
        finish(*part, frame, out);
      } catch (const std::bad_alloc&) {
        out_of_memory(tensor.key, out);
      }
      if (tensor.spoiled.code != Code::kOk) return;
    }
  }
  drop_if_forgotten(tensor, out);
}

namespace {

// That all frames have come to at least.
Round next_round_of(const TensorSum& tensor, Round first) {
  Round next = first;
  bool any = false;
  for (const auto& [index, part] : tensor.parts) {
    for (const FrameSum& frame : part->frames) {
      if (!any || later_by(frame.round, next) < 0) next = frame.round;
      any = true;
    }
  }
  return next;
}

}  // namespace

// The next generation, because one worker says that nobody has more in this one. Who has contributed here to what is
// incomplete, and has not said so itself, may wait for it still: on a new connection it pushes that again, which shows
// that the word was untrue. If its operation has ended, there is nothing to push again. Nor does a tensor that is
// dropped now, since somebody has forgotten it, count as declared by those who are to push it yet.
void Shelf::begin_by_word_of(std::uint32_t generation, WorkerRank by, ShelfOutputs& out) {
  if (facts_.keeps_links) {  // what they have said of it is on its way
    return restart_tensors(generations_.begin_by_word_of(generation, by), out);
  }
  std::vector<std::uint64_t> to_renew(bit_words_of(facts_.worker_count), 0);
  const auto renew_all_of = [&](std::span<const std::uint64_t> bits) {
    for (std::size_t word = 0; word < bits.size(); ++word) to_renew[word] |= bits[word];
  };
  for (const auto& [key, tensor] : inventory_.tensors()) {
    if (has_any_bit(tensor->forgotten)) renew_all_of(tensor->declared_here);
    for (const auto& [index, part] : tensor->parts) {
      for (std::size_t frame = 0; frame < part->frames.size(); ++frame) {
        if (part->frames[frame].contributed == 0) continue;
        renew_all_of(part->bits_of(frame));
      }
    }
  }
  const Groups& groups = *facts_.groups;
  for (WorkerRank worker(0); worker.value < facts_.worker_count; ++worker.value) {
    if (worker == by || !has_bit(to_renew, worker)) continue;
    const Crew crew = groups.crew_of(groups.group_of(worker), Members());
    const bool has_more = std::any_of(
        crew.begin(), crew.end(), [&](WorkerRank each) { return !generations_.has_no_more(each); });
    if (!has_more) continue;
    std::ostringstream text;
    text << by << " says that nobody has more inputs in generation " << generations_.number()
         << "; say again what you wait for";
    out.emplace_back(ShelfOutput::Renew{worker, text.str()});
  }
  restart_tensors(generations_.begin_by_word_of(generation, by), out);
}

// A generation of inputs begins: all operations have ended everywhere. What somebody has forgotten is not used again;
// but of what could not be summed not all may have heard.
void Shelf::restart_tensors(Round former_first, ShelfOutputs& out) {
  inheritance_.begin_generation();
  for (auto at = inventory_.tensors().begin(); at != inventory_.tensors().end();) {
    TensorSum& tensor = *(at++)->second;
    tensor.next_round = next_round_of(tensor, former_first);
    tensor.lacks.clear();
    inventory_.drop_parts(tensor);
    const bool is_kept = facts_.recovers && tensor.spoiled.code != Code::kOk;
    if (has_any_bit(tensor.forgotten) && !is_kept) drop(tensor, out);
  }
}

// ---- of a shard that took another one's place

void Shelf::disconnect(WorkerRank worker, ShelfOutputs& out) {
  if (facts_.takes_over) inheritance_.disconnect(worker, out);
  give_up_gone(inheritance_, inventory_, out);
}

// What sums it has of a part; or that it has said so of all. Where those of an earlier generation of inputs are meant,
// nobody lacks them.
void Shelf::have(WorkerRank from, const wire::Header& header, std::span<const std::byte> payload,
                 ShelfOutputs& out) {
  if ((header.flags & wire::kAll) != 0) {
    if (!facts_.takes_over) return;
    inheritance_.note_all_is_told(from, out);
    for (auto at = inventory_.tensors().begin(); at != inventory_.tensors().end();) {
      TensorSum& tensor = *(at++)->second;
      drop_if_forgotten(tensor, out);
    }
    return;
  }
  PartSum* const known = inventory_.find(header.key, header.part);
  const bool is_of_ended_inputs = later_by(header.round, generations_.first_round()) < 0;
  // Nothing of it is summed here any more, for nobody lacks it.
  if (is_of_ended_inputs || (known == nullptr && !facts_.takes_over)) {
    out.emplace_back(ShelfOutput::Ask{.kind = wire::Kind::kSettled,
                                      .worker = from,
                                      .key = header.key,
                                      .part = header.part,
                                      .round = header.round,
                                      .offset_bytes = wire::kWholePart});
    return;
  }
  PartSum* const part =
      known != nullptr ? known : open_part(facts_, inventory_, generations_, from, header, out);
  if (part == nullptr) return;
  const char* const flaw = inheritance_.have(*part, from, header, payload, out);
  if (flaw != nullptr) violation(from, std::string("a word about sums that it has: ") + flaw, out);
}

// ---- frames

// A gift, and what a stranger pushes, may be late: for a name that is given up meanwhile.
void Shelf::push(WorkerRank from, const wire::Header& header, std::span<const std::byte> payload,
                 TimeNs now, ShelfOutputs& out) {
  if (generations_.begins(from, header.round)) {
    begin_by_word_of(generations_.heard_of(from), from, out);
  }
  const bool is_gift = facts_.takes_over && (header.flags & wire::kSum) != 0;
  if ((is_gift || has_bit(strangers_, from)) && inventory_.find(header.key) == nullptr) return;
  PartSum* const known = inventory_.find(header.key, header.part);
  PartSum* const part =
      known != nullptr ? known : open_part(facts_, inventory_, generations_, from, header, out);
  if (part == nullptr) return;
  if (!is_gift && is_of_the_gone(*part, from, generations_)) return;
  const char* flaw = flaw_of_push(*part, from, header, payload.size(), facts_, generations_);
  if (flaw == nullptr) flaw = flaw_of_codes(*part, header, payload);
  if (flaw != nullptr) {
    std::ostringstream text;
    text << "a push of tensor " << quoted_name(part->tensor->declared.name) << ", " << header.part
         << ", offset " << header.offset_bytes << ", " << payload.size() << " bytes: " << flaw;
    return violation(from, text.str(), out);
  }

  const auto frame_index = static_cast<std::uint32_t>(header.offset_bytes / part->frame_bytes);
  if ((header.flags & wire::kSum) != 0) {
    inheritance_.take_sum(*part, frame_index, header, payload, out);
    if (facts_.relay) drop_if_forgotten(*part->tensor, out);
    return;
  }
  const bool is_of_ended_inputs = later_by(header.round, generations_.first_round()) < 0;
  if (part->frames[frame_index].takeover && !is_of_ended_inputs &&
      !inheritance_.admits(*part, frame_index, from, header, out)) {
    return;
  }
  note_said(*part, frame_index, header);
  const std::int32_t ahead = later_by(header.round, part->frames[frame_index].round);
  const bool has_gone =  // the sum of the round before, which this worker has: I11, I3
      facts_.keeps_links || settling_.is_settled(part->frames[frame_index]);
  if (ahead == 0) {
    if (auto untrue = generations_.contradict(from)) {
      violation(untrue->by, std::move(untrue->text), out);
    }
    part->tags[from.value] = header.tag;
    part->frames[frame_index].priority = header.priority;
    contribute(*part, frame_index, header, payload, now, out);
  } else if (ahead > 0 || (ahead == -1 && has_gone)) {
    std::ostringstream text;
    text << "a push of tensor " << quoted_name(part->tensor->declared.name) << ", " << header.part
         << ", " << header.round << ", while " << part->frames[frame_index].round
         << " is being summed";
    violation(from, text.str(), out);
  } else if (ahead == -1) {
    if (!Settling::may_answer(*part, frame_index, from)) return;  // it will be
    if (PLANTED(mean_divided_twice) && part->tensor->kernels.in_place()) {
      const std::span sum = part->frames[frame_index].finished.span().first(payload.size());
      part->tensor->kernels.finish(sum, sum, part->tensor->finishing);
    }
    append_answer(facts_.epoch, *part, frame_index, from, header.tag, settling_, out);
  } else {  // earlier still: all have that sum
    look_for_contradiction(generations_, inventory_, from, header, out);
  }
}

void Shelf::tick(TimeNs now, ShelfOutputs& out) {
  asking_.tick(now, out);
  settling_.tick(now, out);
  say_what_crew_has(settling_, out);
}

void Shelf::expect(Key key, PartIndex part_index, int distance) const {
  if (distance == kFarthest) return inventory_.prefetch(key, part_index);
  const PartSum* const found = inventory_.find(key, part_index);
  if (found == nullptr) return;
  const PartSum& part = *found;
  if (distance == kFarthest - 1) {
    const auto* const record = reinterpret_cast<const std::byte*>(&part);
    for (std::size_t at = 0; at < sizeof(PartSum); at += 64) __builtin_prefetch(record + at);
  } else if (distance == kFarthest - 2) {
    __builtin_prefetch(part.frames.data());
    __builtin_prefetch(part.bits.data());
    __builtin_prefetch(part.tags.data());
    __builtin_prefetch(part.tensor);
  } else {
    __builtin_prefetch(part.tensor->declared_here.data());
    part.frames.front().finished.prefetch();
    part.frames.front().accumulator.prefetch();
  }
}

void Shelf::contribute(PartSum& part, std::uint32_t frame_index, const wire::Header& header,
                       std::span<const std::byte> payload, TimeNs now, ShelfOutputs& out) {
  const WorkerRank from = header.worker;
  FrameSum& frame = part.frames[frame_index];
  const std::span bits = part.bits_of(frame_index);
  if (has_bit(bits, from) && !PLANTED(repeat_counted_twice)) return;  // a repeat
  const TimeNs begun_ns = part.timeline ? part.timeline->begin(frame.round, frame_index) : 0;

  alarms_.lateness().on_contribution(part.payload_length(frame_index), now);
  settling_.note_has(frame, from);  // I4
  if (!payload.empty()) summing_.add(part, frame_index, from, payload);
  if (part.timeline) part.timeline->on_added(from, frame_index, begun_ns);
  set_bit(bits, from);
  for (const WorkerRank each : lost_of_crew(*part.tensor->contributors, header)) {
    inventory_.note_lacking(part, frame_index, each);
  }
  if (frame.contributed++ == 0) {
    if (PLANTED(last_sum_forgotten)) frame.finished = {};
    frame.since_ns = now;
    inventory_.begin_frame(part);
  }
  const bool is_early = PLANTED(forwarded_before_all) && facts_.relay &&
                        frame.contributed + 1 == part.tensor->contributors->count();
  if (is_early || is_complete(part, frame_index, generations_)) {
    finish(part, frame_index, out);
  } else if (frame.contributed == 1) {
    alarms_.watch(part, frame);
  }
}

void Shelf::finish(PartSum& part, std::uint32_t frame_index, ShelfOutputs& out) {
  const TensorSum& tensor = *part.tensor;
  if (!facts_.relay && has_lost_root(part, frame_index, generations_)) {
    std::ostringstream text;
    text << "tensor " << quoted_name(tensor.declared.name) << ' ' << described(tensor.declared)
         << ": its root, " << tensor.declared.root
         << ", was lost, and its rank is vacant; leader() names one that is not";
    part.tensor->spoiled.cause = {
        .kind = CauseKind::kGone,
        .who = {.role = Role::kWorker, .rank = tensor.declared.root.value}};
    return spoil(inventory_, *part.tensor, Code::kDisconnected, text.str(), out);
  }
  if (generations_.no_more_count() > 0) {
    if (tensor.is_broadcast && generations_.has_no_more(tensor.declared.root) &&
        !generations_.is_lost(tensor.declared.root)) {
      std::ostringstream text;
      text << "tensor " << quoted_name(tensor.declared.name) << ' ' << described(tensor.declared)
           << ": " << tensor.declared.root << " has said that it has no more inputs";
      return spoil(inventory_, *part.tensor, Code::kMismatch, text.str(), out);
    }
    summing_.add_held(part, frame_index);
  }
  if (facts_.relay) {
    return forward(summing_, inventory_, generations_, facts_.epoch, part, frame_index, out);
  }
  const std::uint32_t absent = count_lost_without(part, frame_index, generations_);
  summing_.finish(part, frame_index, divisor_less_of(part, frame_index, absent));
  append_absences(part, frame_index, absent, facts_, generations_, out);
  inventory_.end_frame(part);
  end_round(part, frame_index, out);
}

// The next round of a frame begins: all are answered.
void Shelf::end_round(PartSum& part, std::uint32_t frame_index, ShelfOutputs& out) {
  FrameSum& frame = part.frames[frame_index];
  const TensorSum& tensor = *part.tensor;
  const std::span bits = part.bits_of(frame_index);
  std::fill(bits.begin(), bits.end(), 0);
  part.clear_lacking(frame_index);
  frame.contributed = 0;
  frame.takeover.reset();
  ++frame.round.value;
  settling_.begin(part, frame_index, generations_);
  settling_.wait_for_root(part, frame_index, generations_);
  // Each frame's answers begin with another worker, or the last one would be last with all of them.
  const std::uint64_t first = part.index.value + std::uint64_t{frame_index};
  const std::uint32_t count = tensor.contributors->count();
  for (std::uint32_t i = PLANTED(spread_to_one_less) && facts_.relay ? 1 : 0; i < count; ++i) {
    const auto place = static_cast<std::uint32_t>((first + i) % count);
    if (generations_.is_done(*tensor.contributors, place)) continue;
    const WorkerRank to = tensor.contributors->at(place, tensor.key, part.index);
    if (!Settling::may_answer(part, frame_index, to)) continue;
    if (part.is_unsaid(frame_index, to)) continue;
    append_answer(facts_.epoch, part, frame_index, to, part.tags[to.value], settling_, out);
  }
  if (facts_.keeps_links) frame.finished = {};  // I11
  if (!part.timeline) return;
  const Round round(frame.round.value - 1);
  if (facts_.relay) {
    part.timeline->on_frame_spread(round);
  } else {
    part.timeline->on_frame_summed(round);
  }
}

// ---- a relay's frames

void Shelf::answered(const wire::Header& header, std::span<const std::byte> payload,
                     ShelfOutputs& out) {
  PartSum* const part = inventory_.find(header.key, header.part);
  if (header.epoch != facts_.epoch) return;
  const auto ignore = [&] {
    if (!facts_.recovers) return;
    // What the relay before this one has pushed, and its crew have not pushed here yet, they do not have.
    const TensorSum* const tensor = inventory_.find(header.key);
    const bool may_be_pushed = tensor == nullptr || tensor->spoiled.code == Code::kOk;
    if (facts_.takes_over && may_be_pushed && !is_past(part, header)) return;
    out.emplace_back(ShelfOutput::CrewHas{.key = header.key,
                                          .part = header.part,
                                          .round = header.round,
                                          .offset_bytes = header.offset_bytes});
  };
  if (part == nullptr) return ignore();
  const std::uint64_t frame_index = header.offset_bytes / part->frame_bytes;
  if (frame_index >= part->frames.size()) return;
  FrameSum& frame = part->frames[frame_index];
  if (!frame.is_forwarded || frame.round != header.round) return ignore();
  if (part->timeline) part->timeline->on_frame_returned(frame.round);
  try {
    if (!payload.empty()) {
      frame.finished = {};  // or there might be no room for the answer
      frame.finished = inventory_.take(payload.size());
      std::memcpy(frame.finished.span().data(), payload.data(), payload.size());
    } else if (part->tensor->declared.root_only) {
      frame.finished = {};  // what goes to the root is the sum of all, or nothing
    }
    frame.is_forwarded = false;
    end_round(*part, static_cast<std::uint32_t>(frame_index), out);
    say_what_crew_has(settling_, out);
  } catch (const std::bad_alloc&) {
    out_of_memory(header.key, out);
  }
}

void Shelf::want(Key key, PartIndex part, Round round, std::uint64_t end_bytes, ShelfOutputs& out) {
  if (inventory_.find(key) != nullptr) return asking_.want(key, part, round, end_bytes, out);
  // Nobody has begun it here: whoever it is for will know.
  const Groups& groups = *facts_.groups;
  for (const WorkerRank each : groups.crew_of(groups.group_of(*facts_.relay), Members())) {
    out.emplace_back(ShelfOutput::Wanted{each, key, part, round, end_bytes});
  }
}

}  // namespace byteps
