// Trainer: a simulated training process. It joins, carries out its steps at its own pace, checks every result, and
// leaves; then it may begin a new life in the next generation.
//
// How it looks for writers that come too late: memory stands between guards; when a handle ends, its memory is
// scribbled over and looked at again before it is used anew, and at the end of the world.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/prng.h"
#include "sim/cluster.h"
#include "sim/fed_back.h"
#include "sim/ledger.h"
#include "sim/plan.h"
#include "sim/trace.h"

namespace byteps::sim {

// Memory of a tensor between two guards.
class GuardedMemory {
 public:
  explicit GuardedMemory(std::size_t bytes);
  std::span<std::byte> span() { return std::span(bytes_).subspan(kGuardBytes, size_); }
  // Fills it with what nobody else would write, and remembers that.
  void scribble(std::uint64_t seed);
  // Guards are whole, and if it was scribbled over, so is that.
  bool is_whole() const;
  void use() { scribbled_ = false; }

 private:
  static constexpr std::size_t kGuardBytes = 64;
  std::byte scribble_at(std::size_t i) const;
  std::size_t size_;
  std::vector<std::byte> bytes_;
  bool scribbled_ = false;
  std::uint64_t seed_ = 0;
};

class Trainer {
 public:
  Trainer(SimCluster& cluster, Ledger& ledger, Trace& trace, std::uint32_t rank);

  // Begins its life in the next generation after the plan's gap.
  void start();

  // All steps of this generation are done and all handles have ended; it leaves when release() is called.
  bool is_ready_to_leave() const { return state_ == State::kReady; }
  void release();
  // Its process dies now, if it has one; it does not come back.
  void die();
  bool has_process() const { return process_ != nullptr; }
  bool is_working() const { return state_ == State::kWorking; }
  // It has a process that has not begun to leave: the job needs it.
  bool is_needed() const {
    return process_ != nullptr && state_ != State::kLeaving && state_ != State::kStarting;
  }
  bool is_in_job() const { return state_ == State::kWorking || state_ == State::kReady; }
  // Its process does nothing until then.
  void stand_still(TimeNs until) { paused_until_ns_ = std::max(paused_until_ns_, until); }
  WorkerProcess* process() { return process_.get(); }
  // All its lives are over.
  bool is_done() const { return state_ == State::kDone; }
  std::uint32_t generation() const { return generation_; }
  std::uint64_t reconnects() const { return reconnects_; }  // of lives that are over

  // After each step once somebody is lost: its process may end without a turn of its own (WorkerProcess::is_finished).
  void look();
  // Handles that should have ended by now because of what is lost.
  void check_time();
  // After the end of the world: memory that was written to too late.
  void check_memory();
  // What it waits for, for people.
  std::string text() const;

 private:
  enum class State : std::uint8_t { kStarting, kJoining, kWorking, kReady, kLeaving, kDone };
  struct Pending {
    HandleId handle;
    TimeNs begun_ns = 0;
    bool is_barrier = false;
    bool is_finish = false;
    std::uint32_t barrier = 0;
    std::uint32_t tensor = 0;
    std::uint32_t round = 0;
    std::uint32_t inputs = 0;         // in which generation of them
    GuardedMemory* input = nullptr;   // the output, when in place; null when it gives none
    GuardedMemory* output = nullptr;  // null when it gets none
    const StepPlan* step = nullptr;   // of a tensor
    std::uint64_t kernel = 0;         // on a device: what makes its input
    bool is_alone = false;            // on a device, and nobody else takes part
  };

  const GenerationPlan& plan() const { return ledger_.plan().generations[generation_]; }
  const WorkerPlan& own_plan() const { return plan().workers[rank_]; }

  void begin_life();
  void after_turn();
  void go_on();
  bool is_awaited(StepPlan::Kind wait) const;
  void next_step();
  void begin_step(std::uint32_t life);
  void submit(const StepPlan& step);
  void launch(const StepPlan& step, Pending& operation, Submission& submission);
  void begin_barrier();
  void finish_inputs();
  GuardedMemory* memory_for(std::uint32_t tensor, bool output, std::size_t bytes);
  void look_for_ends();
  void ended(Pending& operation, const Status& status);
  void check_result(Pending& operation);
  void free_all(const Pending& operation);
  void free_memory(GuardedMemory& memory, const std::string& what);
  void end_life();
  void job_failed(const Status& why);
  void fail(Invariant invariant, const std::string& text);
  std::string describe(const Pending& operation) const;

  SimCluster& cluster_;
  Ledger& ledger_;
  Trace& trace_;
  const std::uint32_t rank_;
  Prng lot_;  // of the lives of its processes

  State state_ = State::kStarting;
  std::uint32_t generation_ = 0;
  std::uint32_t lives_ = 0;
  struct Memory {
    std::vector<std::unique_ptr<GuardedMemory>> all;
    // By tensor and whether it is an output.
    std::map<std::pair<std::uint32_t, bool>, GuardedMemory*> idle;
  };
  Memory memory_;     // outlives the process that lends it
  FedBack fed_back_;  // likewise
  std::unique_ptr<WorkerProcess> process_;
  std::size_t step_ = 0;
  TimeNs paused_until_ns_ = 0;
  const StepPlan* waits_ = nullptr;  // what for; null: it does not wait
  bool failed_ = false;              // this life's job
  TimeNs job_end_ns_ = kNever;       // when it had ended for this process
  std::uint32_t barriers_ = 0;
  std::vector<Pending> operations_;  // not ended
  std::uint64_t scribbles_ = 0;
  std::uint64_t reconnects_ = 0;
};

}  // namespace byteps::sim
