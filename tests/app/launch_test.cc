// Which launcher has started a process, by what real ones have left in the environments of theirs, and that none of
// several goes on alone.
#include "app/launch.h"

#include <fstream>
#include <string>
#include <vector>

#include "app/env.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace byteps {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// tests/app/launch/: "NAME=value" lines as they were recorded, without what is of no matter here.
Environment recorded(const std::string& name) {
  Environment environment;
  std::ifstream file("tests/app/launch/" + name + ".env");
  EXPECT_TRUE(file.is_open()) << "run it in the repository's folder";
  for (std::string line; std::getline(file, line);) {
    const std::size_t equals = line.find('=');
    if (line.starts_with("#") || equals == std::string::npos) continue;
    environment[line.substr(0, equals)] = line.substr(equals + 1);
  }
  return environment;
}

Environment with(Environment environment, const Environment& more) {
  for (const auto& [name, value] : more) environment[name] = value;
  return environment;
}

Environment torchrun(const std::string& rank, const std::string& size,
                     const std::string& local_size) {
  return {{"RANK", rank},
          {"WORLD_SIZE", size},
          {"LOCAL_WORLD_SIZE", local_size},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", "29500"},
          {"TORCHELASTIC_RUN_ID", "none"}};
}

// The same three variables of Ray Train and of the Kubernetes operators, which say no more.
Environment unmarked(const std::string& rank, const std::string& size) {
  return {{"RANK", rank}, {"WORLD_SIZE", size}, {"MASTER_ADDR", "10.0.0.1"}};
}

const Environment kHorovod = {{"HOROVOD_RANK", "1"},
                              {"HOROVOD_SIZE", "2"},
                              {"HOROVOD_LOCAL_RANK", "1"},
                              {"HOROVOD_LOCAL_SIZE", "2"},
                              {"HOROVOD_CONTROLLER", "gloo"}};
const Environment kHydra = {
    {"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MPI_LOCALNRANKS", "2"}, {"MPI_LOCALRANKID", "1"}};
const Environment kMvapich = {
    {"MV2_COMM_WORLD_RANK", "0"}, {"MV2_COMM_WORLD_SIZE", "2"}, {"MV2_COMM_WORLD_LOCAL_SIZE", "2"}};
const Environment kJsrun = {
    {"JSM_NAMESPACE_RANK", "1"}, {"JSM_NAMESPACE_SIZE", "20"}, {"LSB_JOBID", "7"}};

struct Row {
  const char* what;
  Environment environment;
  const char* launcher;  // null: none
  std::uint64_t size = 1;
  std::uint64_t rank = 0;
  std::uint64_t local_size = 0;
};

std::vector<Row> table() {
  const Environment step = recorded("slurm-22.05-step");
  const Environment batch = recorded("slurm-22.05-batch");
  const Environment openmpi = recorded("openmpi-4.1.4");
  return {
      {"nothing", {}, nullptr},
      {"torchrun", torchrun("1", "2", "2"), "torchrun", 2, 1, 2},
      {"Ray Train", unmarked("1", "4"), "the launcher", 4, 1, 0},
      {"Horovod", kHorovod, "horovodrun", 2, 1, 2},
      {"Open MPI", openmpi, "mpirun", 6, 0, 6},
      {"MPICH, Intel MPI", kHydra, "mpirun", 4, 3, 2},
      {"MVAPICH", kMvapich, "mpirun", 2, 0, 2},
      {"jsrun", kJsrun, "jsrun", 20, 1, 0},
      {"srun", step, "srun", 6, 2, 2},
      {"srun, nodes with other numbers of tasks",
       with(step, {{"SLURM_STEP_TASKS_PER_NODE", "4,2"}}), "srun", 6, 2, 0},
      {"srun --mpi=pmi2", with(step, {{"PMI_RANK", "2"}, {"PMI_SIZE", "6"}}), "srun", 6, 2, 2},
      // An allocation without a step of several tasks.
      {"the script of sbatch", batch, nullptr},
      {"the script, which is task 0 of a step by itself",
       with(batch, {{"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}}), nullptr},
      {"the shell of salloc",
       {{"SLURM_JOB_ID", "3"}, {"SLURM_NTASKS", "6"}, {"SLURM_NNODES", "3"}},
       nullptr},
      {"the shell of salloc as a step, which inherits the tasks",
       with(step, {{"SLURM_STEP_ID", "4294967290"}, {"SLURM_PROCID", "0"}}), nullptr},
      {"a step of one task in an allocation of six",
       with(batch, {{"SLURM_PROCID", "0"},
                    {"SLURM_STEP_ID", "1"},
                    {"SLURM_STEP_NUM_TASKS", "1"},
                    {"SLURM_STEP_TASKS_PER_NODE", "1"}}),
       "srun", 1, 0, 1},
      // One launcher within another: the inner one.
      {"torchrun in srun", with(step, torchrun("3", "4", "2")), "torchrun", 4, 3, 2},
      {"torchrun for one process in srun", with(step, torchrun("0", "1", "1")), "torchrun", 1, 0,
       1},
      {"torchrun in mpirun", with(openmpi, torchrun("1", "2", "2")), "torchrun", 2, 1, 2},
      {"horovodrun in sbatch", with(batch, kHorovod), "horovodrun", 2, 1, 2},
      {"mpirun whose daemons are a step of srun", with(step, openmpi), "mpirun", 6, 0, 6},
      {"mpirun -np 1 in srun",
       with(step, {{"OMPI_COMM_WORLD_RANK", "0"},
                   {"OMPI_COMM_WORLD_SIZE", "1"},
                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}}),
       "mpirun", 1, 0, 1},
      // The names of torch's variables are anybody's: an image that says WORLD_SIZE=1 has started nothing.
      {"RANK=0 and WORLD_SIZE=1 from an image, in mpirun", with(openmpi, unmarked("0", "1")),
       "mpirun", 6, 0, 6},
      {"RANK=0 and WORLD_SIZE=1", unmarked("0", "1"), nullptr},
      {"only WORLD_SIZE", {{"WORLD_SIZE", "8"}}, nullptr},
      {"no numbers", {{"RANK", "first"}, {"WORLD_SIZE", "2"}}, nullptr},
      {"a rank that cannot be", {{"RANK", "2"}, {"WORLD_SIZE", "2"}}, nullptr},
  };
}

TEST(Launch, the_innermost_launcher_is_known_by_its_variables) {
  for (const Row& row : table()) {
    const auto launch = launch_of(row.environment);
    ASSERT_EQ(launch.has_value(), row.launcher != nullptr) << row.what;
    if (!launch) continue;
    EXPECT_EQ(launch->launcher, row.launcher) << row.what;
    EXPECT_EQ(launch->size, row.size) << row.what;
    EXPECT_EQ(launch->rank, row.rank) << row.what;
    EXPECT_EQ(launch->local_size, row.local_size) << row.what;
  }
}

TEST(Launch, what_is_looked_at_is_in_the_environment_that_is_read) {
  for (const Row& row : table()) {
    Environment read;
    for (const auto& [name, value] : row.environment) {
      if (tells_of_launch(name)) read[name] = value;
    }
    EXPECT_EQ(launch_of(read).has_value(), row.launcher != nullptr) << row.what;
  }
}

Status parsed(const Environment& environment) {
  return parse_environment(Role::kWorker, environment, "python train.py --lr 0.1").status();
}

TEST(Launch, a_process_of_several_is_not_alone_unless_it_says_so) {
  for (const Row& row : table()) {
    const Status status = parsed(row.environment);
    EXPECT_EQ(status.is_ok(), row.size == 1) << row.what << ": " << status.message();
    if (row.size == 1) continue;
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr(std::string(row.launcher) + " has started"),
                      HasSubstr(" -- python train.py --lr 0.1"), HasSubstr("BYTEPS_ENGINE=none")))
        << row.what;
    EXPECT_TRUE(parsed(with(row.environment, {{"BYTEPS_ENGINE", "none"}})).is_ok()) << row.what;
  }
  EXPECT_THAT(parsed({{"BYTEPS_ENGINE", "ring"}}).message(),
              HasSubstr("BYTEPS_ENGINE='ring' is not valid"));
}

TEST(Launch, dmlc_variables_win_over_any_launcher) {
  const Environment job = {{"DMLC_NUM_WORKER", "2"},
                           {"DMLC_NUM_SERVER", "1"},
                           {"DMLC_WORKER_ID", "1"},
                           {"DMLC_PS_ROOT_URI", "127.0.0.1"},
                           {"DMLC_PS_ROOT_PORT", "9000"}};
  for (const Row& row : table()) {
    const auto two = parse_environment(Role::kWorker, with(row.environment, job));
    ASSERT_TRUE(two.is_ok()) << row.what << two.status().message();
    EXPECT_EQ(two.value().config.job.worker_count, 2U);
    EXPECT_EQ(two.value().config.job.rank, 1U);
    const Environment one = with(row.environment, {{"DMLC_NUM_WORKER", "1"}});
    EXPECT_TRUE(parse_environment(Role::kWorker, one).is_ok()) << row.what;
    EXPECT_TRUE(parse_environment(Role::kWorker, with(one, {{"BYTEPS_ENGINE", "none"}})).is_ok());
  }
}

TEST(Launch, a_scheduler_without_a_number_of_workers_is_no_job_of_one) {
  EXPECT_THAT(parsed({{"DMLC_PS_ROOT_URI", "10.0.0.1"}, {"BYTEPS_INSECURE", "1"}}).message(),
              HasSubstr("DMLC_NUM_WORKER is missing"));
}

std::string refusal_of(const Environment& environment) {
  return launch_refusal(launch_of(environment).value(), "python train.py");
}

TEST(Launch, the_command_to_use_instead_fits_the_machines) {
  EXPECT_THAT(refusal_of(torchrun("1", "2", "2")),
              AllOf(HasSubstr("RANK=1, WORLD_SIZE=2"),
                    HasSubstr(": bpslaunch --local --workers 2 -- python train.py;"),
                    HasSubstr("init_process_group(\"byteps\")")));
  EXPECT_THAT(refusal_of(torchrun("1", "8", "4")),
              AllOf(HasSubstr(": bpslaunch --hosts job.hosts -- python train.py"),
                    HasSubstr("HOST workers=4")));
  EXPECT_THAT(refusal_of(unmarked("1", "8")), HasSubstr("HOST workers=N"));
  EXPECT_THAT(
      refusal_of(recorded("openmpi-4.1.4")),
      AllOf(HasSubstr("mpirun has started 6 processes"),
            HasSubstr("bpslaunch --local --workers 6 -- "), Not(HasSubstr("init_process_group"))));
  EXPECT_THAT(refusal_of(recorded("slurm-22.05-step")),
              AllOf(HasSubstr("in place of srun"),
                    HasSubstr("scontrol show hostnames \"$SLURM_JOB_NODELIST\" | sed 's/$/ "
                              "workers=2/' > job.hosts; "
                              "bpslaunch --hosts job.hosts -- python train.py")));
}

TEST(Launch, a_command_is_shown_as_one_types_it) {
  const auto shown = [](std::vector<std::string> words) {
    std::string arguments;
    for (const std::string& word : words) arguments += word + '\0';
    return shown_command(arguments);
  };
  EXPECT_EQ(shown({"/usr/bin/python3.11", "-u", "train.py", "--name", "a b"}),
            "python3.11 -u train.py --name 'a b'");
  EXPECT_EQ(shown({"./push_pull", "it's", ""}), "./push_pull 'it'\\''s' ''");
  EXPECT_EQ(shown({}), "python train.py");
  EXPECT_EQ(shown({"python", "-c", "import a\nimport b"}), "python train.py");
  EXPECT_EQ(shown({"ray::RayTrainWorker.execute()"}), "python train.py");
  EXPECT_EQ(shown({"python", std::string(1000, 'x')}), "python train.py");
}

}  // namespace
}  // namespace byteps
