#include "app/launch.h"

#include <algorithm>
#include <array>
#include <charconv>

namespace byteps {
namespace {

using Variables = std::map<std::string, std::string>;

// What a launcher gives each of its processes. From the innermost to the outermost: torchrun, Ray Train and Horovod's
// launcher are started in what MPI's and Slurm's have begun, and MPI's use Slurm's to reach other machines.
struct Launcher {
  const char* name;
  const char* rank;
  const char* size;
  const char* local_size;
  const char*
      mark;  // without this variable a size of 1 says nothing: the names are anybody's; null: not needed
};
constexpr Launcher kTorch = {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
                             "TORCHELASTIC_RUN_ID"};
constexpr const char* kPmiSize = "PMI_SIZE";
constexpr std::array kLaunchers = {
    kTorch,
    Launcher{"horovodrun", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_SIZE", nullptr},
    Launcher{"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE",
             nullptr},
    Launcher{"mpirun", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE",
             nullptr},
    Launcher{"jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_SIZE",
             nullptr},
    Launcher{"mpirun", "PMI_RANK", kPmiSize, "MPI_LOCALNRANKS", nullptr},
};

constexpr const char* kSlurmRank = "SLURM_PROCID";
constexpr const char* kSlurmSize = "SLURM_STEP_NUM_TASKS";
constexpr const char* kSlurmTasks = "SLURM_STEP_TASKS_PER_NODE";
constexpr const char* kSlurmStep = "SLURM_STEP_ID";

// Larger numbers are not of steps that srun has made: the script of sbatch, the shell of salloc.
constexpr std::uint64_t kSlurmStepMax = 0xfffffff0;

constexpr const char* kAnyCommand = "python train.py";
constexpr std::size_t kCommandBytesMax = 400;

std::optional<std::uint64_t> number_of(const Variables& variables, const char* name) {
  const auto found = variables.find(name);
  if (found == variables.end()) return std::nullopt;
  std::uint64_t number = 0;
  const char* const end = found->second.data() + found->second.size();
  const auto [stop, error] = std::from_chars(found->second.data(), end, number);
  if (error != std::errc() || stop != end) return std::nullopt;
  return number;
}

std::optional<Launch> launch_by(const Launcher& launcher, const Variables& variables) {
  const auto rank = number_of(variables, launcher.rank);
  const auto size = number_of(variables, launcher.size);
  if (!rank || !size || *rank >= *size) return std::nullopt;
  const bool is_marked = launcher.mark != nullptr && variables.contains(launcher.mark);
  if (launcher.mark != nullptr && *size == 1 && !is_marked) return std::nullopt;
  Launch launch{.launcher = launcher.name,
                .size = *size,
                .rank = *rank,
                .local_size = number_of(variables, launcher.local_size).value_or(0),
                .size_name = launcher.size,
                .rank_name = launcher.rank};
  launch.is_torch = launcher.size == kTorch.size;
  if (launch.is_torch && !is_marked) launch.launcher = "the launcher";
  return launch;
}

// How many tasks a step has on each of its nodes, when it has the same on all: of "2(x3)" and of "2". 0: it has not.
std::uint64_t tasks_per_node(const Variables& variables) {
  const auto found = variables.find(kSlurmTasks);
  if (found == variables.end()) return 0;
  const std::string& text = found->second;
  std::uint64_t tasks = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, tasks);
  const bool is_whole =
      stop == end || (*stop == '(' && text.back() == ')' && text.find(',') == std::string::npos);
  return error == std::errc() && is_whole ? tasks : 0;
}

std::optional<Launch> launch_by_slurm(const Variables& variables) {
  const auto rank = number_of(variables, kSlurmRank);
  const auto size = number_of(variables, kSlurmSize);
  const auto step = number_of(variables, kSlurmStep);
  if (!rank || !size || *rank >= *size || !step || *step >= kSlurmStepMax) return std::nullopt;
  return Launch{.launcher = "srun",
                .size = *size,
                .rank = *rank,
                .local_size = tasks_per_node(variables),
                .size_name = kSlurmSize,
                .rank_name = kSlurmRank,
                .is_slurm = true};
}

// One word of a command, as a shell takes it.
std::string quoted(std::string_view word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./-_";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string_view::npos)
    return std::string(word);
  std::string out = "'";
  for (const char letter : word)
    out += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
  return out + "'";
}

// The lines of a shell that start what the launcher has started.
std::string replacement(const Launch& launch, std::string_view command) {
  const std::string program = " -- " + std::string(command);
  if (launch.is_one_machine())
    return "bpslaunch --local --workers " + std::to_string(launch.size) + program;
  const std::string workers = launch.local_size == 0 ? "N" : std::to_string(launch.local_size);
  if (launch.is_slurm) {
    return "scontrol show hostnames \"$SLURM_JOB_NODELIST\" | sed 's/$/ workers=" + workers +
           "/' > job.hosts; bpslaunch --hosts job.hosts" + program;
  }
  return "bpslaunch --hosts job.hosts" + program +
         " (job.hosts has a line for each machine: HOST workers=" + workers + ")";
}

}  // namespace

std::optional<Launch> launch_of(const Variables& environment) {
  for (const Launcher& launcher : kLaunchers) {
    const auto launch = launch_by(launcher, environment);
    if (!launch) continue;
    // Slurm's own support for MPI says the same in MPI's words.
    const auto step = launcher.size == kPmiSize ? launch_by_slurm(environment) : std::nullopt;
    return step && step->size == launch->size && step->rank == launch->rank ? step : launch;
  }
  return launch_by_slurm(environment);
}

bool tells_of_launch(std::string_view name) {
  for (const Launcher& each : kLaunchers) {
    for (const char* known : {each.rank, each.size, each.local_size, each.mark}) {
      if (known != nullptr && name == known) return true;
    }
  }
  return name == kSlurmRank || name == kSlurmSize || name == kSlurmTasks || name == kSlurmStep;
}

std::string launch_refusal(const Launch& launch, std::string_view command) {
  const std::string launcher(launch.launcher);
  std::string text =
      launcher + " has started " + std::to_string(launch.size) + " processes of this program (" +
      std::string(launch.rank_name) + "=" + std::to_string(launch.rank) + ", " +
      std::string(launch.size_name) + "=" + std::to_string(launch.size) +
      "), but no DMLC_* variables say where their job is: each would train a model of its own. Use "
      "bpslaunch in place of " +
      launcher + ": " + replacement(launch, command);
  if (launch.is_torch) {
    text +=
        "; or in a PyTorch script call torch.distributed.init_process_group(\"byteps\") before "
        "init(), which makes a "
        "job of these processes";
  }
  return text +
         "; or give each of them DMLC_* (docs/launch.md). If each is alone on purpose, set "
         "BYTEPS_ENGINE=none";
}

std::string shown_command(std::string_view nul_separated_arguments) {
  std::string text;
  std::string_view rest = nul_separated_arguments;
  for (bool is_first = true; !rest.empty(); is_first = false) {
    const std::size_t length = std::min(rest.find('\0'), rest.size());
    const std::string_view word = rest.substr(0, length);
    rest.remove_prefix(std::min(length + 1, rest.size()));
    const bool has_control = std::any_of(word.begin(), word.end(), [](unsigned char letter) {
      return letter < ' ' || letter == 127;
    });
    const bool is_title = is_first && (word.find_first_of(" :") != std::string_view::npos);
    if (has_control || is_title) return kAnyCommand;
    const std::size_t slash = is_first ? word.rfind('/') : std::string_view::npos;
    const bool is_python =
        slash != std::string_view::npos && word.substr(slash + 1).starts_with("python");
    text += (is_first ? "" : " ") + quoted(is_python ? word.substr(slash + 1) : word);
    if (text.size() > kCommandBytesMax) return kAnyCommand;
  }
  return text.empty() ? kAnyCommand : text;
}

}  // namespace byteps
