// RelayUnit: the relay of a worker's process with all that belongs to it, in the order of construction.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "app/process.h"
#include "base/config.h"
#include "base/log.h"
#include "loop/clock.h"
#include "loop/mailbox.h"
#include "loop/runner.h"
#include "net/transport.h"
#include "relay/relay_loop.h"
#include "worker/relay_port.h"
#include "worker/traffic_counters.h"

namespace byteps {

class RelayUnit {
 public:
  // Where workers of this machine may sum first; null where they do not, or where the relay cannot listen, which is
  // told. `worker` is woken by what it says, `counters` are the door's. All references must outlive it.
  static std::unique_ptr<RelayUnit> make(const Config& config, Waiter& worker,
                                         TrafficCounters& counters, const Log& log,
                                         const AbsenceSink& absences) {
    const JobConfig& job = config.job;
    if (!job.sums.locally || job.scheduler_host.empty() || job.worker_count < 2) return nullptr;
    if (job.machine == 0) return nullptr;
    auto listening = TransportMaker(config, Role::kWorker, log).make({{"127.0.0.1", 0}});
    if (listening.is_ok()) {
      return std::make_unique<RelayUnit>(config, std::move(listening).value(), worker, counters,
                                         log, absences);
    }
    LOG(log, kWarning)
        << "cannot listen for the other workers of this machine, so the job's workers do not sum "
           "machine by machine: "
        << listening.status().message();
    return nullptr;
  }
  RelayUnit(const Config& config, std::unique_ptr<ProcessTransport> transport, Waiter& worker,
            TrafficCounters& counters, const Log& log, const AbsenceSink& absences)
      : transport_(std::move(transport)),
        commands_(kWordsMax, &transport_->waiter()),
        notices_(kWordsMax, &worker),
        loop_(config, *transport_, port(), counters, log, absences) {}

  RelayPort port() {
    return {.commands = &commands_,
            .notices = &notices_,
            .listening_port = transport_->listening().front().port,
            .residuals = &residuals_};
  }
  void start(Clock& clock, TimeNs spin_ns) {
    runner_.emplace("byteps-relay", loop_, transport_->waiter(), clock, spin_ns);
  }
  // Waits for its thread, at most so long. False: it still runs; perhaps it stands still for ever.
  bool join_within(TimeNs at_most_ns) { return runner_->join_within(at_most_ns); }

 private:
  static constexpr std::size_t kWordsMax =
      1024;  // they say a few in their lives, and one for each loss

  std::unique_ptr<ProcessTransport> transport_;
  Mailbox<RelayCommand> commands_;
  Mailbox<RelayNotice> notices_;
  Residuals residuals_;
  RelayLoop loop_;
  std::optional<Runner> runner_;
};

}  // namespace byteps
