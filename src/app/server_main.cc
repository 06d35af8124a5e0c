// byteps_server: sums tensors. As many per job as there is bandwidth for; see docs/launch.md.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <thread>
#include <vector>

#include <unistd.h>

#include "app/flight_file.h"
#include "app/process.h"
#include "app/timeline_file.h"
#include "loop/clock.h"
#include "loop/log_writer.h"
#include "loop/mailbox.h"
#include "loop/runner.h"
#include "loop/signal_watch.h"
#include "server/server_member.h"
#include "server/shard.h"

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

Exit codes: 0 the job ended well; 1 it failed (the reason is on standard error); 2 bad settings; 3 port in use; 4
it was lost for a while, and another server has its place.
)";

constexpr std::size_t kNoticesMax = 4096;

// One shard with all that belongs to it, in the order of construction.
struct ShardUnit {
  ShardUnit(const Config& config, ShardIndex index, std::unique_ptr<ProcessTransport> listening,
            Mailbox<ShardNotice>& notices, const Log& log)
      : transport(std::move(listening)),
        inbox(kNoticesMax, &transport->waiter()),
        shard(config, index, *transport, inbox, notices, log) {}

  std::unique_ptr<ProcessTransport> transport;
  Mailbox<ShardCommand> inbox;
  Shard shard;
};

// With the number of shards that this machine is to have.
Config with_shard_count(Config config) {
  if (config.shard_count == 0)
    config.shard_count =
        std::max(1U, std::thread::hardware_concurrency() / 2);  // the kernel works, too
  return config;
}

Result<std::vector<std::unique_ptr<ProcessTransport>>> listen_for_shards(
    const TransportMaker& maker, const Config& config, const std::string& host) {
  std::vector<std::unique_ptr<ProcessTransport>> transports;
  for (std::uint32_t i = 0; i < config.shard_count; ++i) {
    const auto port = config.job.listen_port == 0 ? 0U : config.job.listen_port + i;
    const bool tells_ways = i == 0;  // each worker comes to all shards
    auto transport =
        maker.make({{listening_host(host), static_cast<std::uint16_t>(port)}}, tells_ways);
    if (!transport.is_ok()) return transport.status();
    transports.push_back(std::move(transport).value());
  }
  return transports;
}

// Waits for the shards' threads, at most so long. One that stands still does so for ever, and with it this process
// would stay: then it ends at once, without taking anything apart that the thread may still use.
void join_or_end(const std::vector<std::unique_ptr<Runner>>& runners, const Config& config,
                 FlightFile& flight, LogWriter& writer, const Log& log) {
  bool all_ended = true;
  for (const auto& runner : runners) {
    all_ended = runner->join_within(all_ended ? config.timeout.failure_ns : 0) && all_ended;
  }
  if (all_ended) return;
  LOG(log, kError) << "a shard stands still: this process ends without it";
  flight.settle();
  writer.settle(LogWriter::kEndNs);
  _exit(kExitJobFailed);
}

// Turns the member until the job has ended, or a signal has come.
void run_member(ServerMember& member, Waiter& waiter, Clock& clock, const std::atomic<bool>& stop,
                const SignalWatch& signals, const Log& log) {
  run_actor(member, waiter, clock, stop);
  if (stop.load()) {
    // A signal: tell the scheduler why, then end as for any other failure of the job.
    record_signal(log, signals.received());
    member.request_stop();
    const std::atomic<bool> never{false};
    run_actor(member, waiter, clock, never);
  }
  if (member.outcome().is_ok()) return;
  if (member.outcome().is_because_of(CauseKind::kReplaced)) {
    LOG(log, kWarning) << member.outcome().message();
    return;
  }
  if (signals.received() == 0) LOG(log, kError) << member.outcome().message();
  say_events(log, member.outcome());
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

  const Result<std::string> host = await_advertised_host(environment, clock, waiter, stop, log);
  if (stop.load() && !host.is_ok()) {
    record_signal(log, signals.received());
    say_events(log, {Code::kCancelled,
                     "a server was told to stop before it had an address",
                     {.kind = CauseKind::kToldToStop}});
    return 128 + signals.received();
  }
  if (!host.is_ok()) {
    const Status why = host.status().in_words(
        "own address: " + host.status().message() +
        "; or set DMLC_NODE_HOST to the address that workers reach this machine at");
    LOG(log, kError) << log.left_behind("settings", why).message();
    return kExitBadSettings;
  }
  auto listening = listen_for_shards(maker, config, host.value());
  if (!listening.is_ok()) {
    const Status told = cannot_listen(listening.status(), " (DMLC_PORT)");
    LOG(log, kError) << log.left_behind("port", told).message();
    return kExitPortInUse;
  }
  Mailbox<ShardNotice> notices(kNoticesMax, &waiter);
  const std::string told = told_host(host.value());
  std::vector<Endpoint> endpoints;
  std::vector<std::unique_ptr<ShardUnit>> units;
  std::vector<Mailbox<ShardCommand>*> inboxes;
  for (auto& transport : listening.value()) {
    endpoints.push_back({told, transport->listening().front().port});
    const ShardIndex index(static_cast<std::uint32_t>(units.size()));
    units.push_back(std::make_unique<ShardUnit>(config, index, std::move(transport), notices, log));
    inboxes.push_back(&units.back()->inbox);
  }
  ServerMember member(with_machine(config, host.value()), *to_scheduler.value(), host_and_pid(),
                      endpoints, inboxes, notices, log);

  std::vector<std::unique_ptr<Runner>> runners;
  for (auto& unit : units) {
    runners.push_back(std::make_unique<Runner>("byteps-shard", unit->shard,
                                               unit->transport->waiter(), clock, config.spin_ns));
  }
  run_member(member, waiter, clock, stop, signals, log);
  join_or_end(runners, config, flight, writer, log);
  if (signals.received() != 0) return 128 + signals.received();
  if (member.outcome().is_because_of(CauseKind::kReplaced)) return kExitReplaced;
  return member.outcome().is_ok() ? kExitOk : kExitJobFailed;
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
  const Result<Config> drawn =
      with_lot(with_descriptors(with_shard_count(complete.config), Role::kServer), Role::kServer);
  if (!drawn.is_ok()) {
    LOG(log, kError) << log.left_behind("settings", drawn.status()).message();
    return kExitBadSettings;
  }
  complete.config = drawn.value();
  return serve(complete, flight, writer, log);
}

}  // namespace
}  // namespace byteps

int main(int argc, char** argv) {
  byteps::ignore_broken_pipes();
  const int code = byteps::handle_arguments(argc, argv, byteps::kHelp);
  return code >= 0 ? code : byteps::run();
}
