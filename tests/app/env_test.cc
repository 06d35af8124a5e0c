// What the environment says, and how it says what is wrong with it.
#include "app/env.h"

#include <cstdio>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <sys/stat.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace byteps {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Environment two_machines() {
  return {{"DMLC_NUM_WORKER", "2"},      {"DMLC_NUM_SERVER", "3"},
          {"DMLC_WORKER_ID", "1"},       {"DMLC_PS_ROOT_URI", "10.0.0.1"},
          {"DMLC_PS_ROOT_PORT", "9000"}, {"BYTEPS_JOB_KEY", "a key of enough length"}};
}

Environment with(Environment environment, const std::string& name, const std::string& value) {
  environment[name] = value;
  return environment;
}

Environment without(Environment environment, const std::string& name) {
  environment.erase(name);
  return environment;
}

std::vector<std::string> texts_of(const std::vector<SettingWarning>& warnings) {
  std::vector<std::string> texts;
  for (const SettingWarning& warning : warnings) texts.push_back(warning.text);
  return texts;
}

std::string error_of(Role role, const Environment& environment) {
  return parse_environment(role, environment).status().message();
}

TEST(Environment, nothing_at_all_is_a_job_of_one) {
  const ParsedEnvironment parsed = parse_environment(Role::kWorker, {}).value();
  EXPECT_TRUE(parsed.config.job.scheduler_host.empty());
  EXPECT_EQ(parsed.config.job.worker_count, 1U);
  EXPECT_TRUE(parsed.warnings.empty());
}

TEST(Environment, rank_and_size_count_processes_while_dmlc_counts_machines) {
  Environment environment = two_machines();
  environment["BYTEPS_LOCAL_SIZE"] = "4";
  environment["BYTEPS_LOCAL_RANK"] = "2";
  const JobConfig job = parse_environment(Role::kWorker, environment).value().config.job;
  EXPECT_EQ(job.worker_count, 8U);
  EXPECT_EQ(job.rank, 6U);
  EXPECT_TRUE(job.local.is_said);
  EXPECT_EQ(job.server_count, 3U);
  EXPECT_EQ(job.scheduler_host, "10.0.0.1");
  EXPECT_EQ(job.scheduler_port, 9000);
}

TEST(Environment, local_ranks_are_said_by_either_of_their_variables) {
  const auto says = [](const Environment& environment) {
    return parse_environment(Role::kWorker, environment).value().config.job.local.is_said;
  };
  EXPECT_FALSE(says({}));
  EXPECT_FALSE(says(two_machines())) << "the number of a machine is none";
  EXPECT_TRUE(says(with(two_machines(), "BYTEPS_LOCAL_SIZE", "1")));
  EXPECT_TRUE(says(with(two_machines(), "BYTEPS_LOCAL_RANK", "0")));
}

TEST(Environment, rings_of_a_relay_are_small_for_a_machine_has_many) {
  const auto ring = [](Role role, const Environment& environment) {
    return parse_environment(role, environment).value().config.flow.shared_ring_bytes;
  };
  EXPECT_EQ(ring(Role::kServer, two_machines()), 1U << 20);
  EXPECT_EQ(ring(Role::kWorker, two_machines()), 256U << 10);
  const Environment set = with(two_machines(), "BYTEPS_IPC_RING_BYTES", "500000");
  EXPECT_EQ(ring(Role::kServer, set), 512U << 10);
  EXPECT_EQ(ring(Role::kWorker, set), 512U << 10);
}

TEST(Environment, memory_of_a_relay_is_no_servers) {
  const Environment set =
      with(with(two_machines(), "BYTEPS_RELAY_MEMORY_MB", "3"), "BYTEPS_SERVER_MEMORY_MB", "5");
  const Config config = parse_environment(Role::kWorker, set).value().config;
  EXPECT_EQ(config.relay_memory_bytes_max, 3U << 20);
  EXPECT_EQ(config.memory_bytes_max, 5U << 20);
}

TEST(Environment, a_timeline_is_off_unless_asked_for_and_has_upstreams_steps) {
  const TraceConfig off = parse_environment(Role::kWorker, two_machines()).value().config.trace;
  EXPECT_FALSE(off.on);
  const Environment on = with(two_machines(), "BYTEPS_TRACE_ON", "1");
  TraceConfig trace = parse_environment(Role::kServer, on).value().config.trace;
  EXPECT_TRUE(trace.on);
  EXPECT_EQ(trace.first_round, 10U);
  EXPECT_EQ(trace.last_round, 20U);
  EXPECT_EQ(trace.folder, "./trace");
  Environment one = with(with(on, "BYTEPS_TRACE_START_STEP", "3"), "BYTEPS_TRACE_END_STEP", "3");
  one["BYTEPS_TRACE_DIR"] = "/elsewhere";
  trace = parse_environment(Role::kWorker, one).value().config.trace;
  EXPECT_EQ(trace.first_round, 3U);
  EXPECT_EQ(trace.last_round, 3U);
  EXPECT_EQ(trace.folder, "/elsewhere");
}

TEST(Environment, steps_of_which_none_would_be_recorded_are_refused_naming_both_variables) {
  Environment environment = with(two_machines(), "BYTEPS_TRACE_END_STEP", "5");
  EXPECT_TRUE(parse_environment(Role::kWorker, environment).is_ok()) << "it is off";
  environment["BYTEPS_TRACE_ON"] = "1";
  EXPECT_THAT(error_of(Role::kWorker, environment),
              AllOf(HasSubstr("BYTEPS_TRACE_END_STEP=5"), HasSubstr("BYTEPS_TRACE_START_STEP=10")));
}

TEST(Environment, global_size_is_for_machines_with_different_numbers_of_workers) {
  Environment environment = with(two_machines(), "BYTEPS_GLOBAL_SIZE", "3");
  environment["BYTEPS_GLOBAL_RANK"] = "2";
  environment["BYTEPS_LOCAL_SIZE"] = "1";
  const JobConfig job = parse_environment(Role::kWorker, environment).value().config.job;
  EXPECT_EQ(job.worker_count, 3U);
  EXPECT_EQ(job.rank, 2U);
  EXPECT_EQ(parse_environment(Role::kScheduler, environment).value().config.job.worker_count, 3U);
  environment["BYTEPS_GLOBAL_RANK"] = "3";
  EXPECT_THAT(error_of(Role::kWorker, environment), HasSubstr("BYTEPS_GLOBAL_SIZE"));
}

TEST(Environment, global_rank_wins_over_the_computed_one) {
  EXPECT_EQ(parse_environment(Role::kWorker, with(two_machines(), "BYTEPS_GLOBAL_RANK", "0"))
                .value()
                .config.job.rank,
            0U);
  EXPECT_THAT(error_of(Role::kWorker, with(two_machines(), "BYTEPS_GLOBAL_RANK", "2")),
              HasSubstr("BYTEPS_GLOBAL_RANK=2"));
}

TEST(Environment, one_worker_needs_servers_only_when_forced) {
  const Environment one = with(with(two_machines(), "DMLC_NUM_WORKER", "1"), "DMLC_WORKER_ID", "0");
  EXPECT_TRUE(parse_environment(Role::kWorker, one).value().config.job.scheduler_host.empty());
  EXPECT_EQ(parse_environment(Role::kWorker, with(one, "BYTEPS_FORCE_DISTRIBUTED", "1"))
                .value()
                .config.job.scheduler_host,
            "10.0.0.1");
}

TEST(Environment, workers_of_a_machine_sum_first_unless_that_is_switched_off) {
  const auto job_with = [](const char* value) {
    return parse_environment(Role::kWorker, with(two_machines(), "BYTEPS_LOCAL_REDUCE", value))
        .value()
        .config.job;
  };
  EXPECT_TRUE(parse_environment(Role::kWorker, two_machines()).value().config.job.sums.locally);
  EXPECT_TRUE(job_with("auto").sums.locally);
  EXPECT_FALSE(job_with("0").sums.locally);
  for (const char* value : {"1", "yes", "AUTO"}) {
    EXPECT_EQ(error_of(Role::kWorker, with(two_machines(), "BYTEPS_LOCAL_REDUCE", value)),
              "BYTEPS_LOCAL_REDUCE='" + std::string(value) + "' is not valid: it takes auto or 0");
  }
}

TEST(Environment, servers_are_used_on_one_machine_too_when_that_is_forced) {
  EXPECT_FALSE(
      parse_environment(Role::kWorker, two_machines()).value().config.job.sums.needs_servers);
  EXPECT_TRUE(
      parse_environment(Role::kWorker, with(two_machines(), "BYTEPS_FORCE_DISTRIBUTED", "1"))
          .value()
          .config.job.sums.needs_servers);
}

TEST(Environment, no_servers_are_a_number_of_them_for_a_worker_and_a_scheduler_but_no_server) {
  const Environment none = with(two_machines(), "DMLC_NUM_SERVER", "0");
  for (const Role role : {Role::kWorker, Role::kScheduler}) {
    const auto parsed = parse_environment(role, none);
    ASSERT_TRUE(parsed.is_ok()) << parsed.status().message();
    EXPECT_EQ(parsed.value().config.job.server_count, 0U);
    EXPECT_EQ(parsed.value().config.job.worker_count, 2U);
  }
  EXPECT_THAT(error_of(Role::kServer, none),
              AllOf(HasSubstr("DMLC_NUM_SERVER"), HasSubstr("at least 1")));
}

TEST(Environment, a_server_knows_the_number_of_workers_when_it_is_told_the_local_size) {
  const Environment two_each = with(two_machines(), "BYTEPS_LOCAL_SIZE", "3");
  EXPECT_EQ(parse_environment(Role::kServer, two_each).value().config.job.worker_count, 6U);
  EXPECT_EQ(parse_environment(Role::kServer, two_machines()).value().config.job.worker_count, 2U);
}

TEST(Environment, what_is_missing_is_named_with_the_remedy) {
  for (const char* name :
       {"DMLC_NUM_SERVER", "DMLC_WORKER_ID", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT"}) {
    EXPECT_THAT(error_of(Role::kWorker, without(two_machines(), name)),
                AllOf(HasSubstr(std::string(name) + " is missing"), HasSubstr("set it to")));
  }
  for (const char* name :
       {"DMLC_NUM_SERVER", "DMLC_NUM_WORKER", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT"}) {
    EXPECT_THAT(error_of(Role::kServer, without(two_machines(), name)),
                HasSubstr(std::string(name) + " is missing"));
  }
}

TEST(Environment, malformed_numbers_are_named_with_the_accepted_form) {
  for (const char* bad : {"two", "", "-1", "0", "1.5", "70000", "2 ", "99999999999999999999"}) {
    const std::string value = bad;
    if (value.empty()) continue;  // empty means unset, as in a shell's VAR=
    EXPECT_THAT(error_of(Role::kWorker, with(two_machines(), "DMLC_NUM_WORKER", value)),
                AllOf(HasSubstr("DMLC_NUM_WORKER='" + value + "'"), HasSubstr("1 to 4096")));
  }
}

TEST(Environment, what_only_python_reads_must_be_well_formed_too) {
  for (const char* name : {"BYTEPS_TELEMETRY_ON", "BYTEPS_NUMA_ON", "BYTEPS_ENABLE_GDB"}) {
    EXPECT_THAT(error_of(Role::kWorker, with(two_machines(), name, "garbage")),
                AllOf(HasSubstr(name), HasSubstr("0 or 1")));
    EXPECT_TRUE(parse_environment(Role::kWorker, with(two_machines(), name, "1")).is_ok());
  }
}

TEST(Environment, a_job_of_too_many_workers_is_refused_however_it_is_said) {
  Environment environment = with(two_machines(), "DMLC_NUM_WORKER", "4096");
  environment["BYTEPS_LOCAL_SIZE"] = "2";
  for (const Role role : {Role::kWorker, Role::kServer, Role::kScheduler}) {
    EXPECT_THAT(error_of(role, environment),
                AllOf(HasSubstr("DMLC_NUM_WORKER=4096"), HasSubstr("BYTEPS_LOCAL_SIZE=2"),
                      HasSubstr("8192 workers; a job has at most 4096")));
  }
}

TEST(Environment, an_unknown_variable_warns_with_the_nearest_name) {
  const auto parsed = parse_environment(Role::kWorker, {{"BYTEPS_PARTITON_BYTES", "1024"}}).value();
  ASSERT_EQ(parsed.warnings.size(), 1U);
  EXPECT_THAT(parsed.warnings[0].text, AllOf(HasSubstr("BYTEPS_PARTITON_BYTES"),
                                             HasSubstr("did you mean BYTEPS_PARTITION_BYTES?")));
  EXPECT_EQ(parsed.warnings[0].kind, SettingWarning::Kind::kUnknown);
  EXPECT_EQ(parsed.warnings[0].about, "BYTEPS_PARTITON_BYTES");
}

TEST(Environment, what_users_rely_on_and_has_no_effect_warns_once_with_the_counterpart) {
  const std::pair<const char*, const char*> kReplaced[] = {
      {"BYTEPS_ORDERED_HOSTS", "DMLC_WORKER_ID"},
      {"BYTEPS_ENABLE_MIXED_MODE", "BYTEPS_NIC_MBPS"},
      {"BYTEPS_MIXED_MODE_BOUND", "BYTEPS_NIC_MBPS"},
      {"BYTEPS_THREADPOOL_SIZE", "docs/compression.md"},
      {"BYTEPS_CPU_BLACKLIST", "BYTEPS_VISIBLE_CPU_CORES"},
      {"PS_VERBOSE", "BYTEPS_LOG_LEVEL"},
      {"PS_HEARTBEAT_TIMEOUT", "BYTEPS_FAILURE_TIMEOUT_MS"},
      {"HOROVOD_TIMELINE", "BYTEPS_TRACE_ON"},
      {"HOROVOD_AUTOTUNE", "BYTEPS_AUTOTUNE"},
      {"HOROVOD_FUSION_THRESHOLD", "BYTEPS_PARTITION_BYTES"},
      {"HOROVOD_CACHE_CAPACITY", "declared once"},
      {"HOROVOD_DISABLE_GROUP_FUSION", "BYTEPS_PARTITION_BYTES"},
      {"HOROVOD_STALL_CHECK_DISABLE", "is ended"},
      {"HOROVOD_DYNAMIC_PROCESS_SETS", "at any time"},
      {"HOROVOD_GLOO_IFACE", "DMLC_INTERFACE"}};
  for (const auto& [name, counterpart] : kReplaced) {
    const Environment environment = {{name, "12"}};
    EXPECT_THAT(texts_of(parse_environment(Role::kWorker, environment).value().warnings),
                ElementsAre(AllOf(HasSubstr(std::string(name) + " has no effect"),
                                  HasSubstr(counterpart))));
    EXPECT_THAT(parse_environment(Role::kWorker, {{name, "0"}}).value().warnings, IsEmpty());
    const Environment of_server = with(two_machines(), name, "12");
    const std::size_t count = std::string_view(name).starts_with("HOROVOD_") ? 0 : 1;
    EXPECT_EQ(parse_environment(Role::kServer, of_server).value().warnings.size(), count) << name;
  }
}

TEST(Environment, what_kubernetes_tells_of_services_is_no_unknown_variable) {
  const Environment links = {{"BYTEPS_SCHEDULER_SERVICE_HOST", "10.3.0.4"},
                             {"BYTEPS_SCHEDULER_SERVICE_PORT", "9000"},
                             {"BYTEPS_SCHEDULER_SERVICE_PORT_HTTP", "9000"},
                             {"BYTEPS_SCHEDULER_PORT", "tcp://10.3.0.4:9000"},
                             {"BYTEPS_SCHEDULER_PORT_9000_TCP", "tcp://10.3.0.4:9000"},
                             {"BYTEPS_SCHEDULER_PORT_9000_TCP_ADDR", "10.3.0.4"},
                             {"BYTEPS_SCHEDULER_PORT_9000_TCP_PORT", "9000"},
                             {"BYTEPS_SCHEDULER_PORT_9000_TCP_PROTO", "tcp"}};
  EXPECT_THAT(parse_environment(Role::kWorker, links).value().warnings, IsEmpty());
  for (const char* name : {"BYTEPS_SCHEDULER_PORT", "BYTEPS_PORT_TCP", "BYTEPS_SERVICE"}) {
    EXPECT_EQ(parse_environment(Role::kWorker, {{name, "9000"}}).value().warnings.size(), 1U)
        << name;
  }
}

TEST(Environment, upstreams_variables_are_known) {
  EXPECT_TRUE(
      parse_environment(Role::kWorker, {{"BYTEPS_SOCKET_PATH", "/tmp"}}).value().warnings.empty());
}

TEST(Environment, groups_and_leaders_of_a_machine_are_taken_as_upstream_has_them) {
  const auto of = [](const char* size, const char* roots) {
    return parse_environment(Role::kWorker,
                             {{"BYTEPS_PCIE_SWITCH_SIZE", size}, {"BYTEPS_REDUCE_ROOTS", roots}});
  };
  const DeviceConfig device = of("4", "2,3").value().config.device;
  EXPECT_EQ(device.group_size, 4U);
  EXPECT_THAT(device.reduce_roots, ElementsAre(2, 3));
  EXPECT_THAT(of("4", "").value().config.device.reduce_roots, IsEmpty());
  EXPECT_THAT(of("8", "0").value().warnings, IsEmpty());
  EXPECT_FALSE(of("0", "").is_ok());
  for (const char* roots : {"a", "2,", ",2", "2,,3", "2 3", "-1", "4096", "2;3", ","}) {
    EXPECT_THAT(of("4", roots).status().message(), HasSubstr("BYTEPS_REDUCE_ROOTS='")) << roots;
  }
}

TEST(Environment, several_interfaces_are_named_with_commas_each_once) {
  const auto of = [](const std::string& names) {
    return parse_environment(Role::kWorker, {{"DMLC_INTERFACE", names}});
  };
  EXPECT_THAT(of("").value().interfaces, IsEmpty());
  EXPECT_THAT(of("eth0").value().interfaces, ElementsAre("eth0"));
  EXPECT_THAT(of("eth1,ib0").value().interfaces, ElementsAre("eth1", "ib0"));
  for (const char* names : {",", "eth0,", ",eth0", "eth0,,eth1"}) {
    EXPECT_THAT(of(names).status().message(), HasSubstr("DMLC_INTERFACE='")) << names;
    EXPECT_THAT(of(names).status().message(), HasSubstr("empty name")) << names;
  }
  EXPECT_THAT(of("eth0,eth1,eth0").status().message(), HasSubstr("names eth0 twice"));
  std::string many = "a0";
  for (int i = 1; i <= 16; ++i) many += ",a" + std::to_string(i);
  EXPECT_THAT(of(many).status().message(), HasSubstr("more than 16"));
}

TEST(Environment, what_upstream_sets_for_nccl_by_hand_is_accepted_with_a_line) {
  for (const char* name :
       {"BYTEPS_NCCL_NUM_RINGS", "BYTEPS_NCCL_GROUP_SIZE", "BYTEPS_OMP_THREAD_PER_GPU"}) {
    const auto warnings =
        texts_of(parse_environment(Role::kWorker, {{name, "4"}}).value().warnings);
    EXPECT_THAT(warnings, ElementsAre(HasSubstr(std::string(name) + " has no effect; here: ")));
  }
}

TEST(Environment, sizes_are_rounded_up_to_whole_elements_of_every_kind) {
  const auto flow = parse_environment(Role::kWorker, {{"BYTEPS_PARTITION_BYTES", "1000001"},
                                                      {"BYTEPS_FRAME_BYTES", "65"}})
                        .value()
                        .config.flow;
  EXPECT_EQ(flow.partition_bytes, 1000064U);
  EXPECT_EQ(flow.frame_bytes, 128U);
}

TEST(Environment, scheduling_credit_counts_parts_and_zero_means_first_in_first_out) {
  const auto parse = [](const char* credit) {
    return parse_environment(Role::kWorker, {{"BYTEPS_SCHEDULING_CREDIT", credit},
                                             {"BYTEPS_PARTITION_BYTES", "640"}})
        .value()
        .config.flow;
  };
  EXPECT_EQ(parse("3").credit_bytes, 1920U);
  EXPECT_TRUE(parse("3").priority_scheduling);
  EXPECT_FALSE(parse("0").priority_scheduling);
}

TEST(Environment, autotune_is_off_unless_asked_for) {
  const auto is_on = [](const char* value) {
    return parse_environment(Role::kWorker, {{"BYTEPS_AUTOTUNE", value}})
        .value()
        .config.flow.autotune;
  };
  EXPECT_FALSE(FlowConfig().autotune);
  EXPECT_FALSE(is_on("0"));
  EXPECT_TRUE(is_on("1"));
  EXPECT_THAT(error_of(Role::kWorker, {{"BYTEPS_AUTOTUNE", "yes"}}), HasSubstr("0 or 1"));
}

TEST(Environment, a_job_key_makes_a_job_id_that_only_the_same_key_makes) {
  const auto id = [](const char* key) {
    return parse_environment(Role::kWorker, {{"BYTEPS_JOB_KEY", key}}).value().config.job.job_id;
  };
  EXPECT_EQ(id("0123456789abcdef"), id("0123456789abcdef"));
  EXPECT_NE(id("0123456789abcdef"), id("0123456789abcdeg"));
  EXPECT_NE(id("0123456789abcdef"), JobConfig().job_id);
  const std::string error = error_of(Role::kWorker, {{"BYTEPS_JOB_KEY", "short"}});
  EXPECT_THAT(error, AllOf(HasSubstr("at least 16"),
                           ::testing::Not(HasSubstr("short"))));  // a key is never printed
}

TEST(Environment, an_error_has_its_kind_and_its_variable_as_facts) {
  struct Case {
    Environment environment;
    CauseKind kind;
    const char* variable;
  };
  const std::vector<Case> cases = {
      {without(two_machines(), "DMLC_NUM_SERVER"), CauseKind::kSettingMissing, "DMLC_NUM_SERVER"},
      {with(two_machines(), "DMLC_NUM_WORKER", "two"), CauseKind::kSettingInvalid,
       "DMLC_NUM_WORKER"},
      {with(two_machines(), "DMLC_ROLE", "server"), CauseKind::kSettingInvalid, "DMLC_ROLE"},
      {with(two_machines(), "BYTEPS_LOG_LEVEL", "LOUD"), CauseKind::kSettingInvalid,
       "BYTEPS_LOG_LEVEL"},
      {with(two_machines(), "BYTEPS_JOB_KEY", "short"), CauseKind::kJobKey, "BYTEPS_JOB_KEY"},
      {without(two_machines(), "BYTEPS_JOB_KEY"), CauseKind::kJobKey, "DMLC_PS_ROOT_URI"},
  };
  for (const Case& each : cases) {
    const Status why = parse_environment(Role::kWorker, each.environment).status();
    EXPECT_EQ(why.cause().kind, each.kind) << why.text();
    EXPECT_EQ(why.cause().detail, each.variable) << why.text();
  }
}

TEST(Environment, without_a_key_only_loopback_is_reached) {
  const Environment keyless = without(two_machines(), "BYTEPS_JOB_KEY");
  for (const Role role : {Role::kWorker, Role::kServer, Role::kScheduler}) {
    EXPECT_THAT(error_of(role, keyless),
                AllOf(HasSubstr("DMLC_PS_ROOT_URI='10.0.0.1' is not a loopback address"),
                      HasSubstr("openssl rand -hex 16"), HasSubstr("BYTEPS_INSECURE=1")));
    for (const char* host : {"127.0.0.1", "127.1.2.3", "::1", "localhost"}) {
      const auto parsed = parse_environment(role, with(keyless, "DMLC_PS_ROOT_URI", host));
      ASSERT_TRUE(parsed.is_ok()) << host << parsed.status().message();
      EXPECT_TRUE(parsed.value().config.job.loopback_only);
    }
    EXPECT_FALSE(parse_environment(role, two_machines()).value().config.job.loopback_only);
  }
  const Environment advertised =
      with(with(keyless, "DMLC_PS_ROOT_URI", "127.0.0.1"), "DMLC_NODE_HOST", "10.0.0.2");
  EXPECT_THAT(error_of(Role::kServer, advertised), HasSubstr("DMLC_NODE_HOST='10.0.0.2'"));
}

TEST(Environment, insecure_lets_a_job_without_a_key_use_the_network_and_warns) {
  const Environment keyless =
      with(without(two_machines(), "BYTEPS_JOB_KEY"), "BYTEPS_INSECURE", "1");
  const ParsedEnvironment parsed = parse_environment(Role::kServer, keyless).value();
  EXPECT_FALSE(parsed.config.job.loopback_only);
  EXPECT_THAT(texts_of(parsed.warnings), ::testing::ElementsAre(HasSubstr("BYTEPS_INSECURE=1")));
  // With a key it is not needed, and takes nothing away.
  const Environment both = with(two_machines(), "BYTEPS_INSECURE", "1");
  EXPECT_TRUE(parse_environment(Role::kServer, both).value().warnings.empty());
}

TEST(Environment, a_key_file_that_others_may_read_gives_a_warning) {
  const std::string path = ::testing::TempDir() + "byteps_env_test.key";
  std::ofstream(path) << "a key of enough length\n";
  Environment environment = without(two_machines(), "BYTEPS_JOB_KEY");
  environment["BYTEPS_JOB_KEY_FILE"] = path;
  chmod(path.c_str(), 0640);
  const auto readable = parse_environment(Role::kServer, environment).value().warnings;
  EXPECT_THAT(texts_of(readable), ::testing::ElementsAre(HasSubstr("chmod 600 " + path)));
  EXPECT_EQ(readable[0].kind, SettingWarning::Kind::kReadableKey);
  EXPECT_EQ(readable[0].about, path);
  chmod(path.c_str(), 0600);
  const ParsedEnvironment parsed = parse_environment(Role::kServer, environment).value();
  EXPECT_TRUE(parsed.warnings.empty());
  EXPECT_EQ(parsed.config.job.job_id,
            parse_environment(Role::kServer, two_machines()).value().config.job.job_id);
  std::remove(path.c_str());
  EXPECT_THAT(error_of(Role::kServer, environment), HasSubstr("cannot be read"));
}

RdmaConfig rdma_of(const Environment& environment) {
  return parse_environment(Role::kWorker, environment).value().config.rdma;
}

std::vector<std::string> warnings_of(const Environment& environment) {
  return texts_of(parse_environment(Role::kServer, environment).value().warnings);
}

TEST(Environment, rdma_is_off_unless_asked_for_and_one_means_ibverbs_with_a_warning) {
  EXPECT_EQ(rdma_of(two_machines()).policy, RdmaPolicy::kOff);
  for (const auto& [said, policy] : {std::pair{"0", RdmaPolicy::kOff},
                                     {"zmq", RdmaPolicy::kOff},
                                     {"auto", RdmaPolicy::kAuto},
                                     {"ibverbs", RdmaPolicy::kRequired}}) {
    const Environment environment = with(two_machines(), "DMLC_ENABLE_RDMA", said);
    EXPECT_EQ(rdma_of(environment).policy, policy) << said;
    EXPECT_THAT(warnings_of(environment), IsEmpty());
  }
  const Environment old = with(two_machines(), "DMLC_ENABLE_RDMA", "1");
  EXPECT_EQ(rdma_of(old).policy, RdmaPolicy::kRequired);
  EXPECT_THAT(warnings_of(old), ElementsAre(HasSubstr("DMLC_ENABLE_RDMA=1 is deprecated")));
}

TEST(Environment,
     upstreams_other_networks_are_auto_with_a_warning_and_efa_is_refused_with_the_remedy) {
  for (const char* said : {"ucx", "multivan"}) {
    const Environment environment = with(two_machines(), "DMLC_ENABLE_RDMA", said);
    EXPECT_EQ(rdma_of(environment).policy, RdmaPolicy::kAuto);
    EXPECT_THAT(warnings_of(environment), ElementsAre(HasSubstr("taken for auto")));
  }
  for (const Role role : {Role::kWorker, Role::kServer, Role::kScheduler}) {
    EXPECT_THAT(error_of(role, with(two_machines(), "DMLC_ENABLE_RDMA", "fabric")),
                AllOf(HasSubstr("EFA"), HasSubstr("set it to 0")));
  }
  EXPECT_THAT(error_of(Role::kWorker, with(two_machines(), "DMLC_ENABLE_RDMA", "yes")),
              AllOf(HasSubstr("DMLC_ENABLE_RDMA='yes'"), HasSubstr("ibverbs")));
}

TEST(Environment,
     rdma_settings_reach_the_transport_and_depths_are_kept_within_what_a_connection_may_have) {
  Environment environment = two_machines();
  environment["BYTEPS_RDMA_DEVICE"] = "mlx5_0,mlx5_1";
  environment["BYTEPS_RDMA_PORT"] = "2";
  environment["BYTEPS_RDMA_GID_INDEX"] = "3";
  environment["BYTEPS_RDMA_TRAFFIC_CLASS"] = "104";
  environment["BYTEPS_RDMA_SERVICE_LEVEL"] = "5";
  environment["BYTEPS_RDMA_RING_BYTES"] = "100000";
  environment["BYTEPS_RDMA_RX_DEPTH"] = "2048";
  environment["BYTEPS_RDMA_MAX_CONCURR_WR"] = "4224";
  const RdmaConfig rdma = rdma_of(environment);
  EXPECT_EQ(rdma.device, "mlx5_0,mlx5_1");
  EXPECT_EQ(rdma.port, 2);
  EXPECT_EQ(rdma.gid_index, 3);
  EXPECT_EQ(rdma.traffic_class, 104);
  EXPECT_EQ(rdma.service_level, 5);
  EXPECT_EQ(rdma.ring_bytes, 128U << 10);
  EXPECT_EQ(rdma.receive_depth, 2048U);
  EXPECT_EQ(rdma.send_depth, 4224U);
  EXPECT_THAT(warnings_of(environment), IsEmpty()) << "upstream's defaults are fine";
  environment["BYTEPS_RDMA_RX_DEPTH"] = "1";
  environment["BYTEPS_RDMA_MAX_CONCURR_WR"] = "1000000";
  EXPECT_EQ(rdma_of(environment).receive_depth, RdmaConfig::kReceiveDepthMin);
  EXPECT_EQ(rdma_of(environment).send_depth, RdmaConfig::kDepthMax);
  EXPECT_THAT(warnings_of(environment),
              ElementsAre(HasSubstr("BYTEPS_RDMA_RX_DEPTH=1 is taken for 32"),
                          HasSubstr("BYTEPS_RDMA_MAX_CONCURR_WR=1000000 is taken for 16384")));
}

TEST(Environment, rdma_settings_without_an_effect_warn) {
  Environment environment = with(two_machines(), "BYTEPS_PRINT_RDMA_LOG", "0");
  EXPECT_THAT(warnings_of(environment), IsEmpty());
  environment["BYTEPS_PRINT_RDMA_LOG"] = "1";
  environment["BYTEPS_RDMA_START_DEPTH"] = "128";
  EXPECT_THAT(warnings_of(environment),
              ElementsAre(HasSubstr("BYTEPS_RDMA_START_DEPTH"), HasSubstr("BYTEPS_LOG_LEVEL")));
  EXPECT_THAT(error_of(Role::kWorker, with(two_machines(), "BYTEPS_RDMA_GID_INDEX", "-1")),
              HasSubstr("BYTEPS_RDMA_GID_INDEX='-1' is not valid: it takes index, 0 to 255"));
}

TEST(Environment, another_role_is_refused) {
  EXPECT_THAT(error_of(Role::kServer, with(two_machines(), "DMLC_ROLE", "worker")),
              HasSubstr("this process is a server"));
}

TEST(Environment, settings_override_line_by_line) {
  const Environment merged =
      with_settings(two_machines(), "DMLC_WORKER_ID=0\n\nBYTEPS_LOG_LEVEL=DEBUG\n").value();
  EXPECT_EQ(merged.at("DMLC_WORKER_ID"), "0");
  EXPECT_EQ(parse_environment(Role::kWorker, merged).value().config.log_level, LogLevel::kDebug);
  EXPECT_THAT(with_settings({}, "nonsense").status().message(), HasSubstr("'nonsense'"));
}

TEST(Environment, the_reference_lists_every_variable_once) {
  const std::string reference = environment_reference();
  for (const char* name : {"`DMLC_ROLE`", "`BYTEPS_CREDIT_BYTES`", "`BYTEPS_TRACE_ON`"}) {
    const std::size_t first = reference.find(name);
    ASSERT_NE(first, std::string::npos) << name;
    EXPECT_EQ(reference.find(name, first + 1), std::string::npos) << name;
  }
}

}  // namespace
}  // namespace byteps
