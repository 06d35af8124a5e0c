#include "app/flight_file.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app/process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace byteps {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

class FlightFileTest : public testing::Test {
 protected:
  FlightFileTest() {
    std::string pattern = (fs::temp_directory_path() / "flight_test_XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    variables_["BYTEPS_FLIGHT_DIR"] = (folder_ / "flight").string();
  }
  ~FlightFileTest() override { fs::remove_all(folder_); }

  static std::string content(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }

  static std::string left_by(FlightFile& flight, const char* how, const Status& why) {
    const std::string path = flight.recorder().leave_behind(how, why);
    EXPECT_TRUE(flight.settle());
    return content(path);
  }

  fs::path folder_;
  Environment variables_;
};

// The folder may be on a file system that does not answer.
TEST_F(FlightFileTest, whoever_leaves_something_behind_does_not_wait_for_the_file) {
  FlightFile flight(Role::kWorker, variables_);
  const std::string path = flight.recorder().leave_behind("job", {Code::kSystem, "first"});
  ASSERT_TRUE(flight.settle());
  bool has_writer = false;
  for (const auto& task : fs::directory_iterator("/proc/self/task")) {
    has_writer = has_writer || content((task.path() / "comm").string()) == "byteps-flight\n";
  }
  EXPECT_TRUE(has_writer) << "it is written by a thread of its own";
  EXPECT_THAT(content(path), HasSubstr("first"));
}

TEST_F(FlightFileTest, names_role_rank_and_process_and_is_for_its_user_only) {
  FlightFile flight(Role::kWorker, variables_);
  flight.recorder().set_rank(3);
  const std::string path = flight.recorder().leave_behind("job", {Code::kTimeout, "too late"});
  EXPECT_THAT(path, HasSubstr("/byteps-flight-worker-3-"));
  EXPECT_THAT(path, testing::EndsWith("-" + std::to_string(getpid()) + ".jsonl"));
  ASSERT_TRUE(flight.settle());
  struct stat facts {};
  ASSERT_EQ(stat(path.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600U);
  ASSERT_EQ(stat(variables_["BYTEPS_FLIGHT_DIR"].c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0700U);
}

// The process may be killed.
TEST_F(FlightFileTest, absences_are_in_their_file_while_the_process_goes_on) {
  FlightFile flight(Role::kServer, variables_);
  const ShelfOutput::Absence absence{.worker = WorkerRank(2),
                                     .name = "fc1.weight",
                                     .first_element = 64,
                                     .element_count = 16,
                                     .since = Round(131)};
  flight.record_absence(absence_line(Epoch(1), absence));
  ASSERT_TRUE(flight.settle());
  flight.record_absence(absence_line(Epoch(1), absence));
  ASSERT_TRUE(flight.settle());
  const std::string path = variables_["BYTEPS_FLIGHT_DIR"] + "/byteps-absences-" + host_name() +
                           "-" + std::to_string(getpid()) + ".jsonl";
  const std::string line =
      R"({"epoch":1,"tensor":"fc1.weight","first":64,"count":16,"worker":2,"round":131})";
  EXPECT_THAT(content(path), testing::StartsWith(R"({"byteps_absences":1,)"));
  EXPECT_THAT(content(path), testing::EndsWith("}\n" + line + "\n" + line + "\n"));
}

TEST_F(FlightFileTest, without_a_recorder_there_are_no_absences_either) {
  variables_["BYTEPS_FLIGHT_EVENTS"] = "0";
  FlightFile flight(Role::kServer, variables_);
  flight.record_absence("{}\n");
  ASSERT_TRUE(flight.settle());
  EXPECT_FALSE(fs::exists(variables_["BYTEPS_FLIGHT_DIR"]));
}

TEST_F(FlightFileTest, is_written_even_when_no_descriptor_is_left_and_again) {
  FlightFile flight(Role::kWorker, variables_);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{.rlim_cur = 64, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  std::vector<int> taken;
  for (int file = 0; (file = open("/dev/null", O_RDONLY)) >= 0;) taken.push_back(file);
  const int error = errno;
  const std::string path = flight.recorder().leave_behind("job", {Code::kSystem, "first"});
  const bool first_is_there = flight.settle();
  const std::string again = flight.recorder().leave_behind("raised", {Code::kSystem, "second"});
  const bool second_is_there = flight.settle();
  for (const int file : taken) close(file);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(error, EMFILE);
  EXPECT_TRUE(first_is_there && second_is_there);
  EXPECT_NE(path, "");
  EXPECT_EQ(again, path);
  EXPECT_THAT(content(path), HasSubstr("second"));
}

TEST_F(FlightFileTest, has_a_line_about_the_process_and_one_per_event) {
  variables_["DMLC_PS_ROOT_URI"] = "10.0.0.1";
  variables_["DMLC_PS_ROOT_PORT"] = "9000";
  FlightFile flight(Role::kServer, variables_);
  flight.recorder().record({.kind = "wanted", .role = "worker", .rank = 1, .key = 7, .part = 0});
  const std::string text = left_by(flight, "job", {Code::kTimeout, "a \"quote\"\n\x1b[31m"});
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4);  // about, start, wanted, end
  EXPECT_THAT(text, HasSubstr(R"("role":"server")"));
  EXPECT_THAT(text, HasSubstr(R"("scheduler":"10.0.0.1:9000")"));
  EXPECT_THAT(text,
              HasSubstr(R"("how":"job","code":"Timeout","text":"a \"quote\"\u000a\u001b[31m")"));
  EXPECT_THAT(text, HasSubstr(R"("kind":"wanted","role":"worker","rank":1,"key":7,"part":0})"));
}

TEST_F(FlightFileTest, has_the_cause_in_fields) {
  FlightFile flight(Role::kScheduler, variables_);
  flight.recorder().record({.kind = "lost",
                            .role = "worker",
                            .rank = 1,
                            .cause = "damaged",
                            .host = "there:7",
                            .text = "reset"});
  const Status why(Code::kTimeout, "a sentence",
                   {.kind = CauseKind::kIncomplete,
                    .who = {.role = Role::kServer, .rank = 2, .host = "a\"b"},
                    .told_by = {.role = Role::kWorker, .rank = 0, .host = "here:5"},
                    .for_ns = 3 * kSecond,
                    .detail = "worker 1 of 2",
                    .missing_workers = {1, 3},
                    .missing_servers = {0}});
  const std::string text = left_by(flight, "job", why);
  EXPECT_THAT(text, HasSubstr(R"({"byteps_flight":2,)"));
  EXPECT_THAT(
      text,
      HasSubstr(R"("cause":{"kind":"incomplete","role":"server","rank":2,"host":"a\"b",)"
                R"("for_ns":3000000000,"detail":"worker 1 of 2","missing_workers":[1,3],)"
                R"("missing_servers":[0],"told_by":{"role":"worker","rank":0,"host":"here:5"}})"));
  EXPECT_THAT(text, HasSubstr(R"("kind":"lost","role":"worker","rank":1,"host":"there:7",)"
                              R"("cause":"damaged","text":"reset"})"));
}

TEST_F(FlightFileTest, is_left_when_all_has_gone_well_only_where_it_was_asked_for) {
  { FlightFile flight(Role::kServer, variables_); }
  EXPECT_FALSE(fs::exists(variables_["BYTEPS_FLIGHT_DIR"]));
  variables_["BYTEPS_FLIGHT_ALWAYS"] = "1";
  { FlightFile flight(Role::kServer, variables_); }
  std::vector<fs::path> files;
  for (const auto& file : fs::directory_iterator(folder_ / "flight")) files.push_back(file.path());
  ASSERT_EQ(files.size(), 1U);
  EXPECT_THAT(content(files[0].string()), HasSubstr(R"("how":"well","code":"Ok",)"));
  EXPECT_THAT(content(files[0].string()), HasSubstr(R"("kind":"end","name":"well"})"));
}

TEST_F(FlightFileTest, why_it_ended_badly_stays_where_it_is_always_left) {
  variables_["BYTEPS_FLIGHT_ALWAYS"] = "1";
  std::string path;
  {
    FlightFile flight(Role::kServer, variables_);
    path = flight.recorder().leave_behind("job", {Code::kTimeout, "too late"});
  }
  EXPECT_THAT(content(path), HasSubstr(R"("how":"job")"));
  EXPECT_THAT(content(path), Not(HasSubstr("well")));
}

TEST_F(FlightFileTest, never_has_a_key) {
  variables_["BYTEPS_JOB_KEY"] = "sixteen secret bytes";
  variables_["BYTEPS_JOB_KEY_FILE"] = "/etc/job.key";
  FlightFile flight(Role::kWorker, variables_);
  const std::string text = left_by(flight, "job", {Code::kSystem, "x"});
  EXPECT_THAT(text, Not(HasSubstr("secret bytes")));
  EXPECT_THAT(text, HasSubstr(R"x("BYTEPS_JOB_KEY":"(set)")x"));
  EXPECT_THAT(text, HasSubstr("/etc/job.key"));
}

TEST_F(FlightFileTest, is_written_anew_in_place_and_never_over_that_of_another_job) {
  FlightFile first(Role::kWorker, variables_);
  const std::string path = first.recorder().leave_behind("job", {Code::kSystem, "x"});
  EXPECT_EQ(first.recorder().leave_behind("raised", {Code::kSystem, "y"}), path);
  ASSERT_TRUE(first.settle());
  FlightFile second(Role::kWorker, variables_);
  EXPECT_NE(second.recorder().leave_behind("job", {Code::kSystem, "z"}), path);
}

TEST_F(FlightFileTest, a_folder_that_cannot_be_written_is_a_warning_and_the_error_stays) {
  std::ofstream(variables_["BYTEPS_FLIGHT_DIR"]) << "a file where the folder should be";
  FlightFile flight(Role::kWorker, variables_);
  testing::internal::CaptureStderr();
  EXPECT_EQ(flight.recorder().with_path("job", {Code::kSystem, "bad"}).message(), "bad");
  EXPECT_EQ(flight.recorder().with_path("job", {Code::kSystem, "bad"}).message(), "bad");
  ASSERT_TRUE(flight.settle());
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("BYTEPS_FLIGHT_DIR"));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1);
}

TEST_F(FlightFileTest, the_default_folder_keeps_the_newest_files_only) {
  setenv("TMPDIR", folder_.c_str(), 1);
  const fs::path flights = default_flight_folder();
  EXPECT_EQ(flights, folder_ / ("byteps-" + std::to_string(geteuid())) / "flight");
  variables_.clear();
  for (std::size_t i = 0; i < FlightFile::kFilesKept + 3; ++i) {
    FlightFile flight(Role::kWorker, variables_);
    EXPECT_FALSE(flight.recorder().leave_behind("job", {Code::kSystem, "x"}).empty());
  }
  unsetenv("TMPDIR");
  const auto count = std::distance(fs::directory_iterator(flights), fs::directory_iterator());
  EXPECT_EQ(count, static_cast<std::ptrdiff_t>(FlightFile::kFilesKept));
}

TEST_F(FlightFileTest, a_default_folder_that_others_can_write_to_is_not_used) {
  setenv("TMPDIR", folder_.c_str(), 1);
  const fs::path flights = default_flight_folder();
  fs::create_directories(flights);
  chmod(flights.c_str(), 0777);
  variables_.clear();
  FlightFile flight(Role::kWorker, variables_);
  testing::internal::CaptureStderr();
  EXPECT_EQ(flight.recorder().leave_behind("job", {Code::kSystem, "x"}), "");
  ASSERT_TRUE(flight.settle());
  unsetenv("TMPDIR");
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("only this user"));
}

}  // namespace
}  // namespace byteps
