// Mischief: the faults of a world. It knows the processes that live, and does to them and to the network between them
// what the plan allows, so hard that the job can just bear it; and once, in some worlds, more than that.
//
// What a job must bear comes from the failure timeout F and the heartbeats, a sixth of it apart: whoever stands still
// or is cut off for less than F, with time for a sign of life before the next such thing (take_quiet), is not lost.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "sim/cluster.h"
#include "sim/ledger.h"
#include "sim/plan.h"
#include "sim/trace.h"

namespace byteps::sim {

// A process that lives.
struct Living {
  std::string who;                 // for people
  std::vector<std::string> names;  // what an error may call it
  Role role = Role::kWorker;
  HostIndex host = 0;
  bool is_needed = true;  // by every handle that is pending anywhere
  std::vector<Thread> threads;
  // Of them those that sum, and what an error says of one that stands still.
  struct Summer {
    std::size_t thread = 0;
    std::string name;
  };
  std::vector<Summer> summers;
  SimDevice* gpu = nullptr;  // null: it has none
  std::function<void()> die;
  std::function<void(TimeNs after)>
      start_anew;                   // it dies, and its like begins so long after; null: it does not
  std::function<void()> stay_away;  // it dies, and its like begins if it must; null likewise
  // It dies, and the job goes on without it; `is_told`: the scheduler hears of its end from whoever has started it.
  // Null: it cannot, or is lost already.
  std::function<void(bool is_told)> lose;
  // Of one that is to be lost: not any more, for it leaves the job, and may serve for others that are lost. Null:
  // never.
  std::function<bool()> is_spared;
  std::uint32_t rank = 0;       // of a worker
  std::function<void()> leave;  // it is told to stop; null: that would end the job
  std::function<void(TimeNs until)> stand_still;  // beside its seats

  // Of its transports.
  std::vector<std::uint32_t> numbers() const;
};

class Mischief {
 public:
  using Census = std::function<std::vector<Living>()>;

  // `plan` may get a later limit. All must outlive the mischief.
  Mischief(SimCluster& cluster, WorldPlan& plan, Ledger& ledger, Trace& trace, Prng prng,
           Census census);

  // Before the first step.
  void begin();
  // After each step. `all_work`: every worker is in the job, `some_work`: and one has not done all its steps;
  // `in_last`: in its last generation.
  void look(bool all_work, bool some_work, bool in_last);
  // This worker will not come when the others do.
  void miss(std::uint32_t rank);

  // This happened.
  void note(Fault fault);
  // A connection was accepted.
  void connected(std::uint32_t from, std::uint32_t to);

  std::uint64_t count() const { return count_; }
  const Faults& happened() const { return happened_; }

 private:
  using Pair = SimNetwork::Pair;

  void schedule();
  void do_something();
  void arrived(std::uint32_t from, std::uint32_t to, std::span<const std::byte> header);

  // What the job must bear.
  void disturb(Pair pair);
  void pause();
  void pause_one_actor();
  void partition();
  void slow_down();
  void slow_device();
  void lose_one(Fault fault, Role role);
  void lose_worker();
  std::vector<Living> losable() const;
  void drain_server();
  bool take_quiet(Pair pair, TimeNs lasts);
  bool take_quiet(const std::vector<std::uint32_t>& numbers, TimeNs lasts);

  // What it need not.
  void do_deadly();
  void kill(const Living& victim);
  void kill_in_turn(const Living& victim, std::function<void(const Living&)> kill);
  void stop(const Living& victim);
  void stick();
  void break_device();
  void cut_off();
  void lose(Loss loss, TimeNs lasts);

  SimNetwork::Wall random_wall();
  // Whether these two cannot do without each other.
  static bool depend(Role a, Role b);
  void pause_until(const Living& process, TimeNs until);
  std::vector<Living> living_with_devices() const;
  TimeNs up_to(TimeNs most) {
    return static_cast<TimeNs>(prng_.below(static_cast<std::uint64_t>(most) + 1));
  }
  TimeNs between(TimeNs least, TimeNs most) { return least + up_to(most - least); }
  // Many short ones, some as long as can be.
  TimeNs length(TimeNs most) { return up_to(prng_.chance(0.5) ? most : most / 50); }
  TimeNs failure_ns() const { return plan_.config.timeout.failure_ns; }
  // Who stands still notices no loss before it goes on, and then begins to wait: by then all who do have gone on.
  TimeNs watched_ns() const { return std::max(cluster_.now(), paused_until_ns_); }

  SimCluster& cluster_;
  WorldPlan& plan_;
  Ledger& ledger_;
  Trace& trace_;
  Prng prng_;
  const Census census_;

  bool ended_ = false;       // no more faults
  bool deadly_due_ = false;  // still to be done
  bool all_work_ = false;
  bool some_work_ = false;
  bool in_last_ = false;
  std::map<std::pair<std::uint32_t, std::uint32_t>, TimeNs> disturbed_until_;
  TimeNs next_untold_ns_ =
      0;  // then the scheduler has given up all that were lost, and may be left by another
  TimeNs paused_until_ns_ = 0;  // the pauses that the job must bear
  std::uint64_t count_ = 0;
  Faults happened_;
};

}  // namespace byteps::sim
