#include "app/process.h"

#include <array>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <span>

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "app/launch.h"
#include "app/machine.h"
#include "base/limits.h"
#include "base/phrases.h"
#include "device/driver.h"
#include "kernels/kernels.h"
#include "net/address.h"
#include "net/auth.h"
#include "net/rdma/memory.h"
#include "net/rdma/way.h"
#include "net/shm/way.h"
#include "net/tcp/tcp_transport.h"

namespace byteps {
namespace {
constexpr std::uint32_t kWorkersPerMachine = 16;  // rarely more

Result<std::vector<std::string>> addresses_of(const std::vector<std::string>& interfaces,
                                              bool loopback_only) {
  std::vector<std::string> addresses;
  for (const std::string& interface : interfaces) {
    const Result<std::string> address = address_of_interface(interface);
    if (!address.is_ok()) {
      const Status& why = address.status();
      const std::string text = "DMLC_INTERFACE: " + why.message();
      if (!why.is_because_of(CauseKind::kOther)) return why.in_words(text);
      return Status(why.code(), text,
                    {.kind = CauseKind::kSettingInvalid, .detail = "DMLC_INTERFACE"});
    }
    if (loopback_only && !is_loopback(address.value())) {
      return needs_key("DMLC_INTERFACE", interface);
    }
    addresses.push_back(address.value());
  }
  return addresses;
}

}  // namespace

void ignore_broken_pipes() {
  // Writing then fails, which is looked at where it matters. No process that we start inherits it: we start none.
  (void)::signal(SIGPIPE, SIG_IGN);
}

std::string host_name() {
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) return "unknown";
  return host.data();
}

std::string host_and_pid() {
  return host_name() + ":" + std::to_string(getpid());
}

std::string own_command() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  return shown_command(std::string(std::istreambuf_iterator<char>(file), {}));
}

Result<std::vector<std::string>> advertised_hosts(const ParsedEnvironment& environment) {
  const JobConfig& job = environment.config.job;
  if (!job.advertise_host.empty()) return std::vector{job.advertise_host};
  if (!environment.interfaces.empty()) {
    return addresses_of(environment.interfaces, job.loopback_only);
  }
  const auto towards = local_address_towards({job.scheduler_host, job.scheduler_port});
  if (!towards.is_ok()) return towards.status();
  return std::vector{towards.value()};
}

std::string told_host(const std::string& host) {
  if (!addresses_in_text({host, 1}).empty()) return host;
  const Result<std::vector<std::string>> found = addresses_of_name(host);
  if (!found.is_ok()) return host;
  const std::string& first = found.value().front();
  if (is_loopback(host)) return is_loopback(first) ? first : host;
  const bool is_only = found.value().size() == 1;
  return is_only && !is_loopback(first) && is_own_address(first) ? first : host;
}

Result<Config> with_interfaces(Role role, const ParsedEnvironment& environment) {
  Config config = environment.config;
  const bool is_alone = role == Role::kWorker && config.job.scheduler_host.empty();
  if (environment.interfaces.size() < 2 || is_alone) return config;
  const auto addresses = addresses_of(environment.interfaces, config.job.loopback_only);
  if (!addresses.is_ok()) return addresses.status();
  CardList& cards = config.cards;
  cards.all = cards.own = environment.interfaces;
  if (role == Role::kWorker) cards.own = interfaces_of_worker(cards.all, config.job.local);
  return config;
}

std::vector<std::string> addresses_of_worker(const Config& config,
                                             const ParsedEnvironment& environment) {
  const CardList& cards = config.cards;
  const auto known = cards.empty() ? advertised_hosts(environment)
                                   : addresses_of(cards.own, config.job.loopback_only);
  return known.is_ok() ? known.value() : std::vector<std::string>();
}

void warn_about_interfaces(const Config& config, const Log& log) {
  if (config.job.local.rank > 0) return;
  const std::string trouble = trouble_of_one_subnet(config.cards);
  if (!trouble.empty()) LOG(log, kWarning) << trouble;
}

Config with_machine(Config config, const std::vector<std::string>& own_addresses) {
  JobConfig& job = config.job;
  job.machine = machine_number();
  const std::uint32_t told_mbps = job.card.rate_mbps;
  for (const std::string& address : own_addresses) {
    NetworkCard card = card_of(address);
    if (told_mbps != 0) card.rate_mbps = told_mbps;
    if (address == own_addresses.front()) {
      job.card = card;
    } else {
      job.more_cards.push_back(card);
    }
  }
  return config;
}

Result<Config> with_lot(Config config, Role role) {
  const Status drawn =
      role == Role::kScheduler
          ? auth::fill_random(config.job.incarnation)
          : auth::fill_random(std::as_writable_bytes(std::span(&config.job.life, 1)));
  if (!drawn.is_ok()) return drawn;
  return config;
}

Config with_descriptors(Config config, Role role) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return config;
  if (role != Role::kWorker && limit.rlim_cur < limit.rlim_max) {
    rlimit wanted = limit;
    wanted.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &wanted) == 0) limit = wanted;
  }
  config.job.descriptors = limit.rlim_cur == RLIM_INFINITY ? 0 : limit.rlim_cur;
  return config;
}

Result<std::vector<std::string>> await_advertised_hosts(const ParsedEnvironment& environment,
                                                        Clock& clock, Waiter& waiter,
                                                        const std::atomic<bool>& stop,
                                                        const Log& log) {
  const TimeoutConfig& timeout = environment.config.timeout;
  const JobConfig& job = environment.config.job;
  const TimeNs begin_ns = clock.now();
  TimeNs next_notice_ns = begin_ns + timeout.first_notice_ns;
  for (;;) {
    auto hosts = advertised_hosts(environment);
    if (hosts.is_ok() || hosts.status().is(Code::kInvalidArgument) || stop.load()) return hosts;
    const TimeNs now = clock.now();
    if (now >= begin_ns + timeout.start_ns) return hosts;
    if (now >= next_notice_ns) {
      next_notice_ns = now + timeout.notice_every_ns;
      LOG(log, kWarning) << "no way to the scheduler at "
                         << Endpoint{job.scheduler_host, job.scheduler_port}.text() << " since "
                         << duration_text(now - begin_ns) << ": " << hosts.status().message()
                         << "; is DMLC_PS_ROOT_URI right?";
    }
    waiter.wait(timeout.heartbeat_ns());
  }
}

std::string listening_host(const std::string& advertised) {
  return is_loopback(advertised) || is_own_address(advertised) ? advertised : "";
}

TransportMaker::TransportMaker(const Config& config, Role role, const Log& log)
    : config_(config),
      role_(role),
      log_(log),
      verbs_(role == Role::kScheduler || config.rdma.policy == RdmaPolicy::kOff
                 ? Status(Code::kUnsupported, "RDMA is not wanted")
                 : rdma::load_verbs()) {}

// Both ways, also where they are not wanted: then they decline what others say of them.
Result<std::vector<std::unique_ptr<way::Way>>> TransportMaker::make_ways(bool moves_tensors,
                                                                         bool tells_ways) const {
  shm::Options shared;
  shared.job_id = config_.job.job_id;
  rdma::Way::Settings settings;
  settings.verbs = verbs_;
  settings.options.unreachable_ns = config_.timeout.failure_ns / 2;
  settings.tells_ways = tells_ways;
  if (moves_tensors) {
    shared.ring_bytes = config_.flow.shared_ring_bytes;
    static_cast<RdmaConfig&>(settings.options) = config_.rdma;
    settings.has_slabs = rdma::may_lock_all_memory();
  }
  Result<std::unique_ptr<way::Way>> first = shm::Way::create(shared);
  if (!first.is_ok()) return first.status();
  Result<std::unique_ptr<way::Way>> second = rdma::Way::create(std::move(settings));
  if (!second.is_ok()) return second.status();
  std::vector<std::unique_ptr<way::Way>> ways;
  ways.push_back(std::move(first).value());
  ways.push_back(std::move(second).value());
  return ways;
}

Result<std::unique_ptr<ProcessTransport>> TransportMaker::make(std::vector<Endpoint> listen,
                                                               bool tells_ways) const {
  TcpOptions options;
  options.listen = std::move(listen);
  options.self.role = role_;
  options.self.job_id = config_.job.job_id;
  options.self.incarnation = config_.job.incarnation;
  if (role_ == Role::kScheduler) options.self.failure_ms = config_.timeout.failure_ms();
  options.key = config_.job.key;
  options.loopback_only = config_.job.loopback_only;
  options.cards = config_.cards;
  options.connect_timeout_ns = config_.timeout.failure_ns;
  options.unreachable_ns = config_.timeout.failure_ns / 2;
  options.linger_ns = config_.timeout.failure_ns / 3;
  options.connections_max = role_ == Role::kScheduler ? kSchedulerConnectionsMax
                            : options.listen.empty()  ? kWorkerConnectionsMax
                                                      : kShardConnectionsMax;
  // Tensors pass between workers and shards only; a server listens for nothing else.
  const bool moves_tensors =
      role_ == Role::kWorker || (role_ == Role::kServer && !options.listen.empty());
  auto ways = make_ways(moves_tensors, tells_ways);
  if (!ways.is_ok()) return ways.status();
  auto made = TcpTransport::create(std::move(options), std::move(ways).value(), log_);
  if (!made.is_ok()) return made.status();
  std::unique_ptr<ProcessTransport> transport = std::move(made).value();
  // A server learns from the roster how many workers there are; the scheduler knows their machines.
  if (role_ == Role::kScheduler) {
    transport->expect_peers(std::size_t{kWorkersPerMachine} * config_.job.worker_count +
                            config_.job.server_count);
  }
  return transport;
}

Status cannot_listen(const Status& why, const std::string& where) {
  Cause cause = why.cause();
  if (cause.kind == CauseKind::kOther) cause.kind = CauseKind::kCannotListen;
  return {why.code(), "cannot listen" + where + ": " + why.message(), std::move(cause)};
}

void record_signal(const Log& log, int number) {
  const char* const name = number == SIGINT ? "SIGINT" : "SIGTERM";
  log.record({.kind = "signal", .name = name, .number = static_cast<std::uint64_t>(number)});
}

void say_events(const Log& log, const Status& outcome) {
  if (log.flight() == nullptr) return;
  const std::string path = log.flight()->leave_behind("job", outcome);
  if (!path.empty())
    LOG(log, kError) << "the last events are in " << path << "; bps why reads them";
}

int check_settings(const Environment& environment) {
  const auto say = [](const char* word, const std::string& text) {
    std::printf("%s %s\n", word, text.c_str());
  };
  say("byteps", BYTEPS_VERSION);
  say("protocol", std::to_string(Hello::kProtocolVersion));
  say("kernels", best_kernels().target);
  const auto driver = environment.find("BYTEPS_CUDA_LIBRARY");
  say("devices", device::describe_devices(driver == environment.end() ? "" : driver->second));
  Role role = Role::kWorker;  // as in parse_environment()
  const auto said = environment.find("DMLC_ROLE");
  for (const Role each : {Role::kScheduler, Role::kServer}) {
    if (said != environment.end() && said->second == name(each)) role = each;
  }
  // What the last line is about, for programs.
  const auto say_about = [&](const char* kind, const std::string& about) {
    say("kind", kind);
    if (!about.empty()) say("about", about);
  };
  const auto refuse = [&](const Cause& cause, const std::string& text) {
    say("error", text);
    say_about(name(cause.kind), cause.detail);
    return kExitBadSettings;
  };
  const Result<ParsedEnvironment> parsed = parse_environment(role, environment);
  if (!parsed.is_ok()) return refuse(parsed.status().cause(), parsed.status().message());
  for (const SettingWarning& warning : parsed.value().warnings) {
    say("warning", warning.text);
    say_about(name(warning.kind), warning.about);
  }
  if (role != Role::kServer) return kExitOk;
  const Result<std::vector<std::string>> hosts = advertised_hosts(parsed.value());
  if (!hosts.is_ok()) {
    return refuse(hosts.status().cause(), "own address: " + hosts.status().message());
  }
  say("own_address", hosts.value().front());
  for (std::size_t i = 1; i < hosts.value().size(); ++i) {
    say("further_address", hosts.value()[i]);
  }
  return kExitOk;
}

}  // namespace byteps
