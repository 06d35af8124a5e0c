#include "worker/patience.h"

#include <algorithm>

#include "base/phrases.h"

namespace byteps {
namespace {

constexpr std::size_t kNamesInNotice = 5;

// `tensor`: which waits for it; empty: no tensor does.
Cause left_by(WorkerRank rank, const std::string& tensor) {
  return {.kind = CauseKind::kLeft,
          .who = {.role = Role::kWorker, .rank = rank.value},
          .detail = tensor};
}

}  // namespace

void Patience::on_submitted() {
  const PipelineConfig& config = work_.config;
  if (next_notice_ns_ == kNever) next_notice_ns_ = work_.now + config.first_notice_ns;
  if (!departed_.empty()) wake(work_.now + config.departed_ns / 8);
}

void Patience::on_finishing() {
  if (!departed_.empty()) wake(work_.now + work_.config.departed_ns);
}

void Patience::on_worker_left(WorkerRank rank) {
  for (const Departed& gone : departed_) {
    if (gone.rank == rank) return;
  }
  departed_.push_back({rank, work_.now});
  if (work_.operations.count() > 0 || inputs_.is_finishing()) next_departed_ns_ = work_.now;
}

void Patience::on_missing(ShardIndex shard, const wire::Header& header, const Members& whom) {
  const TensorIndex index = work_.tensors.find(header.key);
  if (index == kNoTensor || header.epoch != work_.config.epoch) return;
  const Tensor& tensor = work_.tensors[index];
  if (tensor.active == kNoOp || header.round != tensor.round) return;
  if (header.part.value >= tensor.parts.size() || tensor.parts[header.part.value].shard != shard) {
    return;
  }
  std::vector<Lack>& lacks = work_.operations[tensor.active].lacks;
  std::erase_if(lacks,
                [&](const Lack& lack) { return tensor.parts[lack.part.value].shard == shard; });
  lacks.push_back({header.part, whom});
}

void Patience::tick() {
  if (std::exchange(answers_came_, false) && !departed_.empty()) answered_ns_ = work_.now;
}

// ---- who has left

std::vector<Patience::Verdict> Patience::give_up() {
  if (work_.now < next_departed_ns_) return {};
  next_departed_ns_ = kNever;
  std::vector<Verdict> verdicts;
  const Operations& operations = work_.operations;
  const TimeNs departed_ns = work_.config.departed_ns;
  for (OpIndex index = operations.oldest(); index != kNoOp; index = operations[index].newer) {
    const Op& op = operations[index];
    Tensor& tensor = work_.tensors[op.tensor];
    if (op.state != OpState::kActive || !has_departed_member(tensor)) continue;
    push_.want_first_part(op.tensor);
    const Departed* const gone = missed_by(op);
    if (gone == nullptr || misses_shard(tensor)) {
      wake(work_.now + departed_ns / 8);
      continue;
    }
    // What was submitted later gets as much time as what was under way.
    if (!is_due(std::max({op.submitted_ns, gone->since_ns, answered_ns_}) + departed_ns)) continue;
    verdicts.push_back(
        {op.tensor, Status(Code::kDisconnected,
                           "tensor '" + tensor.name + "' waits for worker " +
                               std::to_string(gone->rank.value) + ", which has left the job",
                           left_by(gone->rank, tensor.name))});
  }
  if (inputs_.is_finishing() && !departed_.empty()) give_up_inputs(verdicts);
  return verdicts;
}

bool Patience::is_due(TimeNs deadline_ns) {
  if (work_.now >= deadline_ns) return true;
  wake(deadline_ns);
  return false;
}

void Patience::give_up_inputs(std::vector<Verdict>& verdicts) {
  const Departed& gone = departed_.front();
  const TimeNs departed_ns = work_.config.departed_ns;
  if (work_.operations.count() > 0) return wake(work_.now + departed_ns);
  // Who has left may have heard that all have none, where this worker cannot: that is the connection's affair.
  const ShardIndex way = work_.config.finishing.way;
  if (!work_.shards[way.value].is_up() && whose_relay(way) == nullptr) {
    unheard_ns_ = work_.now;
    return wake(work_.now + departed_ns / 8);
  }
  if (!is_due(std::max({gone.since_ns, answered_ns_, unheard_ns_}) + departed_ns)) return;
  verdicts.push_back(
      {kNoTensor, Status(Code::kDisconnected,
                         "this rank has no more inputs and waits until all have none, but worker " +
                             std::to_string(gone.rank.value) + " has left the job",
                         left_by(gone.rank, {}))});
}

bool Patience::has_departed_member(const Tensor& tensor) const {
  return std::any_of(departed_.begin(), departed_.end(),
                     [&](const Departed& gone) { return tensor.spec.members.has(gone.rank); });
}

// Whether an answer cannot come because its shard is not connected: then that, not the worker that left, is the cause.
bool Patience::misses_shard(const Tensor& tensor) const {
  return std::any_of(tensor.parts.begin(), tensor.parts.end(), [&](const PartState& part) {
    return !work_.shard_of(part).is_up() && part.answered_frames < part.frame_count &&
           whose_relay(part.shard) == nullptr;
  });
}

// Of those that have left, who had the relay at the end of this way; null: nobody.
const Patience::Departed* Patience::whose_relay(ShardIndex shard) const {
  if (!work_.is_behind_relays()) return nullptr;
  const Groups& groups = *work_.config.groups;
  const WorkerRank relay =
      groups.crew_of(groups.group_of(work_.config.self), Members())[shard.value];
  const auto gone = std::find_if(departed_.begin(), departed_.end(),
                                 [relay](const Departed& each) { return each.rank == relay; });
  return gone == departed_.end() ? nullptr : &*gone;
}

// Whom it misses, as a shard says, or whose relay has gone with them: the first of these that left, for it may be why
// others did. Null: none has.
const Patience::Departed* Patience::missed_by(const Op& op) const {
  const Tensor& tensor = work_.tensors[op.tensor];
  const Departed* first = nullptr;  // they are in the order in which they left
  for (const PartState& part : tensor.parts) {
    if (work_.shard_of(part).is_up() || part.answered_frames == part.frame_count) continue;
    const Departed* const gone = whose_relay(part.shard);
    if (gone != nullptr && (first == nullptr || gone < first)) first = gone;
  }
  for (const Departed& gone : departed_) {
    if (&gone == first) break;
    for (const Lack& lack : op.lacks) {
      const PartState& part = tensor.parts[lack.part.value];
      if (part.answered_frames < part.frame_count && lack.whom.has(gone.rank)) return &gone;
    }
  }
  return first;
}

// ---- what people are told

void Patience::notice(const Road& road) {
  if (work_.now < next_notice_ns_) return;
  const Operations& operations = work_.operations;
  if (operations.oldest() == kNoOp) {
    next_notice_ns_ = kNever;
    return;
  }
  const TimeNs oldest_ns = operations[operations.oldest()].submitted_ns;
  const TimeNs first_ns = oldest_ns + work_.config.first_notice_ns;
  if (work_.now < first_ns) {
    next_notice_ns_ = first_ns;
    return;
  }
  next_notice_ns_ = work_.now + work_.config.notice_every_ns;
  const std::string names = list_of_older_than(work_.now - work_.config.first_notice_ns, road);
  if (names.empty()) return;
  work_.outputs.emplace_back(
      PipelineOutput::Notice{"waiting for " + duration_text(work_.now - oldest_ns) + ": " + names +
                             " (a worker may not have submitted it)"});
}

// The first few of what was submitted by then and is under way.
std::string Patience::list_of_older_than(TimeNs submitted_ns, const Road& road) const {
  std::size_t count = 0;
  std::string names;
  const Operations& operations = work_.operations;
  for (OpIndex index = operations.oldest(); index != kNoOp; index = operations[index].newer) {
    const Op& op = operations[index];
    if (op.submitted_ns > submitted_ns) break;
    if (op.state != OpState::kActive || ++count > kNamesInNotice) continue;
    names += (count > 1 ? "; " : "") + describe(work_.tensors[op.tensor], road);
  }
  if (count > kNamesInNotice) names += "; and " + std::to_string(count - kNamesInNotice) + " more";
  return names;
}

std::string Patience::pending_text(const Road& road) const {
  const std::string names = list_of_older_than(kNever, road);
  if (!inputs_.is_finishing()) return names;
  return names.empty() ? "the end of all workers' inputs (join)"
                       : names + "; then the end of inputs";
}

// "tensor 'x' (8 parts, 3 at push waiting for credit and the connection, 2 at pull waiting for ...)"
std::string Patience::describe(const Tensor& tensor, const Road& road) const {
  std::vector<std::size_t> waiting(road.rows().size());
  for (const PartState& part : tensor.parts) {
    if (part.stage < waiting.size()) ++waiting[part.stage];
  }
  const std::vector<Lack>& lacks = work_.operations[tensor.active].lacks;
  const std::string missing =
      lacks.empty() ? "" : " misses " + workers_text(lacks.back().whom.some());
  std::string text = "tensor '" + tensor.name + "'" + missing + " (" +
                     std::to_string(tensor.parts.size()) +
                     (tensor.parts.size() == 1 ? " part" : " parts");
  for (std::size_t row = 0; row < waiting.size(); ++row) {
    if (waiting[row] == 0) continue;
    text += ", " + std::to_string(waiting[row]) + " at " + std::string(road.rows()[row].name) +
            " waiting for " + std::string(road.rows()[row].waits_for);
  }
  return text + ")";
}

}  // namespace byteps
