#include "server/shelf.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <sstream>
#include <utility>

#include "base/check.h"
#include "base/planted.h"
#include "server/declaration.h"
#include "server/part_timeline.h"

namespace byteps {
namespace {

// A bit per worker.
bool has_bit(std::span<const std::uint64_t> bits, WorkerRank worker) {
  return (bits[worker.value / 64] >> (worker.value % 64) & 1) != 0;
}
void set_bit(std::span<std::uint64_t> bits, WorkerRank worker) {
  bits[worker.value / 64] |= std::uint64_t{1} << (worker.value % 64);
}
void clear_bit(std::span<std::uint64_t> bits, WorkerRank worker) {
  bits[worker.value / 64] &= ~(std::uint64_t{1} << (worker.value % 64));
}

}  // namespace

struct Shelf::Frame {
  BufferRef accumulator;          // of `round`, in the kernels' accumulator layout
  BufferRef finished;             // the sum of the round before
  TimeNs since_ns = 0;            // when the first contribution of `round` came
  Round round;                    // being summed
  std::uint32_t contributed = 0;  // number of bits set
};

struct Shelf::Part {
  Tensor* tensor = nullptr;
  PartIndex index;
  std::uint64_t offset = 0;  // in the tensor
  std::uint64_t bytes = 0;
  std::uint64_t frame_bytes = 0;  // of all frames but the last
  std::size_t record_bytes = 0;   // of this record
  std::vector<Frame> frames;
  std::vector<std::uint64_t> bits;   // bit_words_ per frame
  std::vector<LandingTag> landings;  // by worker: of its operation in the round being summed
  std::size_t incomplete_count = 0;  // frames with a bit set

  // Deterministic sums of floats only.
  std::vector<std::uint32_t> added;  // by frame: so many members, by rank, are in the accumulator
  std::vector<BufferRef> held;       // by frame and member: came before its turn

  std::uint64_t alarm_number = 0;  // the one alarm that counts
  TimeNs alarm_due_ns = kNever;    // kNever: none is set
  bool is_young = false;           // its alarm is in the list of young ones, between these
  Part* elder = nullptr;
  Part* younger = nullptr;
  std::uint32_t wanted_count = 0;  // how often contributions were asked for ...
  Round wanted_round;              // ... in this round

  std::unique_ptr<PartTimeline> timeline;  // null: none is recorded
};

struct Shelf::Tensor {
  // First what each push looks at.
  Key key;
  std::vector<std::uint64_t> declared_here;  // a bit per worker: on its present connection
  std::uint32_t member_count = 0;
  std::uint32_t awaited_count = 0;  // of them those that may have inputs
  Finishing finishing;
  bool is_broadcast = false;
  bool in_order = false;  // I8
  SumKernels kernels;
  wire::Declare declared;
  std::size_t declared_bytes = 0;  // of this record
  WorkerRank declared_by;          // who declared it first
  std::uint64_t part_count = 0;
  Round next_round;  // of its frames at least, when the last generation of inputs ended here
  Code spoiled = Code::kOk;
  std::string spoiled_text;
  std::vector<std::uint64_t> forgotten;     // a bit per worker
  std::vector<std::uint32_t> missing_told;  // whom its parts missed, as said last ...
  TimeNs missing_told_ns = 0;               // ... and when
  std::map<PartIndex, std::unique_ptr<Part>> parts;
};

void ShelfOutput::clear() {
  answers.clear();
  wanted.clear();
  missing.clear();
  spoiled.clear();
  inputs_done.clear();
  violations.clear();
  failures.clear();
}

Shelf::Shelf(const ShelfSettings& settings, BufferPool& pool) : settings_(settings), pool_(pool) {}
Shelf::~Shelf() = default;

// Frames of the next epoch may have another size, so buffers that lie idle would do so for ever.
void Shelf::end_epoch() {
  parts_.clear();
  tensors_.clear();
  record_bytes_ = 0;
  declared_bytes_ = 0;
  alarms_.clear();
  young_first_ = young_last_ = nullptr;
  incomplete_frame_count_ = 0;
  facts_ = {};
  pool_.trim();
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
    bit_words_ = (facts.worker_count + 63) / 64;
    missing_.assign(bit_words_, 0);
    no_more_.assign(bit_words_, 0);
    no_more_count_ = 0;
    generation_ = 0;
    announced_by_.reset();
    begun_by_.reset();
    heard_in_.assign(facts.worker_count, 0);
    return Status::ok();
  }
  return {Code::kInvalidArgument, "the roster cannot be served: " + wrong.str()};
}

void Shelf::connect(WorkerRank worker, ShelfOutput& out) {
  CHECK_LT(worker.value, facts_.worker_count);
  for (auto& [key, tensor] : tensors_) {
    clear_bit(tensor->declared_here, worker);
    if (tensor->spoiled != Code::kOk) {
      out.spoiled.push_back({worker, key, tensor->spoiled, tensor->spoiled_text});
    }
  }
}

void Shelf::step(WorkerRank from, const wire::Header& header, std::span<const std::byte> payload,
                 TimeNs now, ShelfOutput& out) {
  CHECK_LT(from.value, facts_.worker_count);
  try {
    dispatch(from, header, payload, now, out);
  } catch (const std::bad_alloc&) {
    out_of_memory(header.key, out);
  }
}

void Shelf::dispatch(WorkerRank from, const wire::Header& header,
                     std::span<const std::byte> payload, TimeNs now, ShelfOutput& out) {
  if (header.worker != from) return violation(from, "a message in the name of another rank", out);
  const std::int32_t ahead = later_by(header.epoch, facts_.epoch);
  if (ahead > 0) return violation(from, "a message of an epoch that has not begun", out);
  if (ahead < 0) return;  // late, of a job that is over
  switch (header.kind) {
    case wire::Kind::kPush:
      return push(from, header, payload, now, out);
    case wire::Kind::kDeclare:
      return declare(from, header, payload, out);
    case wire::Kind::kForget:
      return forget(from, header.key);
    case wire::Kind::kInputs:
      return inputs(from, header, out);
    default:
      return violation(from, "a message of a kind that workers do not send to shards", out);
  }
}

void Shelf::violation(WorkerRank from, std::string text, ShelfOutput& out) const {
  out.violations.push_back({from, std::move(text)});
}

void Shelf::out_of_memory(Key key, ShelfOutput& out) {
  const auto found = tensors_.find(key);
  const std::size_t used = used_bytes();
  if (found != tensors_.end()) {  // first, or there may be no memory for words
    drop_parts(*found->second);
    pool_.trim();
  }
  std::ostringstream text;
  text << "no memory for " << refused_bytes_ << " more bytes beside " << used << " in use";
  if (settings_.memory_bytes_max - std::min(settings_.memory_bytes_max, used) < refused_bytes_) {
    text << " (BYTEPS_SERVER_MEMORY_MB allows each of its shards " << settings_.memory_bytes_max
         << " bytes)";
  }
  if (found == tensors_.end()) {
    out.failures.emplace_back(Code::kSystem, text.str());
    return;
  }
  const std::string name = quoted_name(found->second->declared.name);
  spoil(*found->second, Code::kSystem,
        "tensor " + name + " " + described(found->second->declared) + ": " + text.str() +
            ". Use more servers, or servers with more memory",
        out);
}

// ---- tensors

void Shelf::declare(WorkerRank from, const wire::Header& header, std::span<const std::byte> payload,
                    ShelfOutput& out) {
  Result<wire::Declare> decoded = wire::decode_declare(payload);
  if (!decoded.is_ok()) return violation(from, "a declaration: " + decoded.status().message(), out);
  wire::Declare& declared = decoded.value();
  const std::string flaw =
      flaw_of(declared, header.key, from, facts_.worker_count, *facts_.placement);
  if (!flaw.empty()) {
    return violation(from, "a declaration of " + quoted_name(declared.name) + ": " + flaw, out);
  }

  const auto found = tensors_.find(header.key);
  if (found == tensors_.end()) {
    const std::size_t bytes_max =
        std::min(settings_.declared_bytes_max, settings_.memory_bytes_max / 4);
    if (tensors_.size() >= settings_.tensor_count_max ||
        declared_bytes_ + declared_bytes_of(declared) > bytes_max) {
      std::ostringstream text;
      text << "a server has " << tensors_.size() << " tensors already, of which it knows "
           << declared_bytes_ << " bytes without their elements, and cannot take "
           << quoted_name(declared.name) << ". Use the same names in each step";
      out.failures.emplace_back(Code::kSystem, text.str());
      return;
    }
    make_tensor(from, header.key, std::move(declared));
    return;
  }

  Tensor& tensor = *found->second;
  set_bit(tensor.declared_here, from);
  if (tensor.spoiled != Code::kOk) {
    if (PLANTED(mismatch_untold)) return;
    out.spoiled.push_back({from, tensor.key, tensor.spoiled, tensor.spoiled_text});
  } else if (tensor.declared != declared) {
    spoil(tensor, Code::kMismatch,
          difference_text(tensor.declared_by, tensor.declared, from, declared), out);
  } else if (has_bit(tensor.forgotten, from)) {
    std::ostringstream text;
    text << "tensor " << quoted_name(declared.name) << ": " << from
         << " uses again a name that it said it would use once, and others still use it";
    spoil(tensor, Code::kInvalidArgument, text.str(), out);
  }
}

Shelf::Tensor& Shelf::make_tensor(WorkerRank from, Key key, wire::Declare declared) {
  auto tensor = std::make_unique<Tensor>();
  tensor->key = key;
  tensor->declared_by = from;
  tensor->part_count = facts_.placement->part_count(declared.total_bytes);
  tensor->kernels = kernels_for(declared.dtype, declared.operation, settings_.kernels);
  tensor->is_broadcast = declared.operation == Operation::kBroadcast;
  tensor->member_count = declared.members.count(facts_.worker_count);
  if (declared.operation == Operation::kAverage) tensor->finishing.divisor = tensor->member_count;
  tensor->awaited_count = tensor->member_count;
  for (std::uint32_t i = 0; no_more_count_ > 0 && i < tensor->member_count; ++i) {
    if (has_bit(no_more_, declared.members.at(i))) --tensor->awaited_count;
  }
  if (PLANTED(mean_of_all_workers) && tensor->finishing.divisor > 1) {
    tensor->finishing.divisor = facts_.worker_count;
  }
  tensor->finishing.scale = declared.scale;
  tensor->in_order = settings_.deterministic && !tensor->is_broadcast && is_float(declared.dtype);
  tensor->declared_here.assign(bit_words_, 0);
  tensor->forgotten.assign(bit_words_, 0);
  set_bit(tensor->declared_here, from);
  tensor->declared_bytes = declared_bytes_of(declared);
  tensor->declared = std::move(declared);
  Tensor& made = *(tensors_[key] = std::move(tensor));
  declared_bytes_ += made.declared_bytes;
  return made;
}

std::size_t Shelf::declared_bytes_of(const wire::Declare& declared) const {
  constexpr std::size_t kNodeBytes = 64;  // of the map
  return sizeof(Tensor) + kNodeBytes + 2 * bit_words_ * sizeof(std::uint64_t) +
         declared.name.size() + declared.members.some().size() * sizeof(std::uint32_t);
}

void Shelf::spoil(Tensor& tensor, Code code, std::string text, ShelfOutput& out) {
  drop_parts(tensor);
  tensor.spoiled = code;
  tensor.spoiled_text = std::move(text);
  out.spoiled.push_back({std::nullopt, tensor.key, code, tensor.spoiled_text});
}

void Shelf::forget(WorkerRank from, Key key) {
  const auto found = tensors_.find(key);
  if (found == tensors_.end()) return;  // all have forgotten it: a repeat
  Tensor& tensor = *found->second;
  if (!tensor.declared.members.has(from)) return;
  set_bit(tensor.forgotten, from);
  if (is_forgotten(tensor)) drop(tensor);
}

// By all who may have inputs.
bool Shelf::is_forgotten(const Tensor& tensor) const {
  std::uint32_t count = 0;
  for (std::size_t word = 0; word < bit_words_; ++word) {
    count += static_cast<std::uint32_t>(std::popcount(tensor.forgotten[word] & ~no_more_[word]));
  }
  return count >= tensor.awaited_count;
}

// ---- the end of inputs

void Shelf::inputs(WorkerRank from, const wire::Header& header, ShelfOutput& out) {
  const std::uint32_t generation = header.round.value;
  const bool no_more = (header.flags & wire::kNoMore) != 0;
  std::int32_t ahead = later_by(header.round, Round(generation_));
  if (ahead > kGenerationsAheadMax) {
    std::ostringstream text;
    text << "inputs of generation " << generation << ", while generation " << generation_
         << " is summed";
    return violation(from, text.str(), out);
  }
  if (ahead >= 0) heard_in_[from.value] = generation + (no_more ? 1 : 0);
  // Who is in a later one says that nobody has more in this one. That is one member's word: it costs nobody anything
  // before there is something of the later one to be summed (contradict()).
  if (ahead > 0 && !announced_by_) announced_by_ = from;
  if (!no_more) return;
  if (ahead > 0) {
    begin_announced(generation, from);
    ahead = 0;
  }
  if (ahead < 0) {  // it has not heard that all are done
    return out.inputs_done.push_back({from, generation_, last_});
  }
  if (has_bit(no_more_, from)) return out.inputs_done.push_back({from, generation_, from});
  set_bit(no_more_, from);
  if (++no_more_count_ == facts_.worker_count) {
    begin_generation(generation_ + 1, from);
    return out.inputs_done.push_back({std::nullopt, generation_, last_});
  }
  out.inputs_done.push_back({from, generation_, from});
  for (auto at = tensors_.begin(); at != tensors_.end();) {
    Tensor& tensor = *(at++)->second;
    if (tensor.declared.members.has(from)) finish_without(tensor, out);
  }
}

// One member less is awaited: what waited for it alone is finished.
void Shelf::finish_without(Tensor& tensor, ShelfOutput& out) {
  --tensor.awaited_count;
  for (const auto& [index, part] : tensor.parts) {
    for (std::uint32_t frame = 0; frame < part->frames.size(); ++frame) {
      if (part->frames[frame].contributed == 0 || !is_complete(*part, frame)) continue;
      finish(*part, frame, out);
      if (tensor.spoiled != Code::kOk) return;
    }
  }
  const bool any_forgot = std::any_of(tensor.forgotten.begin(), tensor.forgotten.end(),
                                      [](std::uint64_t word) { return word != 0; });
  if (any_forgot && is_forgotten(tensor)) drop(tensor);
}

// Whether all have contributed who may have inputs. Who has no more may have contributed as well, to what has failed.
bool Shelf::is_complete(const Part& part, std::uint32_t frame_index) const {
  const Tensor& tensor = *part.tensor;
  if (tensor.awaited_count == tensor.member_count) {
    return part.frames[frame_index].contributed == tensor.member_count;
  }
  std::uint32_t count = 0;
  for (std::size_t word = 0; word < bit_words_; ++word) {
    const std::uint64_t bits = part.bits[frame_index * bit_words_ + word];
    count += static_cast<std::uint32_t>(std::popcount(bits & ~no_more_[word]));
  }
  return count == tensor.awaited_count && count > 0;
}

// The generation that one member has announced begins: there is something of it.
void Shelf::begin_announced(std::uint32_t generation, WorkerRank by) {
  begin_generation(generation, by);
  begun_by_ = by;
}

// `from` contributes to a generation of inputs that is over, by the word of another; but it has not said that it has no
// more. So that was not true.
void Shelf::contradict(WorkerRank from, ShelfOutput& out) {
  std::ostringstream text;
  text << "it said that nobody had more inputs in generation " << generation_ << ", but " << from
       << " has";
  violation(*announced_by_, text.str(), out);
  heard_in_[announced_by_->value] = generation_;
  announced_by_.reset();
}

// The same when sums are lost already. Nobody must wait for them.
void Shelf::look_for_contradiction(WorkerRank from, const wire::Header& header, ShelfOutput& out) {
  if (!begun_by_ || later_by(header.round, first_round(generation_)) >= 0) return;
  const auto found = tensors_.find(header.key);
  if (found == tensors_.end() || heard_in_[from.value] >= generation_) return;
  Tensor& tensor = *found->second;
  if (tensor.spoiled != Code::kOk || later_by(header.round, tensor.next_round) < 0)
    return;  // a repeat
  std::ostringstream text;
  text << *begun_by_ << " said that nobody had more inputs before generation " << generation_
       << ", but " << from << " has";
  violation(*begun_by_, text.str(), out);
  spoil(tensor, Code::kMismatch, "tensor " + quoted_name(tensor.declared.name) + ": " + text.str(),
        out);
}

// All operations have ended everywhere. What somebody has forgotten is not used again.
void Shelf::begin_generation(std::uint32_t generation, WorkerRank last) {
  const Round former_first = first_round(std::exchange(generation_, generation));
  if (announced_by_ && heard_in_[announced_by_->value] <= generation) announced_by_.reset();
  begun_by_.reset();
  last_ = last;
  no_more_count_ = 0;
  std::fill(no_more_.begin(), no_more_.end(), 0);
  for (auto at = tensors_.begin(); at != tensors_.end();) {
    Tensor& tensor = *(at++)->second;
    tensor.awaited_count = tensor.member_count;
    tensor.next_round = next_round_of(tensor, former_first);
    drop_parts(tensor);
    const bool any_forgot = std::any_of(tensor.forgotten.begin(), tensor.forgotten.end(),
                                        [](std::uint64_t word) { return word != 0; });
    if (any_forgot) drop(tensor);
  }
}

void Shelf::drop(Tensor& tensor) {
  drop_parts(tensor);
  declared_bytes_ -= tensor.declared_bytes;
  tensors_.erase(Key(tensor.key));
}

// That all frames have come to at least.
Round Shelf::next_round_of(const Tensor& tensor, Round first) {
  Round next = first;
  bool any = false;
  for (const auto& [index, part] : tensor.parts) {
    for (const Frame& frame : part->frames) {
      if (!any || later_by(frame.round, next) < 0) next = frame.round;
      any = true;
    }
  }
  return next;
}

void Shelf::drop_parts(Tensor& tensor) {
  for (const auto& [index, part] : tensor.parts) {
    if (part->is_young) take_from_young(*part);
    incomplete_frame_count_ -= part->incomplete_count;
    record_bytes_ -= part->record_bytes;
    parts_.erase({tensor.key, index});  // not there when make_part() ran out of memory
  }
  tensor.parts.clear();
}

// ---- frames

void Shelf::push(WorkerRank from, const wire::Header& header, std::span<const std::byte> payload,
                 TimeNs now, ShelfOutput& out) {
  if (announced_by_) {
    const std::uint32_t generation = heard_in_[from.value];
    const bool is_later = later_by(Round(generation), Round(generation_)) > 0;
    if (is_later && later_by(header.round, first_round(generation)) >= 0) {
      begin_announced(generation, from);
    }
  }
  Part* const* const known = parts_.find({header.key, header.part});
  Part* const part = known != nullptr ? *known : open_part(from, header, out);
  if (part == nullptr) return;
  const char* flaw = flaw_of_push(*part, from, header, payload.size());
  if (flaw != nullptr) {
    std::ostringstream text;
    text << "a push of tensor " << quoted_name(part->tensor->declared.name) << ", " << header.part
         << ", offset " << header.offset_bytes << ", " << payload.size() << " bytes: " << flaw;
    return violation(from, text.str(), out);
  }

  const auto frame_index = static_cast<std::uint32_t>(header.offset_bytes / part->frame_bytes);
  const std::int32_t ahead = later_by(header.round, part->frames[frame_index].round);
  if (ahead == 0) {
    if (announced_by_ && heard_in_[from.value] <= generation_) contradict(from, out);
    part->landings[from.value] = header.landing;
    contribute(*part, frame_index, from, payload, now, out);
  } else if (ahead == -1) {
    if (PLANTED(mean_divided_twice) && part->tensor->kernels.in_place()) {
      const std::span sum = part->frames[frame_index].finished.span().first(payload.size());
      part->tensor->kernels.finish(sum, sum, part->tensor->finishing);
    }
    const LandingTag landing = PLANTED(repeat_lands_again) ? header.landing : kNoLanding;  // I9
    answer(*part, frame_index, from, landing, out);
  } else if (ahead > 0) {
    std::ostringstream text;
    text << "a push of tensor " << quoted_name(part->tensor->declared.name) << ", " << header.part
         << ", " << header.round << ", while " << part->frames[frame_index].round
         << " is being summed";
    violation(from, text.str(), out);
  } else {  // earlier still: all have that sum
    look_for_contradiction(from, header, out);
  }
}

void Shelf::expect(Key key, PartIndex part_index, int distance) const {
  if (distance == kFarthest) return parts_.prefetch({key, part_index});
  Part* const* const found = parts_.find({key, part_index});
  if (found == nullptr) return;
  const Part& part = **found;
  if (distance == kFarthest - 1) {
    const auto* const record = reinterpret_cast<const std::byte*>(&part);
    for (std::size_t at = 0; at < sizeof(Part); at += 64) __builtin_prefetch(record + at);
  } else if (distance == kFarthest - 2) {
    __builtin_prefetch(part.frames.data());
    __builtin_prefetch(part.bits.data());
    __builtin_prefetch(part.landings.data());
    __builtin_prefetch(part.tensor);
  } else {
    __builtin_prefetch(part.tensor->declared_here.data());
    part.frames.front().finished.prefetch();
    part.frames.front().accumulator.prefetch();
  }
}

// The record of a part that has none. nullptr: the push goes no further.
Shelf::Part* Shelf::open_part(WorkerRank from, const wire::Header& header, ShelfOutput& out) {
  const auto found = tensors_.find(header.key);
  if (found == tensors_.end()) {
    violation(from, "a push of a tensor that nobody declared", out);
    return nullptr;
  }
  Tensor& tensor = *found->second;
  if (!has_bit(tensor.declared_here, from)) {
    violation(from,
              "a push of tensor " + quoted_name(tensor.declared.name) +
                  " without a declaration on this connection",
              out);
    return nullptr;
  }
  if (tensor.spoiled != Code::kOk) return nullptr;  // everyone was told
  if (header.part.value >= tensor.part_count) {
    std::ostringstream text;
    text << "a push of tensor " << quoted_name(tensor.declared.name) << ", " << header.part
         << " of " << tensor.part_count;
    violation(from, text.str(), out);
    return nullptr;
  }
  return &make_part(tensor, header.part);
}

Shelf::Part& Shelf::make_part(Tensor& tensor, PartIndex index) {
  const Placement::Part place =
      facts_.placement->part(tensor.key, tensor.declared.total_bytes, index.value);
  auto part = std::make_unique<Part>();
  part->tensor = &tensor;
  part->index = index;
  part->offset = place.offset;
  part->bytes = place.bytes;
  part->frame_bytes = place.frame_bytes;
  const std::size_t frame_count = Placement::frame_count(place);
  part->record_bytes = record_bytes_of(frame_count, tensor);
  refuse_beyond_limit(part->record_bytes);
  part->frames.resize(frame_count);
  for (Frame& frame : part->frames) frame.round = first_round(generation_);
  part->bits.assign(frame_count * bit_words_, 0);
  part->landings.assign(facts_.worker_count, kNoLanding);
  if (tensor.in_order) {
    part->added.assign(frame_count, 0);
    part->held.resize(frame_count * tensor.member_count);
  }
  if (settings_.timeline != nullptr) {
    part->timeline = std::make_unique<PartTimeline>(*settings_.timeline, tensor.key, index,
                                                    part->bytes, frame_count);
    settings_.timeline->timeline().set_name(tensor.key, tensor.declared.name);
  }
  Part& made = *(tensor.parts[index] = std::move(part));
  record_bytes_ += made.record_bytes;
  parts_.insert({tensor.key, index}, &made);
  return made;
}

// nullptr: the push is one that a worker may send, whatever its round.
const char* Shelf::flaw_of_push(const Part& part, WorkerRank from, const wire::Header& header,
                                std::size_t payload_bytes) const {
  const Tensor& tensor = *part.tensor;
  if (!has_bit(tensor.declared_here, from)) return "it was not declared on this connection";
  if (no_more_count_ > 0 && has_bit(no_more_, from) &&
      later_by(header.round, first_round(generation_)) >= 0 &&
      later_by(header.round, part.frames[0].round) >= 0) {
    return "it has said that it has no more inputs";
  }
  if (header.offset_bytes % part.frame_bytes != 0) return "no frame starts there";
  const std::uint64_t frame_index = header.offset_bytes / part.frame_bytes;
  if (frame_index >= part.frames.size()) return "the part ends before";
  const bool without = tensor.is_broadcast && from != tensor.declared.root;
  if (header.flags != (without ? wire::kNoPayload : 0)) return "the flags are wrong";
  const std::size_t expected_bytes =
      without ? 0 : frame_length(part, static_cast<std::uint32_t>(frame_index));
  if (payload_bytes != expected_bytes) return "the payload has another length than the frame";
  return nullptr;
}

void Shelf::contribute(Part& part, std::uint32_t frame_index, WorkerRank from,
                       std::span<const std::byte> payload, TimeNs now, ShelfOutput& out) {
  Frame& frame = part.frames[frame_index];
  const std::span bits = std::span(part.bits).subspan(frame_index * bit_words_, bit_words_);
  if (has_bit(bits, from) && !PLANTED(repeat_counted_twice)) return;  // a repeat
  const TimeNs begun_ns = part.timeline ? part.timeline->begin(frame.round, frame_index) : 0;

  if (!payload.empty()) {
    if (part.tensor->in_order) {
      add_in_order(part, frame_index, from, payload);
    } else {
      add(part, frame, payload);
    }
  }
  if (part.timeline) part.timeline->on_added(from, frame_index, begun_ns);
  set_bit(bits, from);
  if (frame.contributed++ == 0) {
    if (PLANTED(last_sum_forgotten)) frame.finished = {};
    frame.since_ns = now;
    ++part.incomplete_count;
    ++incomplete_frame_count_;
  }
  if (is_complete(part, frame_index)) {
    finish(part, frame_index, out);
  } else if (frame.contributed == 1) {
    watch(part, frame);
  }
}

void Shelf::add(Part& part, Frame& frame, std::span<const std::byte> payload) {
  const SumKernels& kernels = part.tensor->kernels;
  if (part.tensor->is_broadcast) {
    frame.accumulator = take(payload.size());
    std::memcpy(frame.accumulator.span().data(), payload.data(), payload.size());
  } else if (!frame.accumulator) {
    frame.accumulator = take(kernels.accumulator_bytes(payload.size() / kernels.element_bytes));
    kernels.load(frame.accumulator.span(), payload);
  } else {
    kernels.add(frame.accumulator.span(), payload);
  }
}

void Shelf::add_in_order(Part& part, std::uint32_t frame_index, WorkerRank from,
                         std::span<const std::byte> payload) {
  Frame& frame = part.frames[frame_index];
  std::uint32_t& added = part.added[frame_index];
  const std::uint32_t member_count = part.tensor->member_count;
  const std::uint32_t place = part.tensor->declared.members.place_of(from);
  const std::span held =
      std::span(part.held).subspan(std::size_t{frame_index} * member_count, member_count);
  if (place != added) {
    held[place] = take(payload.size());
    std::memcpy(held[place].span().data(), payload.data(), payload.size());
    return;
  }
  add(part, frame, payload);
  for (++added; added < member_count && held[added]; ++added) {
    add(part, frame, held[added].span().first(payload.size()));
    held[added] = {};
  }
}

// What waits for the turn of a member that has no more inputs.
void Shelf::add_held(Part& part, std::uint32_t frame_index) {
  const std::uint32_t member_count = part.tensor->member_count;
  const std::span held =
      std::span(part.held).subspan(std::size_t{frame_index} * member_count, member_count);
  const std::size_t length = frame_length(part, frame_index);
  for (BufferRef& each : held) {
    if (!each) continue;
    add(part, part.frames[frame_index], each.span().first(length));
    each = {};
  }
}

void Shelf::spoil_rootless(Tensor& tensor, ShelfOutput& out) {
  std::ostringstream text;
  text << "tensor " << quoted_name(tensor.declared.name) << ' ' << described(tensor.declared)
       << ": " << tensor.declared.root << " has said that it has no more inputs";
  spoil(tensor, Code::kMismatch, text.str(), out);
}

void Shelf::finish(Part& part, std::uint32_t frame_index, ShelfOutput& out) {
  Frame& frame = part.frames[frame_index];
  const Tensor& tensor = *part.tensor;
  if (tensor.awaited_count < tensor.member_count) {
    if (tensor.is_broadcast && has_bit(no_more_, tensor.declared.root)) {
      return spoil_rootless(*part.tensor, out);
    }
    if (tensor.in_order) add_held(part, frame_index);
  }
  const std::size_t length = frame_length(part, frame_index);
  frame.finished = {};  // I3, I4
  if (length > 0) {
    if (tensor.is_broadcast || tensor.kernels.in_place()) {
      const std::span sum = frame.accumulator.span().first(length);
      if (!tensor.finishing.changes_nothing()) tensor.kernels.finish(sum, sum, tensor.finishing);
      frame.finished = std::move(frame.accumulator);
    } else {
      frame.finished = take(length);
      tensor.kernels.finish(frame.finished.span().first(length), frame.accumulator.span(),
                            tensor.finishing);
      frame.accumulator = {};
    }
  }
  const std::span bits = std::span(part.bits).subspan(frame_index * bit_words_, bit_words_);
  std::fill(bits.begin(), bits.end(), 0);
  if (tensor.in_order) part.added[frame_index] = 0;
  frame.contributed = 0;
  ++frame.round.value;
  --incomplete_frame_count_;
  if (--part.incomplete_count == 0 && part.is_young) take_from_young(part);
  // Each frame's answers begin with another worker, or the last one would be last with all of them.
  const std::uint64_t first = part.index.value + std::uint64_t{frame_index};
  for (std::uint32_t i = 0; i < tensor.member_count; ++i) {
    const WorkerRank to =
        tensor.declared.members.at(static_cast<std::uint32_t>((first + i) % tensor.member_count));
    if (no_more_count_ > 0 && has_bit(no_more_, to)) continue;
    answer(part, frame_index, to, part.landings[to.value], out);
  }
  if (part.timeline) part.timeline->on_frame_summed(Round(frame.round.value - 1));
}

// The finished sum of one frame to one worker.
void Shelf::answer(const Part& part, std::uint32_t frame_index, WorkerRank to, LandingTag landing,
                   ShelfOutput& out) const {
  const Frame& frame = part.frames[frame_index];
  const Tensor& tensor = *part.tensor;
  ShelfOutput::Answer& answer = out.answers.emplace_back();
  answer.header.kind = wire::Kind::kAnswer;
  answer.header.epoch = facts_.epoch;
  answer.header.key = tensor.key;
  answer.header.part = part.index;
  answer.header.round = Round(frame.round.value - 1);
  answer.header.offset_bytes = frame_index * part.frame_bytes;
  answer.header.worker = to;
  answer.header.landing = landing;
  answer.landing_offset = part.offset + answer.header.offset_bytes;
  if (!tensor.declared.is_sent_to(to)) {
    answer.header.flags = wire::kNoPayload;
  } else {
    answer.buffer = frame.finished;
    answer.payload_bytes = frame_length(part, frame_index);
  }
}

std::size_t Shelf::frame_length(const Part& part, std::uint32_t frame_index) {
  return std::min(part.frame_bytes, part.bytes - frame_index * part.frame_bytes);
}

std::size_t Shelf::record_bytes_of(std::uint64_t frame_count, const Tensor& tensor) const {
  std::size_t frame_bytes = sizeof(Frame) + bit_words_ * sizeof(std::uint64_t);
  if (tensor.in_order) {
    frame_bytes += sizeof(std::uint32_t) + tensor.member_count * sizeof(BufferRef);
  }
  return sizeof(Part) + facts_.worker_count * sizeof(LandingTag) + frame_count * frame_bytes;
}

void Shelf::refuse_beyond_limit(std::size_t bytes) {
  refused_bytes_ = bytes;
  if (used_bytes() + bytes > settings_.memory_bytes_max) throw std::bad_alloc();
}

BufferRef Shelf::take(std::size_t bytes) {
  refuse_beyond_limit(bytes);
  if (used_bytes() + pool_.idle_bytes() + bytes > settings_.memory_bytes_max) pool_.trim();
  return pool_.take(bytes);
}

// ---- alarms
//
// A part gets an alarm wanted_ns after a frame of it was begun. All those wait equally long, so they stand in a list in
// the order they were set; when all frames of the part are finished, it leaves the list. Otherwise, when it rings, the
// oldest incomplete frame may be younger, and the alarm is set again, or contributions are asked for, and it is set for
// later: these stand in a heap, and stay there when the part needs them no more. So a part whose frames are finished in
// time costs a few pointers, and one with many frames on their way an entry of a small heap per wanted_ns.

namespace {
constexpr auto kLater = [](const auto& a, const auto& b) {
  return std::pair(a.due_at_ns, a.number) > std::pair(b.due_at_ns, b.number);
};
}  // namespace

// A frame was begun and is not finished.
void Shelf::watch(Part& part, const Frame& frame) {
  if (part.is_young) return;
  // An alarm that waits longer belongs to an earlier round, or asked for this one already.
  const bool asked = part.wanted_count > 0 && part.wanted_round == frame.round;
  const TimeNs due_at_ns = frame.since_ns + settings_.wanted_ns;
  if (part.alarm_due_ns == kNever || (part.alarm_due_ns > due_at_ns && !asked)) {
    make_young(part, due_at_ns);
  }
}

void Shelf::make_young(Part& part, TimeNs due_at_ns) {
  if (young_last_ != nullptr && young_last_->alarm_due_ns > due_at_ns) {
    return set_alarm(part, due_at_ns);  // time went back
  }
  part.alarm_due_ns = due_at_ns;
  part.alarm_number = ++alarms_set_;
  part.is_young = true;
  part.elder = young_last_;
  part.younger = nullptr;
  (young_last_ == nullptr ? young_first_ : young_last_->younger) = &part;
  young_last_ = &part;
}

void Shelf::take_from_young(Part& part) {
  (part.elder == nullptr ? young_first_ : part.elder->younger) = part.younger;
  (part.younger == nullptr ? young_last_ : part.younger->elder) = part.elder;
  part.is_young = false;
  part.alarm_due_ns = kNever;
}

void Shelf::set_alarm(Part& part, TimeNs due_at_ns) {
  part.alarm_due_ns = due_at_ns;
  part.alarm_number = ++alarms_set_;
  alarms_.push_back({due_at_ns, part.alarm_number, part.tensor->key, part.index});
  std::push_heap(alarms_.begin(), alarms_.end(), kLater);
}

TimeNs Shelf::next_deadline() const {
  const TimeNs young_ns = young_first_ == nullptr ? kNever : young_first_->alarm_due_ns;
  return alarms_.empty() ? young_ns : std::min(young_ns, alarms_.front().due_at_ns);
}

void Shelf::tick(TimeNs now, ShelfOutput& out) {
  while (ring_next(now, out)) continue;
}

// False: nothing is due.
bool Shelf::ring_next(TimeNs now, ShelfOutput& out) {
  if (next_deadline() > now) return false;
  Part* const young = young_first_;
  const bool heap_first =
      young == nullptr ||
      (!alarms_.empty() && std::pair(alarms_.front().due_at_ns, alarms_.front().number) <
                               std::pair(young->alarm_due_ns, young->alarm_number));
  if (!heap_first) {
    take_from_young(*young);
    ring(*young, now, out);
    return true;
  }
  std::pop_heap(alarms_.begin(), alarms_.end(), kLater);
  const Alarm alarm = alarms_.back();
  alarms_.pop_back();
  Part* const* const part = parts_.find({alarm.key, alarm.part});
  if (part == nullptr || (*part)->alarm_number != alarm.number) return true;
  (*part)->alarm_due_ns = kNever;
  if ((*part)->incomplete_count > 0) ring(**part, now, out);
  return true;
}

// Asks the workers that miss in an overdue frame of this part, and sets the next alarm.
void Shelf::ring(Part& part, TimeNs now, ShelfOutput& out) {
  const Frame* oldest = nullptr;
  for (const Frame& frame : part.frames) {
    if (frame.contributed == 0) continue;
    if (oldest == nullptr || frame.since_ns < oldest->since_ns) oldest = &frame;
  }
  if (oldest->since_ns + settings_.wanted_ns > now) {
    return set_alarm(part, oldest->since_ns + settings_.wanted_ns);
  }

  std::fill(missing_.begin(), missing_.end(), 0);
  for (std::size_t i = 0; i < part.frames.size(); ++i) {
    const Frame& frame = part.frames[i];
    if (frame.contributed == 0 || frame.round != oldest->round) continue;
    if (frame.since_ns + settings_.wanted_ns > now) continue;
    for (std::size_t w = 0; w < bit_words_; ++w) missing_[w] |= ~part.bits[i * bit_words_ + w];
  }
  for (WorkerRank worker(0); worker.value < facts_.worker_count; ++worker.value) {
    if (!has_bit(missing_, worker) || !part.tensor->declared.members.has(worker)) continue;
    if (has_bit(no_more_, worker)) continue;
    out.wanted.push_back({worker, part.tensor->key, part.index, oldest->round});
  }

  if (oldest->since_ns + settings_.missing_ns <= now) tell_missing(part, *oldest, now, out);

  if (part.wanted_round != oldest->round) part.wanted_count = 0;
  part.wanted_round = oldest->round;
  const std::uint32_t doublings = std::min(++part.wanted_count, kWantedDoublings);
  if (PLANTED(wanted_once)) return;
  set_alarm(part, now + std::max<TimeNs>(1, settings_.wanted_ns << doublings));
}

// One word for all parts of a tensor: which frame it names does not matter to those who read it. missing_ is as ring()
// left it.
void Shelf::tell_missing(const Part& part, const Frame& oldest, TimeNs now, ShelfOutput& out) {
  Tensor& tensor = *part.tensor;
  ShelfOutput::Missing told;
  const std::size_t frame_index = static_cast<std::size_t>(&oldest - part.frames.data());
  const std::span bits = std::span(part.bits).subspan(frame_index * bit_words_, bit_words_);
  for (WorkerRank worker(0); worker.value < facts_.worker_count; ++worker.value) {
    if (!tensor.declared.members.has(worker) || has_bit(no_more_, worker)) continue;
    if (has_bit(missing_, worker)) told.ranks.push_back(worker.value);
    if (has_bit(bits, worker)) told.to.push_back(worker);
  }
  if (told.ranks.empty()) return;
  const bool said = tensor.missing_told == told.ranks &&
                    now < tensor.missing_told_ns + settings_.missing_every_ns &&
                    tensor.missing_told_ns >= oldest.since_ns;
  if (said) return;
  tensor.missing_told = told.ranks;
  tensor.missing_told_ns = now;
  told.key = tensor.key;
  told.part = part.index;
  told.round = oldest.round;
  out.missing.push_back(std::move(told));
}

}  // namespace byteps
