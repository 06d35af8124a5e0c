// byteps_scheduler: knows who is in the job. One per job; see docs/launch.md.
#include <atomic>
#include <cstdio>
#include <memory>
#include <string_view>
#include <utility>

#include <unistd.h>

#include "app/arguments.h"
#include "app/death_reader.h"
#include "app/flight_file.h"
#include "app/process.h"
#include "base/limits.h"
#include "loop/clock.h"
#include "loop/log_writer.h"
#include "loop/runner.h"
#include "loop/signal_watch.h"
#include "scheduler/scheduler.h"

namespace {

constexpr const char* kHelp =
    R"(byteps_scheduler: knows who is in a job: gives ranks, notices who is gone, meets at barriers.

One per job. It moves no tensors; any machine will do. Start it before, after or between the others.

Settings come from the environment (docs/env.md):
  DMLC_PS_ROOT_URI    address of this machine, as the others reach it
  DMLC_PS_ROOT_PORT   port to listen at
  DMLC_NUM_WORKER     number of worker machines
  DMLC_NUM_SERVER     number of servers
  BYTEPS_JOB_KEY      secret of the job, equal for all its processes

Example:
  DMLC_PS_ROOT_URI=10.0.0.1 DMLC_PS_ROOT_PORT=9000 DMLC_NUM_WORKER=2 DMLC_NUM_SERVER=2 byteps_scheduler

With --deaths-on-stdin it hears on its standard input which workers have ended, a line for each ("worker 3 was ended by
signal SIGKILL"), as bpslaunch --on-worker-loss continue tells it: then nobody has to wait until their silence shows it.

Exit codes: 0 the job ended well; 1 it failed (the reason is on standard error); 2 bad settings; 3 port in use;
4 members have had a later scheduler: start it again, and it goes on (BYTEPS_RECOVERY).
)";

byteps::Status check_members(const byteps::JobConfig& job) {
  return byteps::check_descriptors(
      byteps::descriptors_of_scheduler(job.worker_count, job.server_count), job.descriptors,
      std::to_string(job.worker_count) + " workers and " + std::to_string(job.server_count) +
          " servers");
}

constexpr std::string_view kDeathsOnStdin = "--deaths-on-stdin";

std::unique_ptr<byteps::DeathReader> reader_of_deaths(byteps::Scheduler& scheduler,
                                                      byteps::Waiter& waiter,
                                                      const byteps::Log& log) {
  const auto tell = [&scheduler, &waiter](byteps::Death death) {
    const byteps::Status told = scheduler.worker_ended(death.rank, std::move(death.how));
    waiter.wake();
    return told;
  };
  return std::make_unique<byteps::DeathReader>(STDIN_FILENO, tell, log);
}

int run(bool hears_of_deaths) {
  using namespace byteps;
  LogWriter writer;
  FlightFile flight(Role::kScheduler, process_environment());
  const Result<ParsedEnvironment> environment =
      parse_environment(Role::kScheduler, process_environment());
  if (!environment.is_ok()) {
    const Status why = flight.recorder().with_path("settings", environment.status());
    std::fprintf(stderr, "byteps_scheduler: %s\n", why.message().c_str());
    return kExitBadSettings;
  }
  const Result<Config> drawn =
      with_lot(with_descriptors(environment.value().config, Role::kScheduler), Role::kScheduler);
  const Status possible = drawn.is_ok() ? check_members(drawn.value().job) : drawn.status();
  if (!possible.is_ok()) {
    const Status why = flight.recorder().with_path("settings", possible);
    std::fprintf(stderr, "byteps_scheduler: %s\n", why.message().c_str());
    return kExitBadSettings;
  }
  const Config& config = drawn.value();
  const Log log("scheduler", config.log_level, writer.sink(), &flight.recorder());
  for (const SettingWarning& warning : environment.value().warnings) {
    LOG(log, kWarning) << warning.text;
  }

  const Endpoint at{listening_host(config.job.scheduler_host), config.job.scheduler_port};
  auto transport = TransportMaker(config, Role::kScheduler, log).make({at});
  if (!transport.is_ok()) {
    const Status why = cannot_listen(
        transport.status(), " at port " + std::to_string(at.port) + " (DMLC_PS_ROOT_PORT)");
    LOG(log, kError) << log.left_behind("port", why).message();
    return kExitPortInUse;
  }
  ProcessTransport& listening = *transport.value();
  MonotonicClock clock;
  std::atomic<bool> stop{false};
  SignalWatch signals(stop,
                      listening.waiter());  // before anybody knows that there is somebody to stop
  LOG(log, kInfo) << "listening at " << listening.listening().front().text();

  Scheduler scheduler(config, listening, log);
  const auto deaths =
      hears_of_deaths ? reader_of_deaths(scheduler, listening.waiter(), log) : nullptr;
  run_actor(scheduler, listening.waiter(), clock, stop);
  if (stop.load()) {
    // A signal: tell everyone why, then end as for any other failure of the job.
    record_signal(log, signals.received());
    scheduler.request_stop();
    const std::atomic<bool> never{false};
    run_actor(scheduler, listening.waiter(), clock, never);
  }
  if (scheduler.outcome().is_because_of(CauseKind::kReplaced)) return kExitReplaced;
  if (!scheduler.outcome().is_ok()) say_events(log, scheduler.outcome());
  if (signals.received() != 0) return 128 + signals.received();
  // Why the job failed was logged when it did.
  return scheduler.outcome().is_ok() ? kExitOk : kExitJobFailed;
}

}  // namespace

int main(int argc, char** argv) {
  byteps::ignore_broken_pipes();
  if (argc == 2 && argv[1] == kDeathsOnStdin) return run(true);
  const int code = byteps::handle_arguments(argc, argv, kHelp);
  return code >= 0 ? code : run(false);
}
