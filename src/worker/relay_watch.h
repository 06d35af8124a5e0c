// RelayWatch: a worker's side of what it and the relay beside it say to each other (relay_port.h).
//
// The worker's heartbeats speak for the relay as well, which is a thread of its own. So from the job's beginning on the
// relay is asked for a sign of life as often as one is sent; if it has given none for the failure timeout, the job
// cannot go on: whoever waits for a sum there would otherwise wait for ever.
#pragma once

#include <vector>

#include "base/config.h"
#include "base/ids.h"
#include "base/status.h"
#include "base/time.h"
#include "member/sign_of_life.h"
#include "net/wire.h"
#include "worker/relay_port.h"

namespace byteps {

class RelayWatch {
 public:
  RelayWatch(RelayPort port, const TimeoutConfig& timeout) : port_(port), timeout_(timeout) {}
  Residuals* residuals() const { return port_.residuals; }

  bool exists() const { return port_.commands != nullptr; }
  // This worker's tensors go to relays, its own among them.
  void begin(const wire::Roster& roster, const Incarnation& incarnation,
             const TimeoutConfig& timeout, TimeNs now);
  // Another process serves a shard.
  void amend(const wire::Roster& roster);
  // Another worker has left the job.
  void note_left(WorkerRank worker);
  // This worker is about to leave. Until has_settled() others may lack sums that only the relay has.
  void ask_to_settle();
  bool has_settled() const { return is_settled_ || !has_begun_; }
  bool has_begun() const { return has_begun_; }
  bool is_ready() const { return is_ready_; }
  // Takes what it has said, and asks for a sign of life. Not ok, once for each reason: the job cannot go on. `late_ns`:
  // so much later than planned it is called.
  Status look(TimeNs late_ns, TimeNs now);
  // The job is over here because of `why`; nothing more is asked.
  void end(const Status& why);
  TimeNs next_deadline() const { return next_question_ns_; }

  // How long to wait for its thread after end(); 0: it stands still, perhaps for ever.
  TimeNs patience_ns() const { return stands_still_ ? 0 : 2 * timeout_.failure_ns; }

 private:
  Status take_notices();
  Status watch(TimeNs late_ns, TimeNs now);
  void post(RelayCommand&& command);

  const RelayPort port_;
  TimeoutConfig timeout_;  // the job's, from begin() on
  WorkerRank self_;
  bool has_begun_ = false;
  bool is_ready_ = false;
  bool is_asked_to_settle_ = false;
  bool is_settled_ = false;
  bool stands_still_ = false;
  SignOfLife sign_;
  TimeNs next_question_ns_ = kNever;  // from begin() to end()
  std::vector<RelayNotice> notices_;
};

}  // namespace byteps
