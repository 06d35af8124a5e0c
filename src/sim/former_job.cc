#include "sim/former_job.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace byteps::sim {

FormerJob::FormerJob(SimCluster& cluster, const WorldPlan& plan, Prng prng,
                     std::function<void()> over)
    : cluster_(cluster), plan_(plan), prng_(prng), over_(std::move(over)), config_(plan.config) {
  // One worker more than the world's job: it submits nothing, so the others' pushes stay without an answer.
  const std::uint32_t worker_count = plan_.config.job.worker_count + 1;
  config_.job.worker_count = worker_count;
  config_.recovers = false;  // or what is left of it would have our scheduler go on with it
  // Half of them: the new scheduler is elsewhere, and what is left looks for the old one in vain.
  if (prng_.chance(0.5)) config_.job.scheduler_host = "former-scheduler";
  for (std::byte& byte : config_.job.incarnation) byte = static_cast<std::byte>(prng_.below(256));
  scheduler_ = std::make_unique<SchedulerProcess>(cluster_, config_, 0);
  for (std::uint32_t i = 0; i < plan_.shard_counts.size(); ++i) {
    Config config = config_;
    config.job.life = prng_.next();
    servers_.push_back(
        std::make_unique<ServerProcess>(cluster_, config, i, 1 + i, plan_.shard_counts[i]));
  }
  for (std::uint32_t rank = 0; rank < worker_count; ++rank) {
    Member& member = *workers_.emplace_back(std::make_unique<Member>());
    member.rank = rank;
    Config config = config_;
    plan_.introduce(rank, config.job);
    config.job.life = prng_.next();
    config.flow = plan_.generations[0].workers[rank % plan_.config.job.worker_count].flow;
    const std::string name = "former worker " + std::to_string(rank);
    member.process = std::make_unique<WorkerProcess>(
        cluster_, config, name, "worker-" + std::to_string(rank) + ":0", plan_.worker_host(rank),
        [this, &member] { after_turn(member); });
  }
}

FormerJob::~FormerJob() = default;

void FormerJob::after_turn(Member& member) {
  if (!member.has_submitted && member.process->door.membership().state().is_ok())
    submit_all(member);
  const bool all = std::all_of(workers_.begin(), workers_.end(),
                               [](const auto& each) { return each->has_submitted; });
  if (!all || is_ending_) return;
  is_ending_ = true;
  const auto while_ns = prng_.below(static_cast<std::uint64_t>(config_.timeout.failure_ns / 20));
  cluster_.at(cluster_.now() + static_cast<TimeNs>(while_ns), [this] { end(); });
}

void FormerJob::submit_all(Member& member) {
  member.has_submitted = true;
  if (member.rank + 1 == config_.job.worker_count) return;
  for (const TensorPlan& tensor : plan_.generations[0].tensors) {
    if (tensor.facts.has_member(member.rank)) submit(member, tensor);
  }
}

void FormerJob::submit(Member& member, const TensorPlan& tensor) {
  TensorFacts facts = tensor.facts;
  facts.value_seed = prng_.next();  // values that the world's job does not have
  std::vector<std::byte>& memory = member.memory.emplace_back(facts.bytes());
  if (facts.gives(member.rank)) {
    memory = contribution(facts, 0, member.rank, config_.job.worker_count);
  }
  Submission submission;
  submission.name = facts.name;
  submission.input = memory.data();
  submission.output = memory.data();
  submission.element_count = facts.element_count;
  submission.dtype = static_cast<std::uint32_t>(facts.dtype);
  submission.operation = static_cast<std::uint32_t>(facts.operation);
  submission.root = facts.root;
  submission.root_only = facts.root_only;
  submission.scale = facts.scale;
  submission.members = facts.members.empty() ? nullptr : facts.members.data();
  submission.member_count = static_cast<std::uint32_t>(facts.members.size());
  submission.priority = tensor.priority;
  submission.once = tensor.once;
  CHECK(member.process->door.submit(submission).is_ok());
}

// All but some workers die.
void FormerJob::end() {
  scheduler_.reset();
  servers_.clear();
  const std::size_t spared =
      prng_.below(workers_.size() - 1);  // at least one, and not the one that submits nothing
  for (const auto& member : workers_) {
    const bool lives = member->rank + 1 < config_.job.worker_count &&
                       (member->rank == spared || prng_.chance(0.5));
    if (!lives) member->process.reset();
  }
  std::erase_if(workers_, [](const auto& member) { return member->process == nullptr; });
  is_over_ = true;
  over_();
}

void FormerJob::look() {
  if (!is_over_) return;
  std::erase_if(workers_, [](const auto& member) { return member->process->is_finished(); });
}

std::string FormerJob::text() const {
  return std::to_string(workers_.size()) + " workers of the former job are left";
}

}  // namespace byteps::sim
