#include "worker/flow.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/phrases.h"
#include "base/planted.h"
#include "net/transport.h"

namespace byteps {
namespace {

// Where the worker finds its credit by itself, a connection has so many frames: while one is summed the next is on its
// way. That is what it begins with, and the least.
constexpr std::uint64_t kCreditLeastFrames = 2;
// In all, counted in lightest connections: unless there are more connections, beyond this the light ones have less.
constexpr std::uint64_t kLightestMost = 32;
// Of a worker that has few connections.
constexpr std::uint64_t kCreditMost = 4 << 20;

// To a relay, whatever fits the memory on the way: a part is on its way there until its sum has come from the network.
constexpr std::uint64_t kLocalCredit = 4 << 20;

// Where the worker finds its credit by itself so much may be under way, with what is overtaken by gradients of greater
// priority.
constexpr std::uint64_t kCreditsWithOvertaken = 4;

// On each way, on average: then some way has as much as ends a doze, before the others run dry.
constexpr std::uint64_t kMuchUnanswered = 2 * kDozeBytesMost;
// What passes at once on a way that stalls: of a relay, and of a worker. What a worker sends so is in front of what it
// computes next.
constexpr std::uint32_t kStalledFramesMost = 1 << 10;
constexpr std::uint32_t kOwnStalledFramesMost = 8;
// The first time at a worker. Urgent tensors that overtake others use up the credit for some ten milliseconds, and that
// is no stall.
constexpr TimeNs kOwnStallNs = 250 * kMillisecond;

// A thread that looks 250 times a second costs half a percent of a core.
constexpr TimeNs kPatienceNs = 4 * kMillisecond;

Credit credit_of(const Work& work) {
  const PipelineConfig& config = work.config;
  if (config.credit_bytes > 0) return {config.credit_bytes, config.credit_bytes};
  if (work.is_behind_relays()) {
    const std::uint64_t all = work.shards.size() * kLocalCredit;
    return {all, all};
  }
  const std::uint64_t shard_count = config.placement.shard_count();
  const std::uint64_t frame = credit_cost(config.placement.frame_bytes());
  const std::uint64_t lightest = std::min<std::uint64_t>(config.placement.lightest_count(),
                                                         std::max(shard_count, kLightestMost));
  std::uint64_t least = lightest * kCreditLeastFrames * frame;
  if (config.is_relay) {  // those of a machine begin all together
    const std::uint32_t group = config.groups->group_of(config.self);
    least = std::max(shard_count * frame, least / config.groups->crew_of(group, Members()).size());
  }
  return {least, std::max(2 * least, kCreditMost)};
}

}  // namespace

Flow::Flow(Work& work)
    : work_(work), credit_(credit_of(work)), watches_coding_(work.config.self == WorkerRank(0)) {
  share();
  if (!work.config.autotune) return;
  if (work.config.credit_bytes == 0) {
    tuner_.emplace();
    credit_.set_horizon(tuner_->horizon_ns());
    work.outputs.emplace_back(PipelineOutput::Tuned{
        "autotune: looks for the best credit while training; what it finds is said here, "
        "first after a few GB of gradients"});
  } else {
    work.outputs.emplace_back(PipelineOutput::Tuned{
        "autotune: does nothing, since BYTEPS_CREDIT_BYTES or BYTEPS_SCHEDULING_CREDIT fixes "
        "the credit at " +
        std::to_string(work.config.credit_bytes) + " bytes; unset them to have it found"});
  }
}

// A connection may have as much under way as it has of the tensors: the flows share the worker's card as their bytes
// under way do. With equal flows, a light shard would be done early and a heavy one late.
void Flow::share() {
  const PipelineConfig& config = work_.config;
  const std::uint64_t frame = credit_cost(config.placement.frame_bytes());
  const std::uint64_t least = config.credit_bytes > 0 ? config.credit_frames_min * frame : 0;
  const std::vector<std::uint32_t>& weights = work_.tensors.route().weights();
  const std::uint64_t sum = std::accumulate(weights.begin(), weights.end(), std::uint64_t{0});
  CHECK_GT(sum, 0U) << "there is always a way";
  const std::uint64_t bytes = credit_.bytes();
  for (std::size_t shard = 0; shard < work_.shards.size(); ++shard) {
    const std::uint64_t weight = weights[shard];
    const std::uint64_t share = bytes / sum * weight + bytes % sum * weight / sum;
    const bool has_servers_behind = work_.is_behind_relays() && !config.relays.are_alone;
    const bool is_set = config.credit_bytes > 0 || has_servers_behind;
    const std::uint64_t capacity = is_set ? 0 : work_.shards[shard].capacity_bytes();
    Gate& gate = work_.shards[shard].gate();
    if (capacity > 0) {  // more would only wait
      const std::uint64_t all = std::clamp(capacity, frame, std::max(frame, kCreditMost));
      gate.set_credit(all, all);
    } else {
      const std::uint64_t credit = std::max(least, share);
      gate.set_credit(credit, is_set ? credit : kCreditsWithOvertaken * credit);
    }
  }
}

void Flow::set_capacity(ShardIndex shard, std::uint64_t bytes) {
  if (work_.shards[shard.value].set_capacity(bytes)) share();
}

// One credit is shared by all, so the longest line counts.
void Flow::set_round_trip(ShardIndex shard, TimeNs round_trip_ns) {
  work_.shards[shard.value].set_round_trip(round_trip_ns);
  TimeNs longest_ns = 0;
  for (const ShardWay& way : work_.shards) longest_ns = std::max(longest_ns, way.round_trip_ns());
  const std::uint64_t before = credit_.bytes();
  credit_.set_round_trip(longest_ns >= kLongLineNs ? longest_ns : 0);
  if (credit_.bytes() != before) share();
}

void Flow::free(ShardWay& shard, std::uint64_t cost_bytes, std::int32_t priority) {
  shard.gate().on_answered(cost_bytes, priority);
  if (work_.config.is_relay || has_credit(shard)) {
    end_stall(shard);
  } else if (shard.stall().has_allowed()) {
    shard.stall().allows_ns = kNever;  // the next frame goes in place of this one
  }
  const std::uint64_t before = credit_.bytes();
  credit_.on_answered(cost_bytes, work_.now);
  if (tuner_ && tuner_->on_answered(cost_bytes, credit_.bytes(), work_.now)) {
    credit_.set_horizon(tuner_->horizon_ns());
    if (std::string news = tuner_->take_news(); !news.empty()) {
      work_.outputs.emplace_back(PipelineOutput::Tuned{std::move(news)});
    }
  }
  if (credit_.bytes() != before) share();
}

void Flow::on_answer(const Tensor& tensor, std::uint64_t payload_bytes) {
  if (!watches_coding_) return;
  std::uint64_t line_bytes = 0;  // what tells of the line
  if (tensor.codes == nullptr && payload_bytes >= CodingWatch::kFrameBytesMin) {
    const bool goes_both_ways = work_.gives(tensor.spec) && work_.is_sent_to(tensor.spec);
    line_bytes = goes_both_ways ? payload_bytes : payload_bytes / 2;
  }
  coding_.on_answered(line_bytes, work_.now);
  if (tensor.codes == nullptr) return;
  const auto verdict = coding_.judge(work_.coder.encoded_bytes(), work_.coder.encode_ns());
  if (!verdict) return;
  const std::uint64_t mbit_per_s = verdict->line_bytes_per_ms * 8 / 1000;
  work_.outputs.emplace_back(PipelineOutput::Notice{
      "compression makes exchanges slower here: coding " +
      std::to_string(verdict->coded_bytes >> 20) + " MiB of gradients took " +
      duration_text(verdict->coding_ns) + ", and they would have travelled in " +
      duration_text(verdict->line_ns) + " as they are, at the " + std::to_string(mbit_per_s) +
      " Mbit/s of what was not coded. Use Compression.none and unset BYTEPS_COMPRESSION, or choose "
      "one that is coded faster: bps doctor says how fast each is"});
}

void Flow::on_blocked(ShardWay& shard, std::uint64_t cost_bytes) {
  shard.stall().cost_bytes = cost_bytes;
  if (shard.stall().allows_ns == kNever) begin_stall(shard);
  credit_.on_blocked();
  if (tuner_ && shard.capacity_bytes() == 0) tuner_->on_blocked();
}

// Before a frame passes without credit. The rate may be that of answers which waited for others; so it has a limit.
TimeNs Flow::patience_with_way() const {
  const TimeNs least = work_.config.stalled_ns;
  const std::uint64_t rate = credit_.rate();
  if (rate == 0) return least;
  std::uint64_t unanswered_bytes = 0;
  for (const ShardWay& shard : work_.shards) unanswered_bytes += shard.gate().unanswered_bytes();
  const auto usual = static_cast<TimeNs>(unanswered_bytes * 1000 / rate) * kMicrosecond;
  return std::min(least + 2 * usual, 10 * least);
}

// What a long one needs the next one does not begin with.
void Flow::end_exchange() {
  const std::uint64_t before = credit_.bytes();
  credit_.on_idle();
  if (credit_.bytes() != before) share();
}

void Flow::on_idle() {
  end_exchange();
  coding_.on_idle();
  if (tuner_) tuner_->on_idle();
}

TimeNs Flow::patience() const {
  if (!work_.config.is_relay && !work_.is_behind_relays()) return 0;
  std::uint64_t unanswered_bytes = 0;
  bool is_any_idle = false;
  bool is_any_blocked = false;
  for (const ShardWay& shard : work_.shards) {
    unanswered_bytes += shard.gate().unanswered_bytes();
    is_any_idle |= shard.gate().unanswered_bytes() == 0;
    is_any_blocked |= !shard.gate().empty();
  }
  const bool is_busy = work_.config.is_relay
                           ? is_any_blocked && !is_any_idle
                           : unanswered_bytes >= work_.shards.size() * kMuchUnanswered;
  return is_busy ? kPatienceNs : 0;
}

std::uint64_t Flow::frame_cost() const {
  return credit_cost(work_.config.placement.frame_bytes());
}

bool Flow::has_credit(ShardWay& shard) const {
  return shard.gate().has_credit(frame_cost());
}

// What those faults do is made good by a worker's stalls; the simulator is to find it without them.
void Flow::begin_stall(ShardWay& shard) {
  const bool is_planted =
      PLANTED(wanted_once) || PLANTED(credit_leaked) || PLANTED(wanted_not_passed_on);
  if (is_planted && !work_.config.is_relay) return;
  ShardWay::Stall& stall = shard.stall();
  stall.ticket = shard.gate().front();
  const bool is_patient = !work_.config.is_relay && !stall.has_allowed();
  stall.allows_ns = work_.now + (is_patient ? kOwnStallNs : patience_with_way());
  next_stall_ns_ = std::min(next_stall_ns_, stall.allows_ns);
}

void Flow::end_stall(ShardWay& shard) {
  shard.stall() = {};
  shard.gate().allow_up_to(0);
}

void Flow::tick() {
  if (work_.now < next_stall_ns_) return;
  const std::uint32_t frames_most =
      work_.config.is_relay ? kStalledFramesMost : kOwnStalledFramesMost;
  next_stall_ns_ = kNever;
  for (ShardWay& shard : work_.shards) {
    ShardWay::Stall& stall = shard.stall();
    if (stall.allows_ns > work_.now) {
      next_stall_ns_ = std::min(next_stall_ns_, stall.allows_ns);
      continue;
    }
    Gate& gate = shard.gate();
    if (!work_.config.is_relay && (gate.empty() || gate.front() != stall.ticket)) {
      end_stall(shard);  // that part has gone on, or what is more urgent came
      if (!gate.empty()) begin_stall(shard);
      continue;
    }
    const std::uint64_t more = std::max(stall.frames * frame_cost(), stall.cost_bytes);
    gate.allow_up_to(gate.unanswered_bytes() + more);
    stall.frames = std::min(2 * stall.frames, frames_most);
    stall.allows_ns = kNever;  // until the next frame has to wait
  }
}

void Flow::on_shard_down(ShardWay& shard) {
  end_stall(shard);
  end_exchange();
  if (tuner_) tuner_->on_shard_down();
}

}  // namespace byteps
