// Patience: what a worker does while nothing comes. It tells the user what it waits for, and gives up waiting for
// workers that have left the job. A worker that left may have contributed before, and its sums may be on their way,
// however slowly; so it is given up only for what a shard says to miss of it, after departed_ns without an answer.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/members.h"
#include "base/status.h"
#include "net/wire.h"
#include "worker/inputs.h"
#include "worker/push.h"
#include "worker/road.h"
#include "worker/work.h"

namespace byteps {

class Patience {
 public:
  Patience(Work& work, Push& push, const Inputs& inputs)
      : work_(work), push_(push), inputs_(inputs) {}

  // An operation was submitted; this worker has no more inputs; one has left; an answer came.
  void on_submitted();
  void on_finishing();
  void on_worker_left(WorkerRank rank);
  void on_answer() { answers_came_ = true; }
  // Whose contributions to this part are late, as its shard sees it.
  void on_missing(ShardIndex shard, const wire::Header& header, const Members& whom);

  // Time has passed; before the following.
  void tick();
  struct Verdict {
    TensorIndex tensor = kNoTensor;  // kNoTensor: the end of inputs
    Status why;
  };
  // What must end because somebody has left, when that is due.
  std::vector<Verdict> give_up();
  // Tells the user what is under way for long, when that is due.
  void notice(const Road& road);
  TimeNs next_deadline() const { return std::min(next_notice_ns_, next_departed_ns_); }

  // What is pending, for people: the first few, with whom they miss.
  std::string pending_text(const Road& road) const;

 private:
  struct Departed {
    WorkerRank rank;
    TimeNs since_ns = 0;
  };
  bool has_departed_member(const Tensor& tensor) const;
  const Departed* missed_by(const Op& op) const;
  bool misses_shard(const Tensor& tensor) const;
  const Departed* whose_relay(ShardIndex shard) const;
  void wake(TimeNs at) { next_departed_ns_ = std::min(next_departed_ns_, at); }
  bool is_due(TimeNs deadline_ns);
  void give_up_inputs(std::vector<Verdict>& verdicts);
  std::string list_of_older_than(TimeNs submitted_ns, const Road& road) const;
  std::string describe(const Tensor& tensor, const Road& road) const;

  Work& work_;
  Push& push_;
  const Inputs& inputs_;
  std::vector<Departed> departed_;  // in the order they left
  bool answers_came_ = false;       // since the last tick
  TimeNs answered_ns_ = 0;          // when the last of them came, while one has left
  TimeNs unheard_ns_ = 0;           // when the end of all inputs could not be heard last
  TimeNs next_notice_ns_ = kNever;
  TimeNs next_departed_ns_ = kNever;
};

}  // namespace byteps
