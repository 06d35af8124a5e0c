#include "server/inventory.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <new>
#include <sstream>
#include <utility>

#include "base/planted.h"
#include "server/declaration.h"
#include "server/shelf.h"
#include "server/worker_bits.h"

namespace byteps {
namespace {

std::size_t declared_bytes_of(const wire::Declare& declared, const ShelfEpoch& facts) {
  constexpr std::size_t kNodeBytes = 64;  // of the map
  return sizeof(TensorSum) + kNodeBytes +
         3 * bit_words_of(facts.worker_count) * sizeof(std::uint64_t) + declared.name.size() +
         declared.members.some().size() * sizeof(std::uint32_t) +
         (declared.members.is_all() ? 0 : Contributors::bytes_of(*facts.groups, declared.members));
}

std::size_t record_bytes_of(std::uint64_t frame_count, const TensorSum& tensor,
                            const ShelfEpoch& facts) {
  std::size_t frame_bytes =
      sizeof(FrameSum) + bit_words_of(facts.worker_count) * sizeof(std::uint64_t);
  if (tensor.in_order) {
    frame_bytes += sizeof(std::uint32_t) + tensor.contributors->count() * sizeof(BufferRef);
  }
  if (facts.recovers) frame_bytes += Settling::bytes_of_frame(facts.worker_count);
  if (facts.takes_over) {
    frame_bytes += sizeof(Takeover) + 2 * bit_words_of(facts.worker_count) * sizeof(std::uint64_t);
  }
  return sizeof(PartSum) + facts.worker_count * sizeof(std::uint32_t) + frame_count * frame_bytes;
}

// A crew's sum of float16 has its headroom; whoever finishes the sum of all takes it back.
Finishing finishing_of(const Spec& spec, const ShelfEpoch& facts) {
  const bool is_sum = spec.operation == Operation::kSum || spec.operation == Operation::kAverage;
  double headroom = 1;
  if (is_sum && spec.dtype == DType::kFloat16 && facts.groups->most_ranks() > 1) {
    headroom = std::ldexp(1.0, headroom_of(facts.groups->crews_of(spec.members)));
  }
  if (PLANTED(no_headroom)) headroom = 1;
  if (facts.relay) return {.divisor = 1, .scale = PLANTED(headroom_on_one_side) ? 1 : 1 / headroom};
  Finishing finishing{.divisor = 1, .scale = spec.scale * headroom};
  if (spec.operation == Operation::kAverage) {
    finishing.divisor = spec.members.count(facts.worker_count);
  }
  if (PLANTED(mean_of_machines) && finishing.divisor > 1) {
    finishing.divisor = static_cast<std::uint32_t>(facts.groups->crews_of(spec.members).size());
  }
  if (PLANTED(mean_of_all_workers) && finishing.divisor > 1) finishing.divisor = facts.worker_count;
  return finishing;
}

}  // namespace

Inventory::Inventory(const ShelfSettings& settings, BufferPool& pool, Alarms& alarms,
                     Settling& settling)
    : settings_(settings), pool_(pool), alarms_(alarms), settling_(settling) {}

// Frames of the next epoch may have another size, so buffers that lie idle would do so for ever.
void Inventory::clear() {
  parts_.clear();
  tensors_.clear();
  all_.reset();
  apart_.reset();
  record_bytes_ = 0;
  declared_bytes_ = 0;
  alarms_.clear();
  incomplete_frame_count_ = 0;
  pool_.trim();
}

// ---- tensors

TensorSum* Inventory::find(Key key) const {
  const auto found = tensors_.find(key);
  return found == tensors_.end() ? nullptr : found->second.get();
}

std::string Inventory::flaw_of_another(const wire::Declare& declared,
                                       const ShelfEpoch& facts) const {
  const std::size_t bytes_max =
      std::min(settings_.declared_bytes_max, settings_.memory_bytes_max / 4);
  if (tensors_.size() < settings_.tensor_count_max &&
      declared_bytes_ + declared_bytes_of(declared, facts) <= bytes_max) {
    return {};
  }
  std::ostringstream text;
  text << settings_.words.owner << " has " << tensors_.size()
       << " tensors already, of which it knows " << declared_bytes_
       << " bytes without their elements, and cannot take " << quoted_name(declared.name)
       << ". Use the same names in each step";
  if (bytes_max < settings_.declared_bytes_max) {
    text << ", or raise the limit of memory, of which a quarter is for this ("
         << settings_.words.limited_by << ' ' << settings_.memory_bytes_max << " bytes)";
  }
  return text.str();
}

TensorSum& Inventory::make(Key key, WorkerRank from, wire::Declare declared,
                           const ShelfEpoch& facts) {
  auto tensor = std::make_unique<TensorSum>();
  tensor->key = key;
  tensor->declared_by = from;
  tensor->part_count = facts.placement->part_count(declared.extent());
  tensor->kernels = kernels_for(declared.dtype, declared.operation, settings_.kernels);
  // (To a relay elements come, whether there are servers behind it or none. So they do in float32.)
  const bool is_coded = declared.format != Format::kPlain && declared.format != Format::kFloat32;
  if (is_coded && !facts.relay && !facts.keeps_links) {
    tensor->coding = std::make_unique<const CodingKernels>(
        coding_kernels_for(declared.format, *declared.codec, settings_.kernels));
  }
  tensor->is_broadcast = declared.operation == Operation::kBroadcast;
  tensor->contributors = contributors_of(declared.members, facts);
  tensor->finishing = finishing_of(declared, facts);
  tensor->in_order = settings_.deterministic && !tensor->is_broadcast && is_float(declared.dtype);
  tensor->declared_here.assign(bit_words_of(facts.worker_count), 0);
  tensor->declared_ever.assign(bit_words_of(facts.worker_count), 0);
  tensor->forgotten.assign(bit_words_of(facts.worker_count), 0);
  tensor->declared_bytes = declared_bytes_of(declared, facts);
  tensor->declared = std::move(declared);
  TensorSum& made = *(tensors_[key] = std::move(tensor));  // last: there may be no memory
  declared_bytes_ += made.declared_bytes;
  return made;
}

// Those of all workers are made once.
std::shared_ptr<const Contributors> Inventory::contributors_of(const Members& members,
                                                               const ShelfEpoch& facts) {
  if (members.is_all() && all_) return all_;
  std::shared_ptr<const Contributors> made;
  if (facts.relay) {
    if (!apart_) apart_ = std::make_shared<const Groups>(Groups::apart(facts.worker_count));
    made = std::make_shared<const Contributors>(
        apart_, facts.groups->crew_of(facts.groups->group_of(*facts.relay), members),
        facts.placement->shard_count());
  } else {
    made =
        std::make_shared<const Contributors>(facts.groups, members, facts.placement->shard_count());
  }
  if (members.is_all()) all_ = made;
  return made;
}

void Inventory::note_lost(WorkerRank worker) {
  for (const auto& [key, tensor] : tensors_) {
    if (tensor->is_broadcast && tensor->declared.root == worker) tensor->gone.is_root = true;
  }
}

void Inventory::drop_parts(TensorSum& tensor) {
  for (const auto& [index, part] : tensor.parts) {
    alarms_.rest(*part);
    for (FrameSum& frame : part->frames) settling_.end(frame);
    incomplete_frame_count_ -= part->incomplete_count;
    record_bytes_ -= part->record_bytes;
    parts_.erase({tensor.key, index});  // not there when make_part() ran out of memory
  }
  tensor.parts.clear();
}

void Inventory::drop(TensorSum& tensor) {
  drop_parts(tensor);
  declared_bytes_ -= tensor.declared_bytes;
  tensors_.erase(Key(tensor.key));
}

// ---- parts

PartSum* Inventory::find(Key key, PartIndex part) const {
  PartSum* const* const found = parts_.find({key, part});
  return found == nullptr ? nullptr : *found;
}

PartSum& Inventory::make_part(TensorSum& tensor, PartIndex index, Round first,
                              const ShelfEpoch& facts) {
  const Placement::Part place =
      facts.placement->part(tensor.key, tensor.declared.extent(), index.value);
  auto part = std::make_unique<PartSum>();
  part->tensor = &tensor;
  part->index = index;
  part->carried.offset = place.offset;
  part->bytes = place.bytes;
  part->frame_bytes = place.frame_bytes;
  const std::size_t frame_count = Placement::frame_count(place);
  part->record_bytes = record_bytes_of(frame_count, tensor, facts);
  refuse_beyond_limit(part->record_bytes);
  part->frames.resize(frame_count);
  for (FrameSum& frame : part->frames) {
    frame.round = first;
    if (facts.takes_over) {
      frame.takeover = std::make_unique<Takeover>(facts.worker_count, facts.relay.has_value());
    }
  }
  part->bits.assign(frame_count * bit_words_of(facts.worker_count), 0);
  part->tags.assign(facts.worker_count, 0);
  if (tensor.in_order) {
    part->in_order.added.assign(frame_count, 0);
    part->in_order.held.resize(frame_count * tensor.contributors->count());
  }
  if (settings_.timeline != nullptr) {
    part->timeline =
        std::make_unique<PartTimeline>(*settings_.timeline, tensor.key, index, part->bytes,
                                       static_cast<std::uint32_t>(frame_count));
    settings_.timeline->timeline().set_name(tensor.key, tensor.declared.name);
  }
  PartSum& made = *(tensor.parts[index] = std::move(part));
  record_bytes_ += made.record_bytes;
  parts_.insert({tensor.key, index}, &made);
  return made;
}

void Inventory::note_lacking(PartSum& part, std::uint32_t frame, WorkerRank worker) {
  if (part.lacking.empty()) {
    const std::size_t bytes = part.bits.size() * sizeof(std::uint64_t);
    refuse_beyond_limit(bytes);
    part.lacking.assign(part.bits.size(), 0);
    part.record_bytes += bytes;
    record_bytes_ += bytes;
  }
  const std::size_t words = part.tensor->declared_here.size();
  set_bit(std::span(part.lacking).subspan(frame * words, words), worker);
}

void Inventory::begin_frame(PartSum& part) {
  ++part.incomplete_count;
  ++incomplete_frame_count_;
}

void Inventory::end_frame(PartSum& part) {
  --incomplete_frame_count_;
  if (--part.incomplete_count == 0) alarms_.rest(part);
}

// ---- memory

void Inventory::refuse_beyond_limit(std::size_t bytes) {
  refused_bytes_ = bytes;
  if (used_bytes() + bytes > settings_.memory_bytes_max) throw std::bad_alloc();
}

BufferRef Inventory::take(std::size_t bytes) {
  refuse_beyond_limit(bytes);
  if (used_bytes() + pool_.idle_bytes() + bytes > settings_.memory_bytes_max) pool_.trim();
  return pool_.take(bytes);
}

std::string Inventory::out_of_memory_text(std::size_t used) const {
  std::ostringstream text;
  text << "no memory for " << refused_bytes_ << " more bytes beside " << used << " in use"
       << settings_.words.used_by;
  if (settings_.memory_bytes_max - std::min(settings_.memory_bytes_max, used) < refused_bytes_) {
    text << " (" << settings_.words.limited_by << ' ' << settings_.memory_bytes_max << " bytes)";
  }
  return text.str();
}

}  // namespace byteps
