// byteps_sim: runs simulated clusters, one per seed; see docs/simulator.md.
#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "loop/clock.h"
#include "commit.h"
#include "sim/world.h"

namespace byteps {
namespace {

constexpr const char* kHelp =
    R"(byteps_sim: runs whole clusters in one thread, one per seed, and checks them.

  --seeds N        how many (default 100, at least 1)
  --first-seed N   the first of them (default 1); the others follow it
  --workers N      always so many workers (1 to 16; default: 1 to 5, by seed)
  --servers N      always so many servers (1 to 16; default: 1 to 3, by seed)
  --hosts KIND     apart: each worker has a host of its own; shared: one host has 2 to 4 workers, others 1 to 4; seed:
                   shared in one world of four (the default)
  --formats        most sums and averages are of float32, and travel coded
  --gpus KIND      none: all tensors are in host memory; some: rank 0 has a GPU, and most others; seed: some in one
                   world of four (the default)
  --faults KINDS   each world has these, with commas between: cut, repeat, partition, pause, slow, corrupt, look-up,
                   former-job, lost-server, drain, adopt, lost-scheduler, lost-worker, slow-gpu, and one of kill,
                   long-pause, long-partition, stuck-thread, broken-gpu (of several of these one by seed; then
                   nobody else is lost); none: no faults. Default: by seed
  --events N       how many of the last events a failure tells (default 60)
  --until-failure  stops at the first seed that fails
  --verbose        a line for each seed
  --hashes         nothing but a line for each seed: the hash of all that was sent and happened in it, and when. Two
                   builds that print the same decide the same
  --help

A failure prints its seed, the commit, what was broken, the last events, and the command that replays it.
The last line is for machines:  SIM seeds=1000 failed=0 seconds=12.3 seeds_per_s=81.3
Exit codes: 0 all is well; 1 a seed failed; 2 bad arguments.
)";

constexpr int kExitFailed = 1;
constexpr int kExitBadArguments = 2;
constexpr std::uint64_t kReportsMax = 5;  // failures told in full

struct Arguments {
  std::uint64_t seeds = 100;
  std::uint64_t first_seed = 1;
  std::uint64_t workers = 0;  // 0: by seed
  std::uint64_t servers = 0;
  std::uint64_t events = 60;
  bool verbose = false;
  bool hashes = false;
  bool until_failure = false;
  std::string hosts_text;
  std::optional<sim::Hosts> hosts;  // none: as PlanOptions has it
  bool formats = false;
  std::string gpus_text;
  std::optional<sim::Gpus> gpus;  // likewise
  std::string faults_text;
  std::optional<sim::Faults> faults;  // none: by seed
  bool help = false;
};

std::optional<sim::Hosts> parse_hosts(std::string_view text) {
  if (text == "apart") return sim::Hosts::kApart;
  if (text == "seed") return sim::Hosts::kBySeed;
  if (text == "shared") return sim::Hosts::kShared;
  return std::nullopt;
}

std::optional<sim::Gpus> parse_gpus(std::string_view text) {
  if (text == "none") return sim::Gpus::kNone;
  if (text == "seed") return sim::Gpus::kBySeed;
  if (text == "some") return sim::Gpus::kSome;
  return std::nullopt;
}

std::optional<Arguments> parse(int argc, char** argv) {
  Arguments arguments;
  const struct {
    std::string_view name;
    std::uint64_t* value;
    std::uint64_t least;
    std::uint64_t most;
  } numbers[] = {{"--seeds", &arguments.seeds, 1, ~std::uint64_t{0}},
                 {"--first-seed", &arguments.first_seed, 0, ~std::uint64_t{0}},
                 {"--workers", &arguments.workers, 1, 16},
                 {"--servers", &arguments.servers, 1, 16},
                 {"--events", &arguments.events, 0, 1'000'000}};
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    bool known = word == "--verbose" || word == "--hashes" || word == "--until-failure" ||
                 word == "--formats" || word == "--help" || word == "-h";
    arguments.verbose |= word == "--verbose";
    arguments.hashes |= word == "--hashes";
    arguments.formats |= word == "--formats";
    arguments.until_failure |= word == "--until-failure";
    if (word == "--faults" && i + 1 < argc) {
      arguments.faults_text = argv[++i];
      arguments.faults = sim::faults_named(argv[i]);
      known = arguments.faults.has_value();
    }
    if (word == "--hosts" && i + 1 < argc) {
      arguments.hosts_text = argv[++i];
      arguments.hosts = parse_hosts(argv[i]);
      known = arguments.hosts.has_value();
    }
    if (word == "--gpus" && i + 1 < argc) {
      arguments.gpus_text = argv[++i];
      arguments.gpus = parse_gpus(argv[i]);
      known = arguments.gpus.has_value();
    }
    arguments.help |= word == "--help" || word == "-h";
    for (const auto& number : numbers) {
      if (word != number.name || i + 1 == argc) continue;
      const std::string_view text = argv[++i];
      const auto read = std::from_chars(text.data(), text.data() + text.size(), *number.value);
      known = read.ec == std::errc() && read.ptr == text.data() + text.size() &&
              *number.value >= number.least && *number.value <= number.most;
      if (!known) {
        std::fprintf(stderr, "byteps_sim: %s takes a number from %llu to %llu, not '%s'\n",
                     argv[i - 1], static_cast<unsigned long long>(number.least),
                     static_cast<unsigned long long>(number.most), argv[i]);
        return std::nullopt;
      }
    }
    if (!known) {
      std::fprintf(stderr, "byteps_sim: bad argument '%s'; see --help\n", argv[i]);
      return std::nullopt;
    }
  }
  return arguments;
}

std::string replay_command(const Arguments& arguments, std::uint64_t seed) {
  std::string command = "byteps_sim --seeds 1 --first-seed " + std::to_string(seed);
  if (arguments.workers > 0) command += " --workers " + std::to_string(arguments.workers);
  if (arguments.servers > 0) command += " --servers " + std::to_string(arguments.servers);
  if (arguments.hosts) command += " --hosts " + arguments.hosts_text;
  if (arguments.formats) command += " --formats";
  if (arguments.gpus) command += " --gpus " + arguments.gpus_text;
  if (arguments.faults) command += " --faults " + arguments.faults_text;
  return command;
}

sim::WorldOptions world_options(const Arguments& arguments, std::uint64_t seed) {
  sim::WorldOptions options;
  options.seed = seed;
  options.trace_payloads = arguments.hashes;
  const auto chosen = [](std::uint64_t count) {
    return count == 0 ? std::nullopt : std::optional(static_cast<std::uint32_t>(count));
  };
  options.plan.faults = arguments.faults;
  if (arguments.hosts) options.plan.hosts = *arguments.hosts;
  if (arguments.gpus) options.plan.gpus = *arguments.gpus;
  options.plan.has_formats = arguments.formats;
  options.plan.worker_count = chosen(arguments.workers);
  options.plan.server_count = chosen(arguments.servers);
  return options;
}

// The same world once more, this time with its events in words.
void tell_failure(const Arguments& arguments, std::uint64_t seed) {
  sim::WorldOptions options = world_options(arguments, seed);
  options.trace_events = arguments.events;
  const sim::WorldResult result = sim::run_world(options);
  std::printf("FAILED at commit %s: %s\n  replay: %s\n\n", BYTEPS_COMMIT,
              sim::report(options, result).c_str(), replay_command(arguments, seed).c_str());
}

// Runs the seeds; `current_seed` always says which one is under way.
int run(const Arguments& arguments, std::uint64_t& current_seed) {
  MonotonicClock clock;
  const TimeNs begun_ns = clock.now();
  const bool progress = isatty(STDERR_FILENO) != 0 && !arguments.verbose && !arguments.hashes;
  std::uint64_t failed = 0;
  std::array<std::uint64_t, sim::kFaultCount> worlds_with{};
  std::uint64_t calm_worlds = 0;
  for (std::uint64_t i = 0; i < arguments.seeds; ++i) {
    const std::uint64_t seed = arguments.first_seed + i;
    current_seed = seed;
    const sim::WorldResult result = sim::run_world(world_options(arguments, seed));
    calm_worlds += result.happened.empty() ? 1 : 0;
    for (std::size_t k = 0; k < sim::kFaultCount; ++k) {
      worlds_with[k] += result.happened.has(static_cast<sim::Fault>(k)) ? 1 : 0;
    }
    if (!result.ok() && ++failed <= kReportsMax) tell_failure(arguments, seed);
    if (failed > 0 && arguments.until_failure) break;
    if (arguments.hashes) {
      std::printf("%llu %016llx\n", static_cast<unsigned long long>(seed),
                  static_cast<unsigned long long>(result.trace_hash));
      continue;
    }
    if (arguments.verbose) {
      std::printf(
          "seed %llu: %s; %llu messages, %llu turns, %llu faults, %llu reconnects, %.0f ms%s%s%s\n",
          static_cast<unsigned long long>(seed), result.size.c_str(),
          static_cast<unsigned long long>(result.messages),
          static_cast<unsigned long long>(result.turns),
          static_cast<unsigned long long>(result.faults),
          static_cast<unsigned long long>(result.reconnects),
          static_cast<double>(result.virtual_ns) / kMillisecond, result.lost.empty() ? "" : ", ",
          result.lost.c_str(), result.ok() ? "" : ": FAILED");
    }
    if (progress && (i % 16 == 15 || i + 1 == arguments.seeds)) {
      std::fprintf(stderr, "\r%llu of %llu clusters, %llu failed ",
                   static_cast<unsigned long long>(i + 1),
                   static_cast<unsigned long long>(arguments.seeds),
                   static_cast<unsigned long long>(failed));
    }
  }
  if (progress) std::fprintf(stderr, "\n");
  if (arguments.hashes) return failed == 0 ? 0 : kExitFailed;
  std::printf("worlds with");
  for (std::size_t k = 0; k < sim::kFaultCount; ++k) {
    std::printf(" %s %llu,", sim::name(static_cast<sim::Fault>(k)),
                static_cast<unsigned long long>(worlds_with[k]));
  }
  std::printf(" no fault at all %llu\n", static_cast<unsigned long long>(calm_worlds));
  const double seconds = static_cast<double>(clock.now() - begun_ns) / kSecond;
  std::printf("SIM seeds=%llu failed=%llu seconds=%.1f seeds_per_s=%.1f\n",
              static_cast<unsigned long long>(arguments.seeds),
              static_cast<unsigned long long>(failed), seconds,
              static_cast<double>(arguments.seeds) / (seconds > 0 ? seconds : 1e-9));
  return failed == 0 ? 0 : kExitFailed;
}

// A failed CHECK aborts the process. So the seeds run in a child, and its parent tells which one it was.
int run_supervised(const Arguments& arguments) {
  void* shared = mmap(nullptr, sizeof(std::uint64_t), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) {
    std::perror("byteps_sim: mmap");
    return kExitFailed;
  }
  std::uint64_t& current_seed = *static_cast<std::uint64_t*>(shared);
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    const int code = run(arguments, current_seed);
    std::fflush(nullptr);
    _exit(code);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) {
    std::perror("byteps_sim: fork");
    return kExitFailed;
  }
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  std::fprintf(stderr, "ended by signal %d in seed %llu at commit %s; replay: %s\n",
               WTERMSIG(status), static_cast<unsigned long long>(current_seed), BYTEPS_COMMIT,
               replay_command(arguments, current_seed).c_str());
  return kExitFailed;
}

}  // namespace
}  // namespace byteps

int main(int argc, char** argv) {
  const auto arguments = byteps::parse(argc, argv);
  if (!arguments) return byteps::kExitBadArguments;
  if (arguments->help) {
    std::fputs(byteps::kHelp, stdout);
    return 0;
  }
  return byteps::run_supervised(*arguments);
}
