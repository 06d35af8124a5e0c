// FormerJob: what was there before the world's job, with its key, ports, ranks and names of tensors. Its scheduler and
// servers have died, and some of its workers live on until they notice: they look for their servers, and find those of
// the world's job in their place. Nothing of what they have still to push may get into its sums.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/prng.h"
#include "sim/cluster.h"
#include "sim/plan.h"

namespace byteps::sim {

class FormerJob {
 public:
  // Begins at once. `over` is called when scheduler and servers are dead. All must outlive the former job.
  FormerJob(SimCluster& cluster, const WorldPlan& plan, Prng prng, std::function<void()> over);
  ~FormerJob();
  FormerJob(const FormerJob&) = delete;
  FormerJob& operator=(const FormerJob&) = delete;

  const Incarnation& incarnation() const { return config_.job.incarnation; }
  // After each step: processes that are finished exit.
  void look();
  // None of its processes is left.
  bool is_gone() const { return is_over_ && workers_.empty(); }
  std::string text() const;

 private:
  // One of its worker processes; the memory outlives it.
  struct Member {
    std::uint32_t rank = 0;
    bool has_submitted = false;
    std::vector<std::vector<std::byte>> memory;
    std::unique_ptr<WorkerProcess> process;
  };

  void after_turn(Member& member);
  void submit_all(Member& member);
  void submit(Member& member, const TensorPlan& tensor);
  void end();

  SimCluster& cluster_;
  const WorldPlan& plan_;
  Prng prng_;
  const std::function<void()> over_;
  Config config_;
  std::unique_ptr<SchedulerProcess> scheduler_;
  std::vector<std::unique_ptr<ServerProcess>> servers_;
  std::vector<std::unique_ptr<Member>> workers_;
  bool is_ending_ = false;
  bool is_over_ = false;
};

}  // namespace byteps::sim
