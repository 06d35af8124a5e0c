// Launch: which launcher has started this process, as far as the environment says, and how large the job is that it
// means.
//
// A launcher that does not know byteps says nothing of a scheduler: without a look at its variables each of its
// processes would be a job of one, and train a model of its own without a word. parse_environment() refuses that.
//
// Launchers nest: srun starts torchrun, mpirun starts its daemons with srun. What the outer one said is inherited, so
// both are in the environment; the inner one has started this process, and counts. An allocation without a step
// (salloc, the script of sbatch) has started nothing.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace byteps {

struct Launch {
  std::string_view launcher;     // what people call it: "torchrun", "mpirun", ...
  std::uint64_t size = 1;        // processes that it has started
  std::uint64_t rank = 0;        // this one's number
  std::uint64_t local_size = 0;  // those on this machine; 0: it does not say
  std::string_view size_name;    // the variables that say so
  std::string_view rank_name;
  bool is_slurm = false;
  bool is_torch = false;

  bool is_one_machine() const { return local_size == size; }
};

// The innermost launcher that has started this process, also when it has started no other; nullopt: none is known.
std::optional<Launch> launch_of(const std::map<std::string, std::string>& environment);

// Whether launch_of() looks at the variable of this name.
bool tells_of_launch(std::string_view name);

// Why a process of several cannot go on alone, and the command to use instead. `command`: how this program is started.
std::string launch_refusal(const Launch& launch, std::string_view command);

// A process's arguments as a shell takes them, to be shown in a message. "python train.py" when they are none that one
// would type again: too long, with line breaks, or a title that the process has given itself.
std::string shown_command(std::string_view nul_separated_arguments);

}  // namespace byteps
