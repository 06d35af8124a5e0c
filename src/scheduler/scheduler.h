// Scheduler: the Actor around RosterKeeper. It moves messages between the core and a Transport, and
// writes the log.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/config.h"
#include "base/log.h"
#include "base/quiet_lines.h"
#include "loop/actor.h"
#include "loop/mailbox.h"
#include "member/outbox.h"
#include "net/transport.h"
#include "scheduler/roster.h"

namespace byteps {

class Scheduler final : public Actor {
 public:
  // `transport` is already listening at the job's scheduler address and outlives the Scheduler.
  // Uses config.job (counts: what is expected before a worker said otherwise), config.flow and
  // config.timeout.
  Scheduler(const Config& config, Transport& transport, Log log);

  std::size_t turn(TimeNs now) override;
  TimeNs next_deadline() const override;
  // The job is over, all members know it or failure_ns passed, and no payload is lent.
  bool finished() const override;
  // The job fails: everyone hears why.
  void failed(const Status& why) override;

  // How the job ended: Ok when all workers left, otherwise why it failed. Ok while it still runs.
  Status outcome() const { return keeper_.outcome(); }
  Epoch epoch() const { return keeper_.epoch(); }
  // For the simulator.
  bool is_vacant(std::uint32_t rank) const { return keeper_.seats().is_vacant(rank); }

  // Ends the job (a signal came): everyone hears why. Any thread; wake the actor afterwards, and go on turning it
  // until it is finished().
  void request_stop() { stop_requested_.store(true, std::memory_order_release); }

  // The process of a worker has ended, as whoever started it saw: `how` follows its name in a sentence ("was ended by
  // signal SIGKILL"). May be said again, and of a worker that is not here. Any thread; wake the actor afterwards.
  // kAgain: too much waits; then it is noticed as it is without this.
  Status worker_ended(std::uint32_t rank, std::string how) {
    return ended_workers_.post({WorkerRank(rank), std::move(how)});
  }

 private:
  struct EndedWorker {
    WorkerRank rank;
    std::string how;
  };

  void hear_of_ended_workers(TimeNs now);
  void handle(const Event& event, TimeNs now);
  std::size_t carry_out(TimeNs now);
  void send_heartbeats(TimeNs now);
  bool may_go(const KeeperOutputs::value_type& output);
  void send(KeeperOutput::Send& message, TimeNs now);
  void write(const KeeperOutput::Notice& notice, TimeNs now);
  void record(const Event& event, TimeNs now) const;
  void record(const KeeperOutput::News& news, TimeNs now) const;
  void record_sent(const KeeperOutput::Send& message);
  void leave_behind();

  Transport& transport_;
  Log log_;
  RosterKeeper keeper_;
  Outbox outbox_;
  QuietLines<KeeperOutput::kSorts> quiet_;
  KeeperOutputs out_;
  std::size_t next_out_ = 0;  // those before it are carried out
  KeeperOutputs beats_;
  std::size_t sends_left_ = 0;  // in this turn, as the next
  std::size_t sent_bytes_left_ = 0;
  int turns_without_tick_ = 0;
  SharedBytes recorded_roster_;
  std::string recorded_roster_text_;
  std::vector<Event> events_;
  TimeNs now_ = 0;          // of this turn
  TimeNs due_ns_ = kNever;  // when turn() wanted to be called again
  bool left_behind_ = false;

  // Set by any thread, read by the loop.
  std::atomic<bool> stop_requested_{false};
  Mailbox<EndedWorker> ended_workers_;
};

}  // namespace byteps
