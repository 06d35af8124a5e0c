#include "server/asking.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/planted.h"
#include "server/shelf.h"
#include "server/worker_bits.h"

namespace byteps {

void Asking::begin_epoch(std::uint32_t worker_count) {
  missing_.assign(bit_words_of(worker_count), 0);
}

namespace {

// To all frames of that round, up to this byte of the part; 0: to its end.
bool has_contributed(const PartSum& part, WorkerRank worker, Round round, std::uint64_t end_bytes) {
  for (std::size_t frame = 0; frame < part.frames.size(); ++frame) {
    if (end_bytes > 0 && frame * part.frame_bytes >= end_bytes) break;
    const std::int32_t ahead = later_by(round, part.frames[frame].round);
    if (ahead > 0 || (ahead == 0 && !has_bit(part.bits_of(frame), worker))) return false;
  }
  return true;
}

}  // namespace

void Asking::want(Key key, PartIndex part_index, Round round, std::uint64_t end_bytes,
                  ShelfOutputs& out) {
  const TensorSum* const tensor = inventory_.find(key);
  if (part_index.value >= tensor->part_count) return;
  const PartSum* const part = inventory_.find(key, part_index);
  for (std::uint32_t place = 0; place < tensor->contributors->count(); ++place) {
    if (generations_.is_done(*tensor->contributors, place)) continue;
    const WorkerRank each = tensor->contributors->at(place, key, part_index);
    if (part != nullptr && has_contributed(*part, each, round, end_bytes)) continue;
    out.emplace_back(ShelfOutput::Wanted{each, key, part_index, round, end_bytes});
  }
}

void Asking::tick(TimeNs now, ShelfOutputs& out) {
  while (const std::optional<Alarms::Due> due = alarms_.take_due(now)) {
    if (due->young != nullptr) {
      ring(*due->young, now, out);
      continue;
    }
    PartSum* const part = inventory_.find(due->key, due->part);
    if (part == nullptr || part->alarm_number != due->number) continue;
    part->alarm_due_ns = kNever;
    if (part->incomplete_count > 0) ring(*part, now, out);
  }
}

// Asks the workers that miss in an overdue frame of this part, and sets the next alarm.
void Asking::ring(PartSum& part, TimeNs now, ShelfOutputs& out) {
  const FrameSum* oldest = nullptr;
  for (const FrameSum& frame : part.frames) {
    if (!frame.is_begun()) continue;
    if (oldest == nullptr || frame.since_ns < oldest->since_ns) oldest = &frame;
  }
  if (oldest == nullptr) return;
  const TimeNs late_ns = alarms_.lateness().age_ns();
  if (oldest->since_ns + late_ns > now) return alarms_.set(part, oldest->since_ns + late_ns);

  std::fill(missing_.begin(), missing_.end(), 0);
  std::uint32_t begun_frames = 0;
  for (std::uint32_t i = 0; i < part.frames.size(); ++i) {
    const FrameSum& frame = part.frames[i];
    if (!frame.is_begun() || frame.round != oldest->round) continue;
    begun_frames = i + 1;
    if (frame.since_ns + late_ns > now) continue;
    const std::span bits = part.bits_of(i);
    for (std::size_t word = 0; word < bits.size(); ++word) missing_[word] |= ~bits[word];
  }
  const Contributors& contributors = *part.tensor->contributors;
  for (std::uint32_t place = 0; place < contributors.count(); ++place) {
    const WorkerRank each = contributors.at(place, part.tensor->key, part.index);
    if (!has_bit(missing_, each) || generations_.is_done(contributors, place)) continue;
    out.emplace_back(ShelfOutput::Wanted{each, part.tensor->key, part.index, oldest->round,
                                         begun_frames * part.frame_bytes});
  }

  if (oldest->since_ns + settings_.missing_ns <= now) tell_missing(part, *oldest, now, out);

  if (part.wanted.round != oldest->round || begun_frames > part.wanted.frames)
    part.wanted.count = 0;
  part.wanted.round = oldest->round;
  part.wanted.frames = begun_frames;
  const std::uint32_t doublings = std::min(++part.wanted.count, kWantedDoublings);
  if (PLANTED(wanted_once)) return;
  const TimeNs pause_ns = std::min(late_ns << doublings, settings_.wanted_ns << kWantedDoublings);
  alarms_.set(part, now + std::max<TimeNs>(1, pause_ns));
}

// One word for all parts of a tensor: which frame it names does not matter to those who read it. missing_ is as ring()
// left it.
void Asking::tell_missing(const PartSum& part, const FrameSum& oldest, TimeNs now,
                          ShelfOutputs& out) {
  TensorSum& tensor = *part.tensor;
  ShelfOutput::Missing told;
  const std::size_t frame_index = static_cast<std::size_t>(&oldest - part.frames.data());
  const std::span bits = part.bits_of(frame_index);
  for (std::uint32_t place = 0; place < tensor.contributors->count(); ++place) {
    if (generations_.is_done(*tensor.contributors, place)) continue;
    const WorkerRank each = tensor.contributors->at(place, tensor.key, part.index);
    if (has_bit(missing_, each)) add_missing(tensor, place, each, oldest.round, told.ranks);
    if (has_bit(bits, each)) told.to.push_back(each);
  }
  if (told.ranks.empty()) return;
  std::sort(told.ranks.begin(), told.ranks.end());
  std::sort(told.to.begin(), told.to.end());
  const bool said = tensor.missing_told.ranks == told.ranks &&
                    now < tensor.missing_told.at_ns + settings_.missing_every_ns &&
                    tensor.missing_told.at_ns >= oldest.since_ns;
  if (said) return;
  tensor.missing_told.ranks = told.ranks;
  tensor.missing_told.at_ns = now;
  told.key = tensor.key;
  told.part = part.index;
  told.round = oldest.round;
  out.emplace_back(std::move(told));
}

Status Asking::heed(WorkerRank from, const wire::Header& header, std::span<const std::byte> payload,
                    const Groups& groups) {
  const Result<wire::Missing> told = wire::decode_missing(payload);
  TensorSum* const tensor = told.is_ok() ? inventory_.find(header.key) : nullptr;
  if (tensor == nullptr) return told.status();
  std::vector<std::uint32_t> ranks = told.value().ranks.some();
  std::erase_if(ranks, [&](std::uint32_t rank) {
    return rank >= groups.worker_count() ||
           groups.group_of(WorkerRank(rank)) != groups.group_of(from);
  });
  if (!ranks.empty()) tensor->lacks[from] = {.round = header.round, .ranks = std::move(ranks)};
  return Status::ok();
}

// Of a crew, those that its leader misses, if it has said so; else all: perhaps none of them has begun.
void Asking::add_missing(const TensorSum& tensor, std::uint32_t place, WorkerRank contributor,
                         Round round, std::vector<std::uint32_t>& ranks) const {
  const auto said = tensor.lacks.find(contributor);
  if (said != tensor.lacks.end() && said->second.round == round) {
    ranks.insert(ranks.end(), said->second.ranks.begin(), said->second.ranks.end());
    return;
  }
  for (const WorkerRank rank : tensor.contributors->crew(place)) {
    if (!generations_.has_no_more(rank)) ranks.push_back(rank.value);
  }
}

}  // namespace byteps
