// byteps_server: sums tensors. As many per job as there is bandwidth for; see docs/launch.md.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <thread>

#include <signal.h>
#include <unistd.h>

#include "app/arguments.h"
#include "app/flight_file.h"
#include "app/process.h"
#include "app/server_host.h"
#include "app/timeline_file.h"
#include "loop/clock.h"
#include "loop/log_writer.h"
#include "loop/runner.h"
#include "loop/signal_watch.h"

namespace byteps {
namespace {

constexpr const char* kHelp =
    R"(byteps_server: sums the tensors that the workers of a job push, and sends the sums back.

Needs no GPU, no Python and no framework. Each of its shards is one thread with keys, memory and connections of its own.

Settings come from the environment (docs/env.md):
  DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT   where the scheduler is
  DMLC_NUM_WORKER, DMLC_NUM_SERVER      number of worker machines and of servers
  DMLC_NODE_HOST or DMLC_INTERFACE      own address, when the default is not the right one
  BYTEPS_SERVER_ENGINE_THREAD           shards; default one per two cores
  BYTEPS_JOB_KEY                        secret of the job, equal for all its processes

Example:
  DMLC_PS_ROOT_URI=10.0.0.1 DMLC_PS_ROOT_PORT=9000 DMLC_NUM_WORKER=2 DMLC_NUM_SERVER=2 byteps_server

Exit codes: 0 the job ended well, or another server has the place of this one, which was told to stop (SIGTERM); 1 it
failed (the reason is on standard error); 2 bad settings; 3 port in use; 4 it was lost for a while, and another server
has its place; 128 + n signal n.
)";

// With the number of shards that this machine is to have: as many for each of its cards.
Config with_shard_count(Config config) {
  if (config.shard_count > 0) return config;
  const unsigned usual = std::thread::hardware_concurrency() / 2;  // the kernel works, too
  const auto cards = static_cast<unsigned>(std::max<std::size_t>(1, config.cards.all.size()));
  const unsigned each = std::max(1U, (usual + cards - 1) / cards);
  config.shard_count = std::min(each * cards, kShardsOfServerMax);
  return config;
}

// A shard is reached at one card.
void warn_about_shards(const Config& config, const Log& log) {
  const std::size_t cards = config.cards.all.size();
  if (cards <= config.shard_count) return;
  LOG(log, kWarning) << "BYTEPS_SERVER_ENGINE_THREAD=" << config.shard_count << ": so many of the "
                     << cards << " cards of DMLC_INTERFACE are used, for a shard has one";
}

// Waits for the process's threads, at most so long. One that stands still does so for ever, and with it this process
// would stay: then it ends at once, without taking anything apart that the thread may still use.
void join_or_end(ServerHost& host, const Config& config, FlightFile& flight, LogWriter& writer,
                 const Log& log) {
  if (host.join_within(config.timeout.failure_ns)) return;
  LOG(log, kError) << "a shard stands still: this process ends without it";
  flight.settle();
  writer.settle(LogWriter::kEndNs);
  _exit(kExitJobFailed);
}

// Turns the members until the job has ended for all, or a signal has come: SIGTERM asks this process to go, SIGINT ends
// the job.
void run_host(ServerHost& host, Waiter& waiter, Clock& clock, const std::atomic<bool>& stop,
              const SignalWatch& signals, const Log& log) {
  run_actor(host, waiter, clock, stop);
  if (stop.load()) {
    record_signal(log, signals.received());
    if (signals.received() == SIGTERM) {
      host.units().request_leave();
    } else {
      host.units().request_stop();
    }
    const std::atomic<bool> never{false};
    run_actor(host, waiter, clock, never);
  }
  const Status outcome = host.units().outcome();
  if (outcome.is_ok()) return;
  if (outcome.is_because_of(CauseKind::kReplaced)) {
    LOG(log, kWarning) << outcome.message();
    return;
  }
  const bool is_told = signals.received() != 0 && outcome.is_because_of(CauseKind::kToldToStop);
  if (!is_told) LOG(log, kError) << outcome.message();
  say_events(log, outcome);
}

int serve(const ParsedEnvironment& environment, FlightFile& flight, LogWriter& writer,
          const Log& log) {
  const Config& config = environment.config;
  const TransportMaker maker(config, Role::kServer, log);
  auto to_scheduler = maker.make({});
  if (!to_scheduler.is_ok()) {
    LOG(log, kError) << log.left_behind("network", to_scheduler.status()).message();
    return kExitJobFailed;
  }
  Waiter& waiter = to_scheduler.value()->waiter();
  MonotonicClock clock;
  std::atomic<bool> stop{false};
  SignalWatch signals(stop, waiter);

  const auto hosts = await_advertised_hosts(environment, clock, waiter, stop, log);
  if (stop.load() && !hosts.is_ok()) {
    record_signal(log, signals.received());
    say_events(log, {Code::kCancelled,
                     "a server was told to stop before it had an address",
                     {.kind = CauseKind::kToldToStop}});
    return 128 + signals.received();
  }
  if (!hosts.is_ok()) {
    const Status why = hosts.status().in_words(
        "own address: " + hosts.status().message() +
        "; or set DMLC_NODE_HOST to the address that workers reach this machine at");
    LOG(log, kError) << log.left_behind("settings", why).message();
    return kExitBadSettings;
  }
  ServerHost process(maker, config, hosts.value(), *to_scheduler.value(), clock, log,
                     flight.absence_sink());
  if (const Status opened = process.open_first(); !opened.is_ok()) {
    const Status told = cannot_listen(opened, " (DMLC_PORT)");
    LOG(log, kError) << log.left_behind("port", told).message();
    return kExitPortInUse;
  }
  run_host(process, waiter, clock, stop, signals, log);
  join_or_end(process, config, flight, writer, log);
  const Status outcome = process.units().outcome();
  if (signals.received() != 0) {
    return process.units().have_left() ? kExitOk : 128 + signals.received();
  }
  if (outcome.is_because_of(CauseKind::kReplaced)) return kExitReplaced;
  return outcome.is_ok() ? kExitOk : kExitJobFailed;
}

int run() {
  LogWriter writer;
  FlightFile flight(Role::kServer, process_environment());
  const Result<ParsedEnvironment> environment =
      parse_environment(Role::kServer, process_environment());
  if (!environment.is_ok()) {
    const Status why = flight.recorder().with_path("settings", environment.status());
    std::fprintf(stderr, "byteps_server: %s\n", why.message().c_str());
    return kExitBadSettings;
  }
  const auto timeline = TimelineFile::make(Role::kServer, environment.value().config, writer);
  const Log log("server", environment.value().config.log_level, writer.sink(), &flight.recorder(),
                TimelineFile::timeline_of(timeline));
  for (const SettingWarning& warning : environment.value().warnings) {
    LOG(log, kWarning) << warning.text;
  }
  ParsedEnvironment complete = environment.value();
  Result<Config> config = with_interfaces(Role::kServer, complete);
  if (config.is_ok()) {
    config =
        with_lot(with_descriptors(with_shard_count(config.value()), Role::kServer), Role::kServer);
  }
  if (!config.is_ok()) {
    LOG(log, kError) << log.left_behind("settings", config.status()).message();
    return kExitBadSettings;
  }
  complete.config = config.value();
  warn_about_interfaces(complete.config, log);
  warn_about_shards(complete.config, log);
  return serve(complete, flight, writer, log);
}

}  // namespace
}  // namespace byteps

int main(int argc, char** argv) {
  byteps::ignore_broken_pipes();
  const int code = byteps::handle_arguments(argc, argv, byteps::kHelp);
  return code >= 0 ? code : byteps::run();
}
