#include "worker/staging.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/planted.h"

namespace byteps {

using device::Order;

// ---- an operation

std::uint64_t Staging::Part::begin_of(std::uint32_t chunk) const {
  return std::uint64_t{chunk} * frames_per_chunk * frame_bytes;
}

std::uint64_t Staging::Part::bytes_of(std::uint32_t chunk) const {
  return std::min(std::uint64_t{frames_per_chunk} * frame_bytes, bytes - begin_of(chunk));
}

Staging::Load::Load(Staging& staging, PipelineCall& call, std::uint64_t submission_number)
    : submission(submission_number),
      handle(call.handle),
      priority(call.priority),
      device(call.place.device),
      input(reinterpret_cast<std::uintptr_t>(call.input.data())),
      output(reinterpret_cast<std::uintptr_t>(call.output.data())),
      gives(call.spec.gives(staging.self_) && call.spec.total_bytes > 0),
      gets(call.spec.is_sent_to(staging.self_) && call.spec.total_bytes > 0),
      copies_here(!gets && !call.output.empty() && !call.input.empty() && input != output),
      staging_(staging) {}

Staging::Part& Staging::Load::enter(PartRef ref, const Tensor& tensor) {
  const PartState& state = tensor.parts[ref.part];
  round = tensor.round;
  key = tensor.key;
  while (parts.size() <= ref.part) parts.emplace_back();
  Part& part = parts[ref.part];
  part.tensor = ref.tensor;
  part.offset = state.offset;
  part.bytes = state.bytes;
  part.frame_bytes = state.frame_bytes;
  part.frame_count = state.frame_count;
  part.frames_per_chunk = static_cast<std::uint32_t>(std::max<std::uint64_t>(
      1, staging_.chunk_bytes_ / std::max<std::uint64_t>(1, state.frame_bytes)));
  part.answered.assign(part.chunk_count(), 0);
  return part;
}

std::span<const std::byte> Staging::Load::frame(std::uint32_t index, std::uint32_t frame) const {
  const Part& part = parts[index];
  if (part.bytes == 0) return {};
  const std::uint64_t begin = frame * part.frame_bytes;
  return part.slab.subspan(begin, std::min(part.frame_bytes, part.bytes - begin));
}

void Staging::Load::on_given_back(std::uint32_t index) {
  Part& part = parts[index];
  CHECK_GT(part.lent, 0U);
  --part.lent;
  staging_.release_if_over(part);
}

void Staging::Load::answered(const wire::Header& header, std::span<const std::byte> payload) {
  Part& part = parts[header.part.value];
  if (!gets || part.bytes == 0) return;
  const auto frame = static_cast<std::uint32_t>(header.offset_bytes / part.frame_bytes);
  std::memcpy(part.slab.data() + header.offset_bytes, payload.data(), payload.size());
  const std::uint32_t chunk = frame / part.frames_per_chunk;
  const std::uint32_t first = chunk * part.frames_per_chunk;
  const std::uint32_t frames = std::min(part.frames_per_chunk, part.frame_count - first);
  const bool is_first = PLANTED(landed_at_first_answer) && part.answered[chunk] == 0;
  if (++part.answered[chunk] != frames && !is_first) return;
  staging_.order(*this, header.part.value, chunk, Order::Kind::kIn);
}

// ---- calls

RoadEnds Staging::road_ends() {
  return {.before_push = {{.name = "copy_out",
                           .waits_for = "its device, and for pinned memory",
                           .stage = &copy_out_,
                           .only_cargo = true}},
          .after_pull = {{.name = "copy_in",
                          .waits_for = "its device",
                          .stage = &copy_in_,
                          .has_time = false,
                          .only_cargo = true}}};
}

void Staging::begin(WorkerRank self, bool priority_scheduling, TimelineLane* timeline) {
  self_ = self;
  priority_scheduling_ = priority_scheduling;
  timeline_ = StagingTimeline(timeline);
}

void Staging::take(PipelineCall& call) {
  auto load = std::make_unique<Load>(*this, call, ++submission_count_);
  Order await;
  await.kind = Order::Kind::kAwait;
  await.operation = number_of(call.handle);
  await.device = call.place.device;
  await.lane = call.place.lane;
  await.ready = std::move(call.place.ready);
  orders_.push_back(std::move(await));
  ++unready_;
  call.input = {};
  call.output = {};
  call.cargo = load.get();
  loads_.emplace(call.handle, std::move(load));
}

void Staging::on_ended(HandleId handle) {
  const auto found = loads_.find(handle);
  if (found == loads_.end()) return;
  Load& load = *found->second;
  for (Part& part : load.parts) {
    CHECK(part.copying == 0 && part.lent == 0) << "an operation has ended while it was copied";
    part.is_abandoned = true;
    release_if_over(part);
  }
  if (!load.is_ready) --unready_;
  loads_.erase(found);
}

// ---- copy_out

void Staging::CopyOut::enter(PartRef ref, Tensor& tensor, TimeNs /*now*/) {
  Load& load = staging_.load_of(tensor);
  Part& part = load.enter(ref, tensor);
  part.where = Part::Where::kCopyOut;
  if (tensor.parts[ref.part].is_wanted(tensor.round)) staging_.want(load, ref.part);
  staging_.timeline_.mark(load.round, part.times.entered_ns);
  if (!load.is_ready && !PLANTED(call_unready)) return;
  staging_.wait_for_slab(load, ref);
  staging_.allot();
}

void Staging::CopyOut::want(PartRef ref, Tensor& tensor) {
  staging_.want(staging_.load_of(tensor), ref.part);
  staging_.allot();
}

void Staging::CopyOut::tick(TimeNs now, StageOutput& out) {
  staging_.now_ = now;
  if (now >= staging_.stall_ends_ns_) staging_.end_stall();
  if (!staging_.has_news()) return;
  out.add(staging_.news_);
  staging_.news_.clear();
}

Staging::Turn Staging::turn_of(const Load& load, std::uint32_t part) const {
  const bool can_wait = !load.parts[part].is_wanted;
  if (!priority_scheduling_) {
    return {.can_wait = can_wait, .submission = load.submission, .part = part};
  }
  return {.can_wait = can_wait,
          .priority = -std::int64_t{load.priority},
          .round = load.round.value,
          .key = load.key.value,
          .submission = 0,
          .part = part};
}

void Staging::wait_for_slab(Load& load, PartRef part) {
  timeline_.mark(load.round, load.parts[part.part].times.ready_ns);
  waiting_.emplace(turn_of(load, part.part), Waiting{&load, part});
}

// Others wait for this part. With it goes the tensor's first: if ranks disagree about the tensor, some may have no
// other part, and its shard alone hears of it and tells those who come there.
void Staging::want(Load& load, std::uint32_t index) {
  const std::uint32_t first = PLANTED(wanted_without_first) ? index : 0;
  for (const std::uint32_t each : {first, index}) {
    auto waiting = waiting_.extract(turn_of(load, each));
    load.parts[each].is_wanted = true;
    if (waiting.empty()) continue;
    waiting.key() = turn_of(load, each);
    waiting_.insert(std::move(waiting));
  }
}

// As far as there is memory. What others wait for finds some in any case.
void Staging::allot() {
  while (!waiting_.empty() && !is_ending_) {
    const auto first = waiting_.begin();
    const auto [load, ref] = first->second;
    Part& part = load->parts[ref.part];
    if (!lend_slab(part)) break;
    waiting_.erase(first);
    begin_part(*load, ref);
  }
  if (waiting_.empty() || is_ending_) {
    stall_ends_ns_ = kNever;
  } else if (stall_ends_ns_ == kNever) {
    stall_ends_ns_ = now_ + stall_ns_;
  }
}

// The first in order goes as if others waited for it.
void Staging::end_stall() {
  stall_ends_ns_ = kNever;
  if (waiting_.empty() || is_ending_) return;
  if (PLANTED(wanted_without_first)) return;  // which this would make good
  const auto [load, ref] = waiting_.begin()->second;
  stall_ns_ = std::min(2 * stall_ns_, kStallMostNs);
  want(*load, ref.part);
  allot();
}

bool Staging::lend_slab(Part& part) {
  if (part.bytes == 0) return true;
  part.slab = slabs_.lend(part.bytes);
  if (part.slab.empty()) {
    const bool is_urgent = part.is_wanted && !PLANTED(wanted_waits_for_slab);
    // One that the whole pool would not hold has its turn as well, while nothing else is under way.
    const bool is_first = slabs_.all_is_free() && unpinned_bytes_ == 0;
    if (!is_urgent && !is_first) return false;
    part.unpinned = std::make_unique_for_overwrite<std::byte[]>(part.bytes);
    part.slab = {part.unpinned.get(), part.bytes};
    unpinned_bytes_ += part.bytes;
    ++counters_.unpinned_parts;
  }
  return true;
}

void Staging::begin_part(Load& load, PartRef ref) {
  Part& part = load.parts[ref.part];
  timeline_.mark(load.round, part.times.lent_ns);
  if (load.gives && part.bytes > 0) {
    for (std::uint32_t chunk = 0; chunk < part.chunk_count(); ++chunk) {
      order(load, ref.part, chunk, Order::Kind::kOut);
    }
    return;
  }
  timeline_.on_out(load.whose(ref.part), part.times);
  part.ready_frames = part.frame_count;
  part.where = Part::Where::kBetween;
  news_.leaving.push_back(ref);
}

void Staging::order(Load& load, std::uint32_t index, std::uint32_t chunk, Order::Kind kind) {
  Part& part = load.parts[index];
  const std::uint64_t begin = part.begin_of(chunk);
  if (kind != Order::Kind::kOut) timeline_.mark(load.round, part.times.first_in_ns);
  Order copy;
  copy.kind = kind;
  copy.operation = number_of(load.handle);
  copy.part = index;
  copy.chunk = chunk;
  copy.device = load.device;
  copy.bytes = part.bytes_of(chunk);
  copy.address = (kind == Order::Kind::kOut ? load.input : load.output) + part.offset + begin;
  copy.source = load.input + part.offset + begin;
  if (kind != Order::Kind::kWithin) copy.host = part.slab.data() + begin;
  orders_.push_back(std::move(copy));
  ++part.copying;
  ++copying_;
}

// ---- reports

void Staging::on_report(const device::Report& report) {
  if (report.operation == device::kNoOperation) return;
  const bool is_copy = report.kind != Order::Kind::kAwait;
  if (is_copy && copying_ == 0) return;  // given up
  if (is_copy) --copying_;
  const auto found = loads_.find(HandleId(static_cast<std::int64_t>(report.operation)));
  if (found == loads_.end()) return;  // it has failed before its stream came so far
  Load& load = *found->second;
  if (report.kind == Order::Kind::kOut) return copied_out(load, report);
  if (report.kind != Order::Kind::kAwait) return copied_in(load, report);
  if (!report.result.is_ok()) return;
  load.is_ready = true;
  --unready_;
  for (std::uint32_t index = 0; index < load.parts.size(); ++index) {
    const Part& part = load.parts[index];
    if (part.where != Part::Where::kCopyOut || part.is_abandoned) continue;
    wait_for_slab(load, {part.tensor, index});
  }
  allot();
}

void Staging::copied_out(Load& load, const device::Report& report) {
  Part& part = load.parts[report.part];
  --part.copying;
  const PartRef ref{part.tensor, report.part};
  if (part.is_abandoned) {
    news_.given_back.push_back(part.tensor);
    return release_if_over(part);
  }
  if (!report.result.is_ok()) return;  // the job fails
  counters_.out_bytes += part.bytes_of(report.chunk);
  timeline_.mark(load.round, part.times.first_out_ns);
  if (report.chunk + 1 == part.chunk_count()) {
    timeline_.on_out(load.whose(report.part), part.times);
  }
  part.ready_frames = std::min(part.frame_count, (report.chunk + 1) * part.frames_per_chunk);
  if (PLANTED(frames_before_copied)) part.ready_frames = part.frame_count;
  if (std::exchange(part.where, Part::Where::kBetween) == Part::Where::kCopyOut) {
    news_.leaving.push_back(ref);
  } else {
    news_.ready.push_back(ref);
  }
}

void Staging::copied_in(Load& load, const device::Report& report) {
  Part& part = load.parts[report.part];
  --part.copying;
  if (part.is_abandoned) {
    news_.given_back.push_back(part.tensor);
    return release_if_over(part);
  }
  if (!report.result.is_ok()) return;
  if (report.kind == Order::Kind::kIn) counters_.in_bytes += part.bytes_of(report.chunk);
  ++part.landed;
  leave_if_landed(load, report.part);
}

// ---- copy_in

void Staging::CopyIn::enter(PartRef ref, Tensor& tensor, TimeNs /*now*/) {
  Load& load = staging_.load_of(tensor);
  Part& part = load.parts[ref.part];
  part.where = Part::Where::kCopyIn;
  if (load.copies_here && part.bytes > 0) {
    for (std::uint32_t chunk = 0; chunk < part.chunk_count(); ++chunk) {
      staging_.order(load, ref.part, chunk, Order::Kind::kWithin);
    }
    return;
  }
  staging_.leave_if_landed(load, ref.part);
}

void Staging::leave_if_landed(Load& load, std::uint32_t index) {
  Part& part = load.parts[index];
  const bool lands = (load.gets || load.copies_here) && part.bytes > 0;
  if (part.where != Part::Where::kCopyIn ||
      (lands && part.landed < part.chunk_count() && !PLANTED(ended_before_landed)))
    return;
  part.where = Part::Where::kOver;
  if (lands) timeline_.on_in(load.whose(index), part.times);
  news_.leaving.push_back({part.tensor, index});
  release_if_over(part);
}

// ---- the end of a part

// Copies cannot be called back: the operation ends when they are over.
std::uint32_t Staging::abandon(Load& load, std::uint32_t index) {
  if (index >= load.parts.size()) return 0;  // it has not come so far
  Part& part = load.parts[index];
  part.is_abandoned = true;
  waiting_.erase(turn_of(load, index));
  const auto is_it = [&](const PartRef& each) {
    return each.tensor == part.tensor && each.part == index;
  };
  std::erase_if(news_.leaving, is_it);
  std::erase_if(news_.ready, is_it);
  release_if_over(part);
  return PLANTED(copies_forgotten) ? 0 : part.copying;
}

void Staging::release_if_over(Part& part) {
  const bool is_over = part.where == Part::Where::kOver || part.is_abandoned;
  const bool is_in_use = (part.copying > 0 && !PLANTED(slab_back_while_copied)) ||
                         (part.lent > 0 && !PLANTED(slab_back_while_lent));
  if (!is_over || part.slab.empty() || is_in_use) return;
  if (part.unpinned == nullptr) {
    slabs_.give_back(part.slab);
  } else {
    part.unpinned.reset();
    unpinned_bytes_ -= part.bytes;
  }
  part.slab = {};
  stall_ends_ns_ = kNever;
  stall_ns_ = kStallFirstNs;
  allot();
}

void Staging::give_up() {
  for (auto& [handle, load] : loads_) {
    for (Part& part : load->parts) {
      if (part.is_abandoned) {
        news_.given_back.insert(news_.given_back.end(), part.copying, part.tensor);
      }
      part.copying = 0;
      part.slab = {};  // a late copy may still come: it is lent to nobody else
      (void)part.unpinned.release();
    }
  }
  orders_.clear();
  copying_ = 0;
}

}  // namespace byteps
